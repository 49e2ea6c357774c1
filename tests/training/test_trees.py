"""Trees in TensorFlow operations answer like scikit-learn's."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from sklearn.ensemble import HistGradientBoostingRegressor

from pipeline.training import trees as trees_module
from pipeline.training.features import Features
from pipeline.training.trees import CODES, ROWS_ANSWERED_AT_ONCE, Columns, Trees
from tests.training.mixed_table import FEATURES, booster_of, labels_of, score, table, unseen

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("classes", [0, 2, 4])
@pytest.mark.slow
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


@pytest.mark.slow
def test_so_do_those_of_trees_and_splits_in_several_parts(monkeypatch):
    monkeypatch.setattr(trees_module, "TREES_AT_ONCE", 7)
    monkeypatch.setattr(trees_module, "SPLITS_AT_ONCE", 3)
    test_answers_equal_those_of_scikit_learn(2, FEATURES)


@pytest.mark.parametrize("classes", [0, 2, 4])
@pytest.mark.slow
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
