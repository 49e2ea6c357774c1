"""Contributions of raw features: exact where they can be computed by hand."""

from collections.abc import Callable, Iterable
from itertools import permutations

import numpy as np
import pytest
import tensorflow as tf

from pipeline.training.explanations import MOST_ASKED, Explainer, affordable

COLUMNS = {"a": "a", "b": "the b", "c": "c"}
SPEC = {name: tf.TensorSpec([None], tf.float32, name=name) for name in COLUMNS}


def numbers(rows: int, seed: int = 0) -> dict[str, tf.Tensor]:
    generator = np.random.default_rng(seed)
    return {name: tf.constant(generator.normal(size=rows), tf.float32) for name in COLUMNS}


def explained(
    function: Callable, rows: dict, background: dict, spec: dict | None = None, read: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Explain a function of the columns, compiled as a signature is."""
    answer = tf.function(lambda given: {"prediction": function(given)}, input_signature=[spec or SPEC])
    columns = {name: COLUMNS.get(name, name) for name in rows}
    explainer = Explainer(answer, "prediction", background, columns, rows if read is None else read)
    found = tf.function(explainer, input_signature=[spec or SPEC], autograph=False)(rows)
    return {name: value.numpy() for name, value in found.items()}


def test_of_a_linear_model_they_are_its_weights_times_the_distance_from_the_mean():
    rows, background = numbers(5, seed=1), numbers(32)
    found = explained(lambda given: 2 * given["a"] - 3 * given["b"] + 7, rows, background)
    expected = [
        weight * (rows[name] - tf.reduce_mean(background[name])) for name, weight in zip("abc", (2, -3, 0), strict=True)
    ]
    np.testing.assert_allclose(found["contributions"], np.stack(expected, axis=1), atol=1e-5)
    np.testing.assert_allclose(
        found["average"], [2 * np.mean(background["a"]) - 3 * np.mean(background["b"]) + 7] * 5, atol=1e-5
    )
    assert found["columns"].tolist() == [[b"a", b"the b", b"c"]] * 5
    assert (found["contributions"][:, 2] == 0).all()


def test_an_interaction_is_split_evenly_and_the_sum_is_right():
    rows = {name: tf.constant([2.0]) for name in COLUMNS}
    background = {name: tf.zeros([16]) for name in COLUMNS}
    found = explained(lambda given: given["a"] * given["b"] + 0 * given["c"], rows, background)
    np.testing.assert_allclose(found["contributions"], [[2, 2, 0]], atol=1e-5)
    # Of two columns, an order and its reverse are all orders there are.
    np.testing.assert_allclose(found["errors"], 0, atol=1e-6)


def exact(function: Callable, row: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Shapley values by their definition: over all orders and all background rows."""
    total = np.zeros(len(row))
    orders = list(permutations(range(len(row))))
    for begin in background:
        for order in orders:
            mixed = begin.copy()
            for place in order:
                before = function(mixed)
                mixed[place] = row[place]
                total[place] += function(mixed) - before
    return total / (len(orders) * len(background))


def test_they_lie_within_their_errors_around_the_exact_values():
    def function(row):
        a, b, c = (row["a"], row["b"], row["c"]) if isinstance(row, dict) else row
        return np.tanh(a * b) + b * c**2 + a if not isinstance(row, dict) else tf.tanh(a * b) + b * c**2 + a

    rows, many, few = numbers(8, seed=1), numbers(400), 64
    background = {name: values[:few] for name, values in many.items()}
    found = explained(function, rows, background)
    table = np.stack([many[name] for name in COLUMNS], axis=1).astype(float)
    for place in range(8):
        row = np.array([rows[name][place] for name in COLUMNS], float)
        # Of all rows the background is taken from, and of those in it: orders are drawn once a row of it.
        for begins, errors in ((table, 4), (table[:few], 3)):
            distance = np.abs(found["contributions"][place] - exact(function, row, begins))
            assert (distance < errors * found["errors"][place] + 1e-6).all()
    np.testing.assert_allclose(found["contributions"].sum(axis=1) + found["average"], found["prediction"], atol=1e-5)


def test_of_several_classes_the_most_probable_one_is_explained():
    rows, background = numbers(6, seed=1), numbers(16)

    def probabilities(given):
        return tf.nn.softmax(tf.stack([given["a"], given["b"], 0 * given["c"]], axis=1))

    found = explained(probabilities, rows, background)
    most = found["prediction"].max(axis=1)
    assert len(set(found["prediction"].argmax(axis=1))) > 1
    np.testing.assert_allclose(found["contributions"].sum(axis=1) + found["average"], most, atol=1e-5)
    np.testing.assert_allclose(found["contributions"][:, 2], 0, atol=1e-7)


def test_texts_lists_and_missing_values_are_taken_as_they_are():
    spec = {
        "text": tf.TensorSpec([None], tf.string, name="text"),
        "list": tf.TensorSpec([None, None], tf.float32, name="list"),
        "count": tf.TensorSpec([None], tf.int64, name="count"),
    }
    rows = {
        "text": tf.constant(["", "zz"]),
        "list": tf.constant([[1.0, 2.0, 3.0], [np.nan] * 3]),
        "count": tf.constant([5, 0], tf.int64),
    }
    background = {
        "text": tf.constant(["a", "bb", "", "a"]),
        "list": tf.constant([[1.0], [np.nan], [2.0], [1.0]]),
        "count": tf.constant([1, 2, 3, 2], tf.int64),
    }

    def answer(given):
        listed = tf.reduce_sum(tf.where(tf.math.is_nan(given["list"]), 0.0, given["list"]), axis=1)
        return listed + tf.cast(
            10 * given["count"] + 100 * tf.cast(tf.strings.length(given["text"]), tf.int64), tf.float32
        )

    found = explained(answer, rows, background, spec)
    np.testing.assert_allclose(found["contributions"], [[-100, 5, 30], [100, -1, -20]], atol=1e-4)


def test_one_column_has_the_whole_difference_and_no_row_no_explanation():
    spec = {"a": SPEC["a"]}
    background = {"a": tf.constant([1.0, 3.0])}
    found = explained(lambda given: given["a"] ** 2, {"a": tf.constant([4.0])}, background, spec)
    np.testing.assert_allclose(found["contributions"], [[11]])
    empty = explained(lambda given: given["a"] ** 2, {"a": tf.zeros([0])}, background, spec)
    assert empty["contributions"].shape == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [90, pytest.param(200, marks=pytest.mark.long)])
def test_many_columns_are_walked_in_parts_with_the_same_result(columns):
    spec = {f"column_{place}": tf.TensorSpec([None], tf.float32, name=f"column_{place}") for place in range(columns)}
    names = list(spec)
    generator = np.random.default_rng(0)
    background = {name: tf.constant(generator.normal(size=24), tf.float32) for name in names}
    rows = {name: tf.ones([2]) for name in names}
    found = explained(lambda given: given[names[0]] - 4 * given[names[-1]], rows, background, spec)
    expected = np.zeros((2, columns))
    expected[:, 0] = 1 - np.mean(background[names[0]])
    expected[:, -1] = -4 * (1 - np.mean(background[names[-1]]))
    np.testing.assert_allclose(found["contributions"], expected, atol=1e-4)


@pytest.mark.slow
def test_columns_that_the_model_does_not_read_contribute_nothing_and_are_not_walked():
    rows, background = numbers(4, seed=1), numbers(32)

    def function(given):
        return tf.tanh(given["a"] * given["c"]) + given["c"]

    found = explained(function, rows, background, read=["c", "a"])
    alone = {name: rows[name] for name in "ac"}
    without = explained(function, alone, background, {name: SPEC[name] for name in alone})
    np.testing.assert_allclose(found["contributions"][:, [0, 2]], without["contributions"], atol=1e-6)
    np.testing.assert_allclose(found["errors"][:, [0, 2]], without["errors"], atol=1e-6)
    assert (found["contributions"][:, 1] == 0).all()
    assert (found["errors"][:, 1] == 0).all()
    assert found["columns"].tolist() == [[b"a", b"the b", b"c"]] * 4
    nothing = explained(lambda given: 0 * given["a"] + 5, rows, background, read=[])
    assert (nothing["contributions"] == 0).all()


def test_a_column_of_several_dimensions_is_one_column():
    spec = {"grid": tf.TensorSpec([None, 2, 3], tf.float32, name="grid"), "a": SPEC["a"]}
    background = {"grid": tf.random.stateless_normal([16, 2, 3], (0, 1)), "a": numbers(16)["a"]}
    rows = {"grid": tf.ones([2, 2, 3]), "a": tf.constant([1.0, 2.0])}
    found = explained(lambda given: tf.reduce_sum(given["grid"], [1, 2]) + given["a"], rows, background, spec)
    means = [tf.reduce_mean(tf.reduce_sum(background["grid"], [1, 2])), tf.reduce_mean(background["a"])]
    np.testing.assert_allclose(
        found["contributions"], [[6 - means[0], 1 - means[1]], [6 - means[0], 2 - means[1]]], atol=1e-4
    )


def test_a_column_that_decides_contributes_by_far_the_most():
    spec = {f"column_{place}": tf.TensorSpec([None], tf.float32, name=f"column_{place}") for place in range(12)}
    generator = np.random.default_rng(0)
    values = [{name: tf.constant(generator.normal(size=64), tf.float32) for name in spec} for _ in range(2)]

    def answer(given):
        others = tf.add_n([given[name] for name in spec if name != "column_7"])
        return tf.sigmoid(4 * tf.sign(given["column_7"]) + 0.1 * others)

    sizes = np.abs(explained(answer, *values, spec)["contributions"]).mean(axis=0)
    assert sizes.argmax() == 7
    assert sizes[7] > 10 * np.sort(sizes)[-2]


def test_with_many_columns_there_are_fewer_background_rows_evenly_taken(caplog):
    rows = [bytes([place]) for place in range(64)]
    assert affordable(rows, 10) == rows
    with caplog.at_level("INFO", "pipeline.training"):
        few = affordable(rows, 100)
    assert caplog.messages == ["Explanations begin from 20 rows, not 64: there are 100 columns."]
    assert len(few) * 2 * 100 <= MOST_ASKED
    assert (few[0], few[-1]) == (rows[0], rows[-1])
    assert len(set(affordable(rows, 5_000))) == 16
