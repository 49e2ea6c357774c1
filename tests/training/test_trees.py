"""Trees in TensorFlow operations answer like scikit-learn's, and what the two members answer together is weighed."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from pipeline.training import trees as trees_module
from pipeline.training.features import Features
from pipeline.training.trees import CODES, ROWS_ANSWERED_AT_ONCE, Columns, Sample, Trees, fit, losses_of

FEATURES = Features(numbers={"numbers": 5}, categories={"word": 6, "codes": 400}, places={"codes": 2})


@pytest.fixture(autouse=True)
def one_thread():
    """Beside other tests OpenMP's threads spin until all have a core: ten times the time, on a few rows."""
    with threadpool_limits(1):
        yield


def table(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Numbers with gaps, ties and infinities; a category of few values, and two places of one of many."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, 5)).astype(np.float32)
    numbers[:, 3] = 7.0  # only what is missing tells rows apart
    numbers[:, 4] = np.where(rng.random(rows) < 0.3, np.inf, np.where(rng.random(rows) < 0.3, -np.inf, 1.0))
    numbers[:, 1] = np.round(numbers[:, 1], 1)  # ties, and thresholds between neighbours
    numbers[:, 2] *= 1e30
    numbers[rng.random((rows, 5)) < 0.15] = np.nan
    word = rng.integers(0, 5, size=(rows, 1))
    codes = np.minimum(rng.geometric(0.02, size=(rows, 2)), 398)
    return {"numbers": numbers, "word": word, "codes": codes}


def score(features: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    numbers = np.nan_to_num(features["numbers"], nan=0.7)
    jumps = np.sin(features["word"][:, 0] * 3) + (features["codes"][:, 0] % 3 == 1) - (features["codes"][:, 1] % 2)
    jumps = jumps + np.isnan(features["numbers"][:, 3]) + np.sign(np.nan_to_num(features["numbers"][:, 4]))
    return numbers[:, 0] + np.abs(numbers[:, 1]) + jumps + rng.normal(scale=0.3, size=len(jumps))


def unseen(rows: int) -> dict[str, np.ndarray]:
    """Other rows, with values of categories that no train row has."""
    features = table(rows, seed=2)
    features["word"][::3] = 5
    features["codes"][1::4] = 399
    return features


def labels_of(values: np.ndarray, classes: int) -> np.ndarray:
    if not classes:
        return 1000 + 50 * values
    return np.searchsorted(np.quantile(values, np.arange(1, classes) / classes), values)


def booster_of(classes: int, categories: int, **settings) -> HistGradientBoostingClassifier:
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return kind(max_iter=15, categorical_features=list(range(categories)) or None, random_state=0, **settings)


@pytest.mark.parametrize("classes", [0, 2, 4])
@pytest.mark.parametrize("features", [FEATURES, Features({"numbers": 5}, {}), Features({}, {"word": 6})])
def test_answers_equal_those_of_scikit_learn(classes, features):
    rng = np.random.default_rng(0)
    train = table(1500, seed=1)
    columns = Columns(features)
    columns.count_categories(train)
    booster = booster_of(classes, columns.categories)
    booster.fit(columns.of(train), labels_of(score(train, rng), classes))
    trees = Trees(columns, booster)
    for rows in (train, unseen(1000)):
        values = columns.of(rows)
        expected = booster.predict_proba(values) if classes else booster.predict(values)[:, np.newaxis]
        if classes == 2:
            expected = expected[:, 1:]
        answers = tf.function(trees)({name: tf.constant(value) for name, value in rows.items()})
        assert answers.dtype == tf.float32
        np.testing.assert_allclose(answers, expected, rtol=1e-6, atol=1e-6)


def test_so_do_those_of_trees_and_splits_in_several_parts(monkeypatch):
    monkeypatch.setattr(trees_module, "TREES_AT_ONCE", 7)
    monkeypatch.setattr(trees_module, "SPLITS_AT_ONCE", 3)
    test_answers_equal_those_of_scikit_learn(2, FEATURES)


@pytest.mark.parametrize("classes", [0, 2, 4])
def test_any_number_of_rows_is_answered_as_each_alone(classes):
    columns = Columns(Features({"numbers": 5}, {}))
    train = {"numbers": table(1200, seed=1)["numbers"]}
    labels = labels_of(score(table(1200, seed=1), np.random.default_rng(0)), classes)
    trees = Trees(columns, booster_of(classes, 0).fit(columns.of(train), labels))
    answer = tf.function(trees.answer, input_signature=[tf.TensorSpec([None, 5])])
    expected = answer(columns.of(train))
    for rows in (0, 1, ROWS_ANSWERED_AT_ONCE - 1, ROWS_ANSWERED_AT_ONCE, ROWS_ANSWERED_AT_ONCE + 1, 1200):
        some = columns.of(train)[:rows]
        assert answer(some).shape == trees.answer(tf.constant(some)).shape == (rows, max(1, classes - (classes == 2)))
        np.testing.assert_allclose(answer(some), expected[:rows], rtol=1e-6)


def test_a_number_on_a_threshold_stays_on_its_side():
    # Neighbours in float32: no float32 number lies between, so the threshold is rounded.
    low = np.float32(0.1)
    values = np.tile(np.array([[low], [np.nextafter(low, np.float32(1))]], np.float32), (50, 1))
    booster = HistGradientBoostingRegressor(min_samples_leaf=5).fit(values, np.tile([0.0, 1.0], 50))
    columns = Columns(Features({"x": 1}, {}))
    np.testing.assert_allclose(Trees(columns, booster)({"x": tf.constant(values)})[:, 0], booster.predict(values), 1e-6)


def test_a_tree_of_one_leaf_answers_too():
    values = np.zeros((60, 1), np.float32)
    booster = HistGradientBoostingRegressor(max_iter=2).fit(values, np.arange(60.0))
    answers = Trees(Columns(Features({"x": 1}, {})), booster)({"x": tf.constant(values)})
    np.testing.assert_allclose(answers[:, 0], booster.predict(values), 1e-6)


def test_of_many_values_of_a_category_the_rarest_count_as_one():
    columns = Columns(Features({}, {"code": 1000}))
    columns.count_categories({"code": np.repeat(np.arange(1000), np.arange(1000, 0, -1))[:, np.newaxis]})
    codes = columns.of({"code": np.array([[0], [1], [253], [254], [999]])})
    assert codes[:, 0].tolist() == [0, 1, 253, CODES - 1, CODES - 1]


def test_iterations_end_where_eval_gets_no_better():
    rng = np.random.default_rng(0)
    parts = {}
    columns = Columns(Features({"numbers": 5}, {}))
    for seed, rows in ((1, 300), (2, 300)):
        features = {"numbers": table(rows, seed)["numbers"]}
        parts[seed] = Sample(columns.of(features), labels_of(score(table(rows, seed), rng), 2))
    trees, _ = fit(parts[1], parts[2], columns, 2, seed=0)
    every = booster_of(2, 0, learning_rate=0.05).set_params(max_iter=400).fit(parts[1].values, parts[1].labels)
    chosen = losses_of(trees.answer(tf.constant(parts[2].values)).numpy(), parts[2].labels, 2)
    assert chosen.mean() < losses_of(every.predict_proba(parts[2].values), parts[2].labels, 2).mean()


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_the_answers_by_which_trees_are_weighed_are_those_that_they_give_when_served(classes):
    rng = np.random.default_rng(0)
    train, evaluate = table(500, seed=1), table(200, seed=2)
    columns = Columns(FEATURES)
    columns.count_categories(train)
    parts = [Sample(columns.of(part), labels_of(score(part, rng), classes)) for part in (train, evaluate)]
    trees, answers = fit(*parts, columns, classes, seed=0)
    assert answers.shape == (200, max(1, classes - (classes == 2)))
    np.testing.assert_allclose(answers, trees(evaluate).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_columns_that_tell_nothing_new_leave_the_trees_as_they_are(classes):
    """A copy of a number, one value only, and a copy of a category; none of them after those that tell."""
    answers = []
    for features in (
        FEATURES,
        Features({"fixed": 1, "numbers": 5, "same": 2}, {"a_word": 6, "word": 6, "codes": 400}, places={"codes": 2}),
    ):
        parts = []
        for seed, rows in ((1, 500), (2, 200)):
            part = table(rows, seed)
            values = score(part, np.random.default_rng(seed))
            part |= {"fixed": np.full((rows, 1), 3.0, np.float32), "a_word": part["word"]}
            part["same"] = part["numbers"][:, [0, 3]]
            parts.append((part, labels_of(values, classes)))
        columns = Columns(features)
        columns.count_categories(parts[0][0])
        trees, told = fit(*(Sample(columns.of(part), labels) for part, labels in parts), columns, classes, seed=0)
        answers.append(told)
        np.testing.assert_allclose(told, trees(parts[1][0]).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(*answers)


def test_columns_that_differ_in_one_row_alone_both_tell():
    values = np.zeros((5_003, 5), np.float32)
    values[:, 0] = np.arange(5_003)
    values[4_999, 1] = values[5_001, 2] = values[5_001, 3] = 1.0  # as many rows are not among those looked at first
    assert trees_module._telling(values, 0) == [0, 1, 2]
    assert trees_module._telling(values, 3) == [0, 1, 2, 3]  # a category is no number


def test_trees_of_columns_that_tell_nothing_answer_all_rows_alike():
    columns = Columns(Features({"fixed": 2}, {"word": 3}))
    features = {"fixed": np.ones((80, 2), np.float32), "word": np.ones((80, 1), np.int64)}
    columns.count_categories(features)
    sample = Sample(columns.of(features), np.tile([0, 0, 0, 1], 20))
    trees, answers = fit(sample, sample, columns, 2, seed=0)
    np.testing.assert_allclose(answers, 0.25, rtol=1e-6)
    np.testing.assert_allclose(trees({"fixed": np.zeros((3, 2), np.float32), "word": [[0], [1], [2]]}), 0.25, rtol=1e-6)


@pytest.mark.slow
def test_the_saved_model_needs_tensorflow_alone(tmp_path):
    rng = np.random.default_rng(0)
    train = table(1000, seed=1)
    columns = Columns(FEATURES)
    columns.count_categories(train)
    booster = booster_of(2, columns.categories).fit(columns.of(train), labels_of(score(train, rng), 2))
    trees = Trees(columns, booster)
    rows = {name: tf.constant(value[:5]) for name, value in train.items()}
    specs = {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype, name) for name, value in rows.items()}
    module = tf.Module()
    module.trees = trees
    answer = tf.function(lambda **features: {"answers": trees(features)})
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=answer.get_concrete_function(**specs))
    np.savez(tmp_path / "rows.npz", **{name: value.numpy() for name, value in rows.items()})
    code = (
        "import sys, numpy, tensorflow as tf; rows = numpy.load('rows.npz'); "
        "model = tf.saved_model.load('model').signatures['serving_default']; "
        "answers = model(**{name: tf.constant(rows[name]) for name in rows})['answers'].numpy(); "
        "assert 'sklearn' not in sys.modules and 'pipeline' not in sys.modules; numpy.save('answers.npy', answers)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    expected = booster.predict_proba(columns.of(train)[:5])[:, 1:]
    np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), expected, rtol=1e-6, atol=1e-6)
