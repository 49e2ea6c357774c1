"""Trainings made to suffer, and what is said about them: real steps over small real data."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.training import observation, probes, stopwatch, strategy
from pipeline.training.decoding import Decoder
from pipeline.training.diagnosis import Measured, diagnose
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from pipeline.training.probes import seconds_of
from pipeline.training.settings import Settings
from tests.training.records import DECODER, SETTINGS, SPEC, compiled, functional, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = 4_000
ONE_DEVICE = strategy.choose("one_device")


@pytest.fixture(autouse=True)
def scope(monkeypatch):
    # These trainings take about as long as compiling them, and a probe costs a tenth of that.
    monkeypatch.setattr(observation, "TIMES_COMPILING", 0)
    with ONE_DEVICE.strategy.scope():
        yield


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("rows"), ROWS)


def changed(**settings) -> Settings:
    return dataclasses.replace(SETTINGS, **{"batch_size": 100, "steps_per_call": 32, "patience": 100, **settings})


def train(
    folder: Path,
    model: keras.Model,
    pattern: str,
    settings: Settings,
    decoder: Decoder = DECODER,
    cache: str = "memory",
    **arguments,
) -> dict:
    """Train; return the diagnosis that was written."""
    splits = read([pattern], decoder, cache=cache, on_cpu=True), read([pattern], DECODER, cache="memory", on_cpu=True)
    Fit(model, *splits, settings, ONE_DEVICE, seed=1, logs=str(folder), **arguments).run()
    return json.loads((folder / "diagnosis.json").read_text())


def share(diagnosis: dict, part: str) -> float:
    """Part of the time after the start: what compiling takes depends most on what else the machine does."""
    return diagnosis["seconds"].get(part, 0.0) / without_the_start(diagnosis)


def wide(width: int = 2048) -> keras.Model:
    """A network whose steps are computing and little else."""
    keras.utils.set_random_seed(1)
    inputs = {"x": keras.Input((2,), name="x")}
    hidden = keras.layers.Dense(width, "relu")(inputs["x"] * np.array([1.0, 0.001], "float32"))
    hidden = keras.layers.Dense(width, "relu")(hidden)
    return compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden)), rate=1e-4)


def without_the_start(diagnosis: dict) -> float:
    """Seconds without loading and compiling, which no setting here changes."""
    return sum(value for part, value in diagnosis["seconds"].items() if "loading" not in part and part != "compiling")


def of_steps(diagnosis: dict) -> float:
    """Seconds of the parts that a larger batch shortens, by the sentence; evaluation and the rest gain, too."""
    return sum(diagnosis["seconds"].get(part, 0.0) for part in ("computing", "Python between the steps"))


def shortest_of_each(*trainings: Callable[[Path], dict], folder: Path) -> list[dict]:
    """Train each twice, in turns; return the diagnosis of the shorter, which other load has disturbed less."""
    rounds = [[training(folder / str(number)) for training in trainings] for number in range(2)]
    return [min(found, key=without_the_start) for found in zip(*rounds, strict=True)]


def expected_gain(diagnosis: dict) -> float:
    """Seconds that the sentence says the remedy would save."""
    share = float(diagnosis["sentence"].rsplit("about ", 1)[1].split(" %")[0]) / 100
    return share * sum(diagnosis["seconds"].values())


def test_of_a_healthy_training_nothing_stands_out(pattern, tmp_path, caplog):
    found = train(tmp_path, wide(), pattern, changed(epochs=4))
    assert found["sentence"].startswith("No setting would make it much shorter: of ")
    assert "computing" in found["sentence"]
    assert share(found, "computing") > 0.5
    # TensorFlow counts the traces of all trainings of this process together, and so warns of the tests before.
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert not [text for text in warnings if "triggered tf.function retracing" not in text]


@pytest.mark.long
def test_a_slow_decoding_asks_for_a_cache_and_gains_what_is_expected(pattern, tmp_path, caplog):
    def slow(features):
        last = tf.while_loop(lambda i, _: i < 100, lambda i, x: (i + 1, tf.sin(x)), (0, features["x"]))[1]
        return {"x": features["x"] + 0.0 * last}

    settings, decoder = changed(epochs=5), Decoder(SPEC, "y", slow)
    found, better = shortest_of_each(
        lambda folder: train(folder / "none", functional(), pattern, settings, decoder, cache="none"),
        lambda folder: train(folder / "memory", functional(), pattern, settings, decoder, cache="memory"),
        folder=tmp_path,
    )
    assert 'for decoding: training.cache="memory" would save about' in found["sentence"]
    assert found["sentence"] in caplog.text
    # More than expected: the first epoch is decoded while the step is compiled.
    assert without_the_start(found) - without_the_start(better) > 0.7 * expected_gain(found)


def test_a_call_that_other_load_has_disturbed_does_not_count(monkeypatch):
    now, waits = [0.0], iter([0.25, 0.5, 0.75, 0.25, 0.5, 0.5])
    monkeypatch.setattr(probes, "time", SimpleNamespace(perf_counter=lambda: now[-1]))
    assert seconds_of(lambda: now.append(now[-1] + next(waits))) == 0.25


def test_tiny_batches_ask_for_larger_ones_and_gain_what_is_expected(pattern, tmp_path, monkeypatch):
    # By processor time: one of the two may meet more other load than the other.
    for module in (probes, stopwatch):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=time.process_time))
    # So many epochs that the steps outweigh what compiling takes on a busy machine.
    found = train(tmp_path / "tiny", functional(), pattern, changed(epochs=15, batch_size=4))
    better = train(tmp_path / "larger", functional(), pattern, changed(epochs=15, batch_size=16))
    assert (
        "Batches of 4 are too small to keep the processor busy: training.batch_size=16 would save" in found["sentence"]
    )
    saved = of_steps(found) - of_steps(better)
    assert saved == pytest.approx(expected_gain(found), rel=0.7)


@pytest.mark.long
def test_a_python_function_in_the_step_is_named(pattern, tmp_path):
    def lookup(x: np.ndarray) -> np.ndarray:
        time.sleep(0.1)
        return x

    def augment(features, label):
        x = tf.numpy_function(lookup, [features["x"]], tf.float32)
        return {"x": tf.ensure_shape(x, features["x"].shape)}, label

    found = train(tmp_path, functional(), pattern, changed(epochs=4), augment=augment)
    assert found["sentence"].startswith("lookup (test_diagnosis.py, line ")
    assert "every step calls back in Python" in found["sentence"]
    assert share(found, "Python functions inside the step") > 0.6


@pytest.mark.long
def test_a_slow_callback_is_named_and_called_less_often(pattern, tmp_path):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.2)

    found = train(tmp_path, functional(), pattern, changed(epochs=3, steps_per_call=2), callbacks=[Slow()])
    assert found["sentence"].startswith("The callback Slow.on_train_batch_end takes ")
    assert "training.steps_per_call=8" in found["sentence"]


@pytest.mark.long
def test_a_function_that_is_traced_again_and_again_is_named(pattern, tmp_path):
    class Score(keras.callbacks.Callback):
        calls = 0

        @tf.function
        def score(self, x, number):
            for _ in range(100):
                x = tf.sin(x) * number
            return x

        def on_train_batch_end(self, batch, logs=None):
            self.calls += 1
            self.score(tf.constant(1.0), self.calls)

    score = Score()
    found = train(tmp_path, functional(), pattern, changed(epochs=4, steps_per_call=2), callbacks=[score])
    assert score.score.experimental_get_tracing_count() > 20
    assert found["sentence"].startswith("score is traced again and again, "), found
    assert "tensors in place of its Python arguments" in found["sentence"]
    # Most of the time in the callback is that of the traces, and counts as theirs.
    assert share(found, "callbacks") < share(found, "tracing again what was compiled")


@pytest.mark.long
def test_an_all_reduce_that_dominates_is_measured_and_asks_for_fewer_of_them(tmp_path):
    """In a process of its own: devices are made before anything else of TensorFlow."""
    command = [sys.executable, "-m", "tests.training.mirrored", write(tmp_path / "rows", 1_600), str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    found = json.loads((tmp_path / "diagnosis.json").read_text())
    assert found["sentence"].startswith("Summing the gradients over 2 devices takes ")
    assert "training.accumulate=4, or a batch_size 4 times as large, would save about" in found["sentence"]


def said(**measured) -> str:
    """The sentence about a training of 100 s, of which what is given took its part."""
    seconds = {"steps": 100 - sum(measured["seconds"].values()), **measured.pop("seconds")}
    return diagnose(Measured(seconds=seconds, steps=1000, **measured)).sentence


@pytest.mark.parametrize(
    ("measured", "sentence"),
    [
        (
            {"waited": (6.0, 35.0), "decodes": True, "cache": "none", "possible_cache": "disk"},
            'The model waits 41 % for decoding: training.cache="disk" would save about 35 %.',
        ),
        (
            {"waited": (6.0, 35.0), "cache": "none", "possible_cache": "none"},
            'The model waits 41 % for examples: training.cache="disk", on a machine with the disk space for it, would '
            "save about 35 %.",
        ),
        (
            {"waited": (40.0, 2.0), "cache": "disk", "decodes": True},
            "The model waits 42 % for decoding: half the work in decode(features) of the module file, or a machine "
            "(configs/machines.py) with twice the cores, would save about 21 %.",
        ),
        (
            {"growth": 1.5, "batch_size": 32, "replicas": 4},
            "Batches of 32 per device are too small to keep the processor busy: training.batch_size=128 would save "
            "about 62 %.",
        ),
        (
            {"seconds": {"compiling": 60.0}, "times_halved": 2, "batch_size": 16, "accumulate": 4},
            "A step was compiled 3 times until it fitted into memory: training.batch_size=16 and training.accumulate=4 "
            "would save about 40 %.",
        ),
        (
            {"seconds": {"between": 50.0}, "steps_per_call": 1},
            "Python between the calls of 1 steps takes 50 %: training.steps_per_call=32 would save about 48 %.",
        ),
        (
            {"seconds": {"checkpoints": 40.0}, "saves": (20, 15)},
            "Checkpoints take 40 %: training.checkpoint_steps=None, to save after epochs only, would save about 30 %.",
        ),
        (
            {"seconds": {"evaluation": 50.0}},
            "Evaluation after each epoch takes 50 %: half the rows in the eval split (data.split_by or data.splits) "
            "would save about 25 %.",
        ),
        ({"growth": 3.0, "batch_size": 512}, "No setting would make it much shorter: of 100 s, computing 100 %."),
        (
            {"seconds": {"compiling": 90.0}},
            "No setting would make it much shorter: of 100 s, compiling 90 %, computing 10 %.",
        ),
    ],
)
def test_each_finding_names_the_setting_to_change(measured, sentence):
    assert said(**{"seconds": {}, **measured}) == sentence


def test_what_saves_less_than_seconds_is_no_finding():
    found = diagnose(Measured(seconds={"steps": 0.5, "evaluation": 1.5}))
    assert found.sentence == "No setting would make it much shorter: of 2 s, evaluation 75 %, computing 25 %."
    assert not found.stands_out
