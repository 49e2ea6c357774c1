"""Tables of which a step changes the rows that its batch names, and the same result as with dense gradients."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import training
from pipeline.training.errors import TrainingError
from pipeline.training.gradients import hashed
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from pipeline.training.settings import Settings
from tests.training.one_device import ONE_DEVICE
from tests.training.records import DECODER, SETTINGS, write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

ROWS, SIZE, WIDTH = 200, 7, 3
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.5),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "amsgrad": lambda: keras.optimizers.Adam(0.05, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.0),
    "adamax": lambda: keras.optimizers.Adamax(0.05),
    "ftrl": lambda: keras.optimizers.Ftrl(0.5),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.05),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
}
# Those that leave a weight alone whose gradient is 0: for them batches may leave rows out.
STILL = {"sgd", "adagrad", "ftrl"}
# Of each kind of state one: none, moments, and sums that decide by themselves. `make long` has the others.
FIRST = {"sgd", "adam", "ftrl"}


def network(layer: keras.layers.Layer, optimizer: keras.optimizers.Optimizer, numbers: int = SIZE) -> keras.Model:
    """Looks up two numbers of each row, often the same one twice."""
    keras.utils.set_random_seed(1)
    inputs = {"x": keras.Input((2,), name="x")}
    number = keras.ops.cast(inputs["x"][:, 1:], "int32")
    found = layer(keras.ops.concatenate([number % numbers, number // 2 % numbers], axis=1))
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(found), inputs["x"][:, :1]])
    output = keras.layers.Dense(1, "sigmoid", dtype="float32")(hidden)
    model = keras.Model(inputs, output)
    model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def curve(
    pattern: str, logs: Path, layer: keras.layers.Layer, optimizer: str, numbers: int = SIZE, **settings
) -> tuple[list[float], keras.Model]:
    """Train; return the loss of every step, and the model."""
    of_training = OPTIMIZERS[optimizer]()
    if keras.config.dtype_policy().name == "mixed_float16":
        of_training = keras.optimizers.LossScaleOptimizer(of_training)
    model = network(layer, of_training, numbers)
    splits = [read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2)]
    wanted: Settings = dataclasses.replace(SETTINGS, **settings)
    Fit(model, splits[0], splits[1], wanted, ONE_DEVICE, seed=1, logs=str(logs)).run()
    rows = (logs / "steps.csv").read_text().splitlines()
    place = rows[0].split(",").index("loss")
    return [float(row.split(",")[place]) for row in rows[1:]], model


def both(pattern: str, folder: Path, optimizer: str, numbers: int = SIZE, **settings) -> tuple[list, list]:
    """The losses with our layer and with Keras' own, which gets dense gradients."""
    begin = keras.initializers.RandomUniform(seed=3)
    dense = keras.layers.Embedding(SIZE, WIDTH, embeddings_initializer=begin)
    ours = training.embedding(SIZE, WIDTH)
    ours.build()
    ours.table.assign(begin((SIZE, WIDTH)))
    return tuple(
        curve(pattern, folder / name, layer, optimizer, numbers, **settings)[0]
        for name, layer in (("ours", ours), ("dense", dense))
    )


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("rows"), ROWS)


@pytest.mark.parametrize(
    "optimizer",
    [name if name in FIRST else pytest.param(name, marks=pytest.mark.long) for name in OPTIMIZERS],
)
def test_the_losses_are_those_of_dense_gradients(pattern, tmp_path, optimizer):
    numbers = SIZE if optimizer in STILL else 2
    ours, dense = both(pattern, tmp_path, optimizer, numbers)
    assert len(ours) == 30
    np.testing.assert_allclose(ours, dense, atol=1e-5)
    assert ours[-1] < ours[0]


@pytest.mark.parametrize(
    "settings", [{"clip_norm": 0.05}, {"batch_size": 5, "accumulate": 4}, {"steps_per_call": 1}], ids=str
)
def test_clipped_and_accumulated_they_are_too(pattern, tmp_path, settings):
    ours, dense = both(pattern, tmp_path, "adagrad", **settings)
    np.testing.assert_allclose(ours, dense, atol=1e-5)


def test_in_float16_they_are_too(pattern, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        ours, dense = both(pattern, tmp_path, "adagrad")
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(ours, dense, atol=2e-3)


def test_rows_that_no_batch_names_stay_as_they_are_and_so_does_what_the_optimizer_keeps_of_them(pattern, tmp_path):
    layer = training.embedding(SIZE, WIDTH)
    layer.build()
    before = layer.table.numpy()
    _, model = curve(pattern, tmp_path, layer, "adam", numbers=SIZE - 2)
    changed = (layer.table.numpy() != before).any(axis=1)
    assert changed.tolist() == [True] * (SIZE - 2) + [False] * 2
    kept = [state.numpy() for state in model.optimizer.variables if tuple(state.shape) == (SIZE, WIDTH)]
    assert len(kept) == 2
    for state in kept:
        assert state.any(axis=1).tolist() == changed.tolist()


def test_weight_decay_leaves_the_table_alone_and_no_other_weights(pattern, tmp_path, monkeypatch):
    # A tenth of a weight in each of 10 steps, beside which Adam's own steps are nothing.
    monkeypatch.setitem(OPTIMIZERS, "decaying", lambda: keras.optimizers.AdamW(1e-9, weight_decay=1e8))
    layer = training.embedding(SIZE, WIDTH)
    layer.build()
    before = layer.table.numpy()
    _, model = curve(pattern, tmp_path, layer, "decaying", epochs=1)
    np.testing.assert_allclose(layer.table.numpy(), before, atol=1e-6)
    kernel = model.layers[-1].kernel.numpy()
    at_first = np.sqrt(6 / sum(kernel.shape))  # at most: GlorotUniform
    assert 0.9**10 * at_first / 2 < np.abs(kernel).max() <= 0.9**10 * at_first


def test_no_step_makes_anything_as_large_as_the_table(pattern):
    size = 50_021
    model = network(training.embedding(size, WIDTH), keras.optimizers.Adam(), numbers=size)
    train, evaluate = (read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2))
    fit = Fit(model, train, evaluate, dataclasses.replace(SETTINGS, clip_norm=1.0), ONE_DEVICE, seed=1)
    fit.steps.feed(train.training(20, fit.part, 1))
    graph = fit.steps._train.get_concrete_function(*fit.steps._arguments(0, 0.0)).graph
    graphs = [graph, *(function.graph for function in graph._functions.values())]
    outputs = [tensor for one in graphs for operation in one.get_operations() for tensor in operation.outputs]
    assert len(outputs) > 100
    assert [tensor.name for tensor in outputs if tensor.shape.rank and tensor.shape[0] == size] == []


def test_hashed_numbers_share_rows_evenly_whatever_their_order():
    layer = training.embedding(1_000_000, 8, "hashed", megabytes=0.032 * 4)
    assert layer.rows == 4_000
    for numbers in (np.arange(100_000), np.arange(100_000) * 10, np.arange(100_000) + 900_000):
        places = np.bincount(hashed(tf.constant(numbers)).numpy() % layer.rows, minlength=layer.rows)
        assert places.min() > 0
        assert places.max() < 3 * places.mean()
    one, other = layer(np.array([1, 2]))
    assert layer.table.shape == (4_000, 8)
    assert not np.array_equal(one, other)


def test_megabytes_that_hold_every_row_make_a_table():
    layer = training.embedding(1_000, 8, "hashed", megabytes=1)
    layer.build()
    assert layer.table.shape == (1_000, 8)


def test_padding_is_masked():
    inputs = keras.Input((3,), dtype="int64")
    embedded = training.embedding(SIZE, WIDTH, mask_zero=True)(inputs)
    model = keras.Model(inputs, [embedded, keras.layers.GlobalAveragePooling1D()(embedded)])
    each, mean = model(np.array([[0, 1, 0], [2, 0, 3]]))
    np.testing.assert_allclose(mean, [each[0, 1], (each[1, 0] + each[1, 2]) / 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: training.embedding(0, 8), "size and width are whole numbers from 1 on"),
        (
            lambda: training.embedding(10, 8, "split"),
            "no placement 'split'; expected one of table, hashed",
        ),
        (lambda: training.embedding(10, 8, "hashed"), "needs megabytes=…"),
        (lambda: training.embedding(10, 8, megabytes=1), "takes no megabytes"),
        (
            lambda: training.embedding(10**7, 64, "hashed", megabytes=1e-5),
            "no row fits .* at least 0.000256",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(call, message):
    with pytest.raises(TrainingError, match=message):
        call()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (keras.optimizers.Lamb, "changes single rows, and Lamb changes a table as a whole; compile"),
        (lambda: keras.optimizers.Adam(use_ema=True), "and Adam with use_ema changes"),
        (
            lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
            "and Adam with gradient_accumulation_steps changes",
        ),
    ],
)
def test_an_optimizer_that_looks_at_a_table_as_a_whole_is_refused(pattern, tmp_path, monkeypatch, optimizer, message):
    monkeypatch.setitem(OPTIMIZERS, "whole", optimizer)
    with pytest.raises(TrainingError, match=message):
        curve(pattern, tmp_path, training.embedding(SIZE, WIDTH), "whole")


class StopsAt(keras.callbacks.Callback):
    """Ends a training before an epoch, as Ctrl-C does."""

    def __init__(self, epoch: int):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if epoch == self.epoch:
            raise KeyboardInterrupt


def test_a_training_that_was_stopped_goes_on_from_its_checkpoint_to_the_same_rows(pattern, tmp_path):
    def fit(checkpoints: Path, epoch: int) -> list[np.ndarray]:
        splits = [read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2)]
        layer = training.embedding(SIZE, WIDTH, "hashed", megabytes=0.00006)
        model = network(layer, OPTIMIZERS["adam"](), numbers=1_000)
        settings = {"seed": 1, "checkpoints": str(checkpoints), "callbacks": [StopsAt(epoch)]}
        Fit(model, splits[0], splits[1], SETTINGS, ONE_DEVICE, **settings).run()
        return [variable.numpy() for variable in model.variables]

    whole = fit(tmp_path / "whole", -1)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "stopped", 2)
    for one, other in zip(whole, fit(tmp_path / "stopped", -1), strict=True):
        np.testing.assert_array_equal(one, other)
