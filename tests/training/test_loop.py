"""Fitting, in this process: what a step does, what callbacks see, and what stops a training."""

import csv
import dataclasses
import statistics
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.training.decoding import Decoder
from pipeline.training.errors import NonFiniteLossError, OutOfMemoryError, TrainingError
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from pipeline.training.run import checkpoint_folder
from pipeline.training.settings import Settings
from pipeline.training.strategy import Part
from tests.training.one_device import ONE_DEVICE
from tests.training.records import DECODER, SETTINGS, SPEC, compiled, functional, write
from tests.training.worker import FitsUpTo

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

ROWS = 200


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("rows"), ROWS)


def train(model: keras.Model, pattern: str, settings: Settings = SETTINGS, **arguments) -> dict[str, list[float]]:
    train_split, eval_split = (read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2))
    return Fit(model, train_split, eval_split, settings, ONE_DEVICE, seed=1, **arguments).run()


def whole(pattern: str) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """All rows as one batch."""
    split = read([pattern], DECODER, cache="memory")
    return split.rows.unpack(next(iter(split.evaluation(ROWS, Part()))))


def step_losses(logs: Path) -> list[float]:
    with (logs / "steps.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def changed(**settings) -> Settings:
    return dataclasses.replace(SETTINGS, **settings)


@pytest.mark.slow
def test_a_step_does_what_keras_does(pattern):
    ours, keras_own = functional(), functional()
    train(ours, pattern)
    split = read([pattern], DECODER, cache="memory")
    keras_own.fit(split.training(20, Part(), seed=1).unbatch().take(30).map(split.rows.unpack), verbose=0)
    judged = keras_own.evaluate(*whole(pattern), verbose=0, return_dict=True, batch_size=ROWS)
    assert ours.evaluate(*whole(pattern), verbose=0, return_dict=True, batch_size=ROWS) == pytest.approx(
        judged, rel=1e-4
    )


def test_the_history_has_every_epoch_and_every_step(pattern, tmp_path):
    history = train(functional(), pattern, logs=str(tmp_path))
    with (tmp_path / "history.csv").open() as file:
        epochs = list(csv.DictReader(file))
    assert [float(epoch["val_auc"]) for epoch in epochs] == history["val_auc"]
    assert len(epochs) == 3
    busy = {name for name in history if name.startswith(("cpu_", "machine_", "memory_", "accelerator_"))}
    assert set(history) - busy == {  # an epoch of less than a second may have no sample of these
        "loss",
        "auc",
        "val_loss",
        "val_auc",
        "learning_rate",
        "examples_per_second",
        "share_waited_for_input",
    }
    with (tmp_path / "steps.csv").open() as file:
        steps = list(csv.DictReader(file))
    assert [int(step["step"]) for step in steps] == list(range(30))
    assert [int(step["epoch"]) for step in steps] == [0] * 10 + [1] * 10 + [2] * 10
    assert [float(step["learning_rate"]) for step in steps] == pytest.approx([0.05] * 30)
    assert np.mean([float(step["loss"]) for step in steps[:10]]) == pytest.approx(history["loss"][0], rel=1e-5)
    assert history["loss"][2] < history["loss"][0]
    assert list(tmp_path.glob("train/events.*"))
    assert list(tmp_path.glob("steps/events.*"))


@pytest.mark.parametrize(("cache", "on_cpu"), [("memory", True), ("memory", False), ("none", False)])
def test_the_evaluation_is_that_of_the_eval_split(pattern, tmp_path, cache, on_cpu):
    other = write(tmp_path, 50, seed=2)
    splits = [read([files], DECODER, cache=cache, on_cpu=on_cpu) for files in (pattern, other)]
    model = functional()
    history = Fit(model, *splits, changed(epochs=1, batch_size=13), ONE_DEVICE, seed=1).run()
    judged = model.evaluate(*whole(other), verbose=0, return_dict=True, batch_size=50)
    assert {"loss": history["val_loss"][0], "auc": history["val_auc"][0]} == pytest.approx(judged, rel=1e-4)


class Traced(keras.layers.Layer):
    """Counts in how many graphs it is, in training and not."""

    def __init__(self):
        super().__init__()
        self.times = {True: 0, False: 0}

    def call(self, x, training=False):
        self.times[bool(training)] += 1
        return x


@pytest.mark.parametrize("early", [True, False])
def test_each_step_is_traced_once_be_the_eval_split_loaded_early_or_late(pattern, early):
    traced = Traced()
    inputs = {"x": keras.Input((2,), name="x")}
    model = compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(traced(inputs["x"]))))
    splits = [read([pattern], DECODER, cache="memory" if early else "none", on_cpu=early) for _ in range(2)]
    assert [split.examples for split in splits] == [ROWS, ROWS]  # waits for those in memory
    assert [split.is_loaded for split in splits] == [early, early]
    traced.times = {True: 0, False: 0}
    Fit(model, *splits, SETTINGS, ONE_DEVICE, seed=1).run()
    assert traced.times == {True: 1, False: 2}  # not in training, once to build the model as Keras does


def test_the_best_weights_are_restored_and_training_stops_when_patience_ends(pattern):
    model = functional(rate=3.0)
    history = train(model, pattern, changed(epochs=12, patience=2))
    best = int(np.argmax(history["val_auc"]))
    assert len(history["val_auc"]) in (best + 3, 12)
    judged = model.evaluate(*whole(pattern), verbose=0, return_dict=True, batch_size=ROWS)
    assert judged["auc"] == pytest.approx(history["val_auc"][best], abs=1e-4)


def test_tensorboard_files_go_to_the_folder_that_vertex_ai_shows_live(pattern, tmp_path):
    train(functional(), pattern, logs=str(tmp_path / "run"), tensorboard=str(tmp_path / "shown"))
    assert (tmp_path / "run/history.csv").exists()
    assert not list((tmp_path / "run").rglob("events.*"))
    assert {path.parent.name for path in (tmp_path / "shown").rglob("events.*")} == {"steps", "train", "validation"}


def arguments(code: str) -> SimpleNamespace:
    return SimpleNamespace(
        train_files=["a"],
        eval_files=["b"],
        transform_graph_path="graph",
        hyperparameters=None,
        custom_config={"epochs": 1},
        model_run_dir="/root/Trainer/model_run/7",
        code=code,
    )


def test_a_job_of_vertex_ai_names_the_folder_of_the_checkpoints(monkeypatch):
    fn_args = arguments("flights_run_fn-0.0+1a.whl")
    at_home = checkpoint_folder(fn_args)
    assert at_home.startswith("/root/Trainer/checkpoints/")
    monkeypatch.setenv("AIP_CHECKPOINT_DIR", "/bucket/job/checkpoints/")
    assert checkpoint_folder(fn_args) == f"/bucket/job/checkpoints/{at_home.rsplit('/', 1)[-1]}"


def test_a_training_by_other_code_does_not_go_on_where_this_one_was_killed():
    one, again, other = (checkpoint_folder(arguments(f"flights_run_fn-0.0+{code}.whl")) for code in ("1a", "1a", "2b"))
    assert one == again
    assert one != other


def test_a_build_model_that_forgets_to_return_its_model_is_told(pattern):
    with pytest.raises(TrainingError, match="build_model returns NoneType, expected a compiled keras.Model; return it"):
        train(None, pattern)


def test_a_checkpoint_that_does_not_fit_is_named(pattern, tmp_path):
    folder = tmp_path / "checkpoints/1a2b"

    class Killed(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(functional(), pattern, callbacks=[Killed()], checkpoints=str(folder))
    inputs = {"x": keras.Input((2,), name="x")}
    shallow = compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"])))
    measured_otherwise = functional()
    measured_otherwise.compile("adam", "binary_crossentropy", metrics=[keras.metrics.BinaryAccuracy(name="auc")])
    for other in (shallow, measured_otherwise):
        with pytest.raises(TrainingError, match=f"checkpoint in {folder} is of another model .*: delete that folder"):
            train(other, pattern, callbacks=[Killed()], checkpoints=str(folder))


def test_keras_callbacks_work(pattern, tmp_path):
    calls = []

    class Spy(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            calls.append(("begin", dict(self.params)))

        def on_train_batch_end(self, batch, logs=None):
            calls.append(("batch", batch, set(logs)))

        def on_epoch_end(self, epoch, logs=None):
            calls.append(("epoch", epoch, logs["val_auc"]))

    reduce_rate = keras.callbacks.ReduceLROnPlateau(monitor="val_auc", mode="max", patience=1, factor=0.1, min_delta=1)
    keep = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras"))
    history = train(functional(), pattern, callbacks=[Spy(), reduce_rate, keep])
    assert calls[0] == ("begin", {"verbose": 0, "epochs": 3, "steps": 10})
    assert calls[1:5] == [
        ("batch", 3, {"loss"}),
        ("batch", 7, {"loss"}),
        ("batch", 9, {"loss"}),
        ("epoch", 0, history["val_auc"][0]),
    ]
    assert history["learning_rate"] == pytest.approx([0.05, 0.05, 0.005])
    assert keras.models.load_model(tmp_path / "model.keras").count_params() == functional().count_params()


def test_gradients_of_several_batches_make_one_step(pattern, tmp_path):
    train(functional(), pattern, logs=str(tmp_path / "whole"))
    train(functional(), pattern, changed(batch_size=5, accumulate=4), logs=str(tmp_path / "parts"))
    np.testing.assert_allclose(step_losses(tmp_path / "parts"), step_losses(tmp_path / "whole"), atol=1e-6)


def with_limit(rows: int) -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = {"x": keras.Input((2,), name="x")}
    hidden = FitsUpTo(rows)(inputs["x"] * np.array([1.0, 0.001], "float32"))
    hidden = keras.layers.Dense(4, "relu")(hidden)
    return compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "accumulate"),
    [pytest.param(10, 2, marks=pytest.mark.long), (6, 4), pytest.param(1, 20, marks=pytest.mark.long)],
)
def test_what_does_not_fit_into_memory_is_computed_in_parts_with_the_same_result(
    pattern, tmp_path, caplog, limit, accumulate
):
    parts = changed(batch_size=20 // accumulate, accumulate=accumulate)
    train(with_limit(20), pattern, parts, logs=str(tmp_path / "parts"))
    assert "does not fit" not in caplog.text
    train(with_limit(limit), pattern, logs=str(tmp_path / "limited"))
    assert "with 20 examples per replica at a time: going on with 10 at a time, 2 times per step" in caplog.text
    assert f"going on with {20 // accumulate} at a time, {accumulate} times per step" in caplog.text
    assert step_losses(tmp_path / "limited") == step_losses(tmp_path / "parts")


@pytest.mark.slow
def test_memory_that_runs_out_in_the_middle_of_an_epoch_loses_no_step(pattern, tmp_path):
    train(with_limit(20), pattern, changed(batch_size=20), logs=str(tmp_path / "whole"))
    model = with_limit(20)

    class LessMemory(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 7:
                next(layer for layer in model.layers if isinstance(layer, FitsUpTo)).rows = 10

    train(model, pattern, logs=str(tmp_path / "limited"), callbacks=[LessMemory()])
    np.testing.assert_allclose(step_losses(tmp_path / "limited"), step_losses(tmp_path / "whole"), atol=1e-6)


@pytest.mark.slow
def test_an_example_that_does_not_fit_alone_is_an_error(pattern):
    with pytest.raises(OutOfMemoryError, match="with 1 examples per replica at a time: take a smaller model"):
        train(with_limit(0), pattern)


def test_a_loss_that_is_not_finite_stops_with_its_cause_and_leaves_the_weights(tmp_path):
    model = functional()
    kept = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept.append(model.get_weights())

    with pytest.raises(
        NonFiniteLossError, match=r"loss is .* in step \d+ \(epoch 0\): learning rate 0.05, largest"
    ) as e:
        train(model, write(tmp_path, ROWS, spoil=11), changed(steps_per_call=1), callbacks=[Keep()])
    assert "of dense" in str(e.value)
    for before, after in zip(kept[-1] if kept else functional().get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_clipping_bounds_the_step(pattern, tmp_path):
    model = functional()
    model.compile(keras.optimizers.SGD(1.0), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    before = model.get_weights()
    train(model, pattern, changed(epochs=1, batch_size=ROWS, clip_norm=0.001))
    moved = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(before, model.get_weights(), strict=True)))
    assert moved == pytest.approx(0.001, rel=1e-3)


def test_a_batch_larger_than_the_data_becomes_the_data(pattern, caplog):
    history = train(functional(), pattern, changed(batch_size=1000, epochs=2))
    assert "A batch of 1000 examples per replica is more than the data has: taking 200" in caplog.text
    assert len(history["loss"]) == 2


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_a_label_outside_the_classes_stops_with_one_sentence(pattern, cache):
    splits = [read([pattern], DECODER, classes=1, cache=cache) for _ in range(2)]
    with pytest.raises(
        TrainingError, match="^a label that is not one of the classes, in column y: expected 0 to 0; corr"
    ):
        Fit(functional(), *splits, SETTINGS, ONE_DEVICE, seed=1).run()


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_learns(pattern, precision):
    keras.config.set_dtype_policy(precision)
    try:
        keras.utils.set_random_seed(1)
        inputs = {"x": keras.Input((2,), name="x")}
        hidden = keras.layers.Dense(4, "relu")(inputs["x"] * np.array([1.0, 0.001], "float32"))
        assert hidden.dtype == precision.removeprefix("mixed_")
        model = compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid", dtype="float32")(hidden)))
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (precision == "mixed_float16")
    history = train(model, pattern, changed(clip_norm=10.0))
    assert history["val_auc"][-1] > 0.95


def test_sequential_and_subclassed_models_train(pattern):
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, "sigmoid")

        def call(self, inputs):
            return self.dense(inputs["x"] * np.array([1.0, 0.001], "float32"))

    class First(keras.layers.Layer):
        def call(self, inputs):
            return inputs["x"][:, :1]

    sequential = keras.Sequential([First(), keras.layers.Dense(1, "sigmoid")])
    for model in (Subclassed(), sequential):
        assert train(compiled(model), pattern)["val_auc"][-1] > 0.95


def test_a_schedule_inside_the_optimizer_stays(pattern):
    model = functional()
    model.compile(
        keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.1, 10, 1.0)),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
    )
    history = train(model, pattern, changed(schedule="cosine"))
    assert history["learning_rate"] == pytest.approx([0.1 / 1.9, 0.1 / 2.9, 0.1 / 3.9])


def test_a_profile_is_written_for_the_steps_asked_for(pattern, tmp_path):
    train(functional(), pattern, changed(profile=(3, 5)), logs=str(tmp_path))
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_a_profile_of_steps_after_the_last_is_a_warning(pattern, tmp_path, caplog):
    train(functional(), pattern, changed(profile=(100_000, 100_010)), logs=str(tmp_path))
    assert not list(tmp_path.glob("plugins/profile"))
    assert "no trace was written: training.profile=(100000, 100010) begins after the last step, which is" in caplog.text


def test_a_model_without_the_objective_is_refused(pattern):
    with pytest.raises(TrainingError, match="training.objective is 'f1', and the model has the metrics auc, loss"):
        train(functional(), pattern, changed(objective="f1"))


def test_a_model_that_is_not_compiled_is_refused(pattern):
    model = keras.Model(inputs := {"x": keras.Input((2,), name="x")}, keras.layers.Dense(1)(inputs["x"]))
    with pytest.raises(TrainingError, match="not compiled"):
        train(model, pattern)


def test_the_share_waited_for_input_is_that_of_a_slow_decoding_and_nearly_none_from_memory(tmp_path):
    pattern = write(tmp_path, ROWS)

    def slow(features):
        last = tf.while_loop(lambda i, _: i < 300, lambda i, x: (i + 1, tf.sin(x)), (0, features["x"]))[1]
        return {"x": features["x"] + 0.0 * last}

    def train_from(decoder: Decoder, cache: str) -> list[float]:
        splits = (read([pattern], each, cache=cache, on_cpu=True) for each in (decoder, DECODER))
        settings = changed(epochs=8)
        return Fit(functional(), *splits, settings, ONE_DEVICE, seed=1).run()["share_waited_for_input"]

    assert train_from(Decoder(SPEC, "y", slow), "none")[0] > 0.5
    # Without the first epoch, and without those that other load has disturbed.
    assert statistics.median(train_from(DECODER, "memory")[1:]) < 0.2
