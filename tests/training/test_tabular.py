"""Layers for tables: embeddings of numbers, members that share weights, and a committee that is a Keras model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from pipeline.training import tabular

NAN = float("nan")


@pytest.mark.parametrize("layer", [tabular.PiecewiseLinear(4, 3), tabular.Periodic(5, 3)])
def test_each_number_has_an_embedding_of_its_own(layer):
    numbers = np.array([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [NAN, 0.1]], np.float32)
    embedded = layer(numbers).numpy().reshape(4, 2, 3)
    assert np.isfinite(embedded).all()
    np.testing.assert_array_equal(embedded[0, 1], embedded[1, 1])  # as nothing but the other number differs
    np.testing.assert_array_equal(embedded[0, 1], embedded[3, 1])
    assert layer.compute_output_spec(keras.KerasTensor((None, 2))).shape == (None, 6)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (tabular.Standardize(), (7, 4)),
        (tabular.PiecewiseLinear(4, 3), (7, 4)),
        (tabular.Periodic(5, 3), (7, 4)),
        (tabular.Dropout(0.1), (7, 3, 4)),
        (tabular.SharedDense(3, 5), (7, 4)),
        (tabular.SharedDense(3, 5), (7, 3, 4)),
        (tabular.MemberDense(3, 5), (7, 3, 4)),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else type(value).__name__,
)
def test_answers_are_of_the_shape_that_a_layer_tells(layer, shape):
    told = layer(keras.Input(shape[1:]))
    found = layer(np.zeros(shape, np.float32))
    assert told.shape == (None, *found.shape[1:])
    assert told.dtype == keras.backend.standardize_dtype(found.dtype)


def test_categories_and_groups_give_answers_of_the_shape_that_their_layers_tell():
    rows = np.zeros((7, 2), np.int64)
    for layer, told_of, given in (
        (tabular.EmbeddingBag([3, 4], 5), [keras.Input((2,), dtype="int64")] * 2, [rows] * 2),
        (tabular.GroupIntercept(3, 4), keras.Input((1,), dtype="int64"), rows[:, :1]),
    ):
        assert layer(told_of).shape == (None, *layer(given).shape[1:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tabular.PiecewiseLinear, pytest.param(tabular.Periodic, marks=pytest.mark.long)])
def test_a_missing_number_can_be_learnt(kind):
    keras.utils.set_random_seed(1)  # of few units, all that tell two numbers apart may be dead
    model = keras.Sequential([kind(5, 16), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    numbers = np.array([[NAN], [0.0], [0.5], [1.0]] * 50, np.float32)
    labels = np.array([[7.0], [1.0], [2.0], [3.0]] * 50)
    model.fit(numbers, labels, epochs=100, verbose=0)
    np.testing.assert_allclose(model.predict(numbers[:4], verbose=0), labels[:4], atol=0.3)


def test_a_piecewise_linear_embedding_goes_straight_within_a_bin_and_stays_outside():
    layer = tabular.PiecewiseLinear(4, 1)
    layer.build((None, 1))
    layer.kernel.assign([[[1.0], [10.0], [100.0], [1000.0], [5.0]]])
    given = np.array([[-3.0], [0.0], [0.125], [0.25], [0.375], [1.0], [9.0], [NAN]], np.float32)
    assert layer(given).numpy().ravel() == pytest.approx([0, 0, 0.5, 1, 6, 1111, 1111, 5])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rows", [2, 0])
def test_an_embedding_bag_is_a_dense_layer_of_ones_at_the_places_of_categories(training, rows):
    given = [np.array([[2, 2], [0, 1]])[:rows], np.array([[0], [3]])[:rows]]  # the first category has two places
    layer = tabular.EmbeddingBag((3, 4), 5)
    zeros_and_ones = np.array([[0, 0, 2, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 1]], np.float32)[:rows]
    with tf.GradientTape() as tape:
        embedded = layer(given, training=training)
    np.testing.assert_allclose(embedded, zeros_and_ones @ layer.embeddings, atol=1e-6)
    of_sum = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)
    gradient = tape.gradient(embedded, layer.embeddings.value, output_gradients=tf.constant(of_sum))
    np.testing.assert_allclose(gradient, zeros_and_ones.T @ of_sum, atol=1e-6)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("shape", [(2000, 8), (500, 4, 7), (100, 5, 2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_drops_its_rate_of_the_values_and_scales_the_others(rate, shape, dtype):
    layer = tabular.Dropout(rate, seed=1, dtype=dtype)
    values = tf.ones(shape, dtype)
    given = tf.cast(layer(values, training=True), tf.float32).numpy()
    dropped = given == 0
    rate = round(256 * rate) / 256
    np.testing.assert_allclose(given[~dropped], 1 / (1 - rate), rtol=0.01 if dtype == "bfloat16" else 1e-4)
    spread = np.sqrt(rate * (1 - rate))
    assert abs(dropped.mean() - rate) < 4 * spread / np.sqrt(dropped.size)
    # Each place for itself: every one of the last axis, and next to one that is dropped as often as elsewhere.
    of_place = dropped.reshape(-1, shape[-1]).mean(axis=0)
    assert np.abs(of_place - rate).max() < 5 * spread / np.sqrt(dropped.size / shape[-1])
    both = (dropped[..., 1:] & dropped[..., :-1]).mean()
    assert abs(both - rate**2) < 5 * rate / np.sqrt(dropped.size)


def test_dropout_draws_anew_in_each_step_and_again_from_the_same_seed():
    first, second = tabular.Dropout(0.5, seed=3), tabular.Dropout(0.5, seed=3)
    values = np.ones((9, 9), np.float32)
    steps = [first(values, training=True).numpy() for _ in range(2)]
    assert (steps[0] != steps[1]).any()
    np.testing.assert_array_equal(steps, [second(values, training=True) for _ in range(2)])
    np.testing.assert_array_equal(first(values), values)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_lets_no_gradient_through_where_it_drops(compiled):
    layer = tabular.Dropout(0.3, seed=5)
    values = tf.Variable(tf.random.normal([6, 3, 5], seed=1))

    @tf.function(jit_compile=compiled)  # as TPUs do
    def step():
        with tf.GradientTape() as tape:
            answers = layer(values, training=True)
        return answers, tape.gradient(answers, values)

    answers, gradient = step()
    np.testing.assert_allclose(answers, values * gradient, rtol=1e-6)
    assert 0 < (gradient.numpy() == 0).sum() < gradient.numpy().size


def test_dropout_takes_lists_of_any_length():
    given = keras.Input((None, 3))
    model = keras.Model(given, tabular.Dropout(0.5)(given))
    assert model.output_shape == (None, None, 3)
    assert [model(np.ones((2, length, 3), np.float32), training=True).shape for length in (0, 5)] == [
        (2, 0, 3),
        (2, 5, 3),
    ]


@pytest.mark.parametrize("rate", [0.0, 1e-9, 0.01, 0.9999, 1.0])
def test_dropout_of_nothing_of_everything_and_of_a_rate_that_no_byte_is_near_is_that_of_keras(rate):
    values = np.ones((40, 40), np.float32)
    found, expected = (kind(rate, seed=1)(values, training=True) for kind in (tabular.Dropout, layers.Dropout))
    np.testing.assert_array_equal(found, expected)


def test_members_have_the_answers_and_gradients_of_an_einsum():
    layer = tabular.MemberDense(3, 5, "relu")
    rows = tf.constant(np.random.default_rng(0).normal(size=(7, 3, 4)), tf.float32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(rows)
        answers = layer(rows)
        expected = tf.nn.relu(tf.einsum("bmi,mio->bmo", rows, layer.kernel.value) + layer.bias.value)
    np.testing.assert_allclose(answers, expected, atol=1e-6)
    for value in (rows, layer.kernel.value, layer.bias.value):
        np.testing.assert_allclose(tape.gradient(answers, value), tape.gradient(expected, value), atol=1e-5)


def test_members_of_a_shared_layer_start_apart_and_are_a_dense_layer_each():
    layer = tabular.SharedDense(3, 5, "relu")
    rows = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    answers = layer(rows).numpy()
    assert answers.shape == (7, 3, 5)
    for member in range(3):
        kernel = layer.factor_in[member][:, None] * layer.kernel * layer.factor_out[member]
        np.testing.assert_allclose(
            answers[:, member], ops.relu(rows @ kernel + layer.bias[member]), rtol=1e-5, atol=1e-6
        )
    assert np.abs(answers[:, 0] - answers[:, 1]).max() > 0.1


def test_members_with_weights_of_their_own_start_as_dense_layers_do():
    layer = tabular.MemberDense(8, 64)
    rows = np.random.default_rng(0).normal(size=(500, 8, 32)).astype(np.float32)
    expected = layers.Dense(64)(rows[:, 0]).numpy().std()
    assert layer(rows).numpy().std() == pytest.approx(expected, rel=0.1)


def test_a_group_that_is_not_known_has_no_offset():
    layer = tabular.GroupIntercept(3, 2)
    layer.build((None, 1))
    layer.offsets.assign([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    given = layer(np.array([[0], [1], [2]])).numpy()
    np.testing.assert_array_equal(given[..., 0], [[1, 2], [3, 4], [0, 0]])


def committee(outputs: int, activation: str | None) -> tabular.Committee:
    inputs = {"x": keras.Input((4,), name="x")}
    hidden = tabular.SharedDense(3, 8, "relu")(inputs["x"])
    return tabular.Committee(inputs, tabular.MemberDense(3, outputs, activation)(hidden))


TASKS = [
    (1, "sigmoid", "binary_crossentropy", keras.metrics.AUC, [[0], [1], [1]]),
    (3, "softmax", "sparse_categorical_crossentropy", keras.metrics.SparseCategoricalAccuracy, [[0], [2], [1]]),
    (1, None, "mse", keras.metrics.RootMeanSquaredError, [[0.5], [2.0], [-1.0]]),
]


@pytest.mark.parametrize(("outputs", "activation", "loss", "metric", "labels"), TASKS)
def test_a_committee_learns_member_by_member_and_is_measured_by_their_mean(outputs, activation, loss, metric, labels):
    model = committee(outputs, activation)
    model.compile("adam", loss, metrics=[metric(name="metric")])
    rows, labels = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}, np.array(labels)
    each, mean = model(rows, training=True), model(rows)
    assert each.shape == (3, 3, outputs)
    np.testing.assert_allclose(mean, np.mean(each, axis=1), rtol=1e-6)

    alone = [keras.losses.get(loss)(labels, each[:, member]).numpy().mean() for member in range(3)]
    assert float(model.compute_loss(y=labels, y_pred=each)) == pytest.approx(np.mean(alone), rel=1e-5)
    weights = np.array([1.0, 0.0, 2.0], np.float32)
    alone = [(keras.losses.get(loss)(labels, each[:, member]).numpy() * weights).mean() for member in range(3)]
    weighted = model.compute_loss(y=labels, y_pred=each, sample_weight=tf.constant(weights))
    assert float(weighted) == pytest.approx(np.mean(alone), rel=1e-5)

    expected = metric()
    expected.update_state(labels, mean)
    model.reset_metrics()
    assert float(model.compute_metrics(None, labels, each)["metric"]) == pytest.approx(float(expected.result()))


@pytest.mark.slow
def test_a_committee_is_part_of_another_model_as_any_model_is():
    model = committee(1, "sigmoid")
    assert model.output.shape == (None, 1)
    assert len({id(weight) for weight in model.trainable_variables}) == len(model.trainable_variables) == 6
    around = keras.Model(model.inputs, 1 - model.output)
    around.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    rows = {"x": np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)}
    around.fit(rows, np.arange(50) % 2, verbose=0)
    np.testing.assert_allclose(around(rows), 1 - model(rows), rtol=1e-6)


@pytest.mark.slow
def test_keras_fits_evaluates_and_saves_a_committee(tmp_path):
    model = committee(1, "sigmoid")
    model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    rows = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    labels = (rows[:, :1] * rows[:, 1:2] > 0).astype(int)
    model.fit({"x": rows}, labels, epochs=15, verbose=0)
    assert model.evaluate({"x": rows}, labels, verbose=0, return_dict=True)["auc"] > 0.95
    model.export(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_allclose(served.serve({"x": rows[:5]}), model.predict({"x": rows[:5]}, verbose=0), rtol=1e-5)
