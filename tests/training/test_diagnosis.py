"""Trainings made to suffer, and what is said about them: real steps over small real data."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.training import strategy
from pipeline.training.decoding import Decoder
from pipeline.training.history import Measured, diagnose
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from pipeline.training.settings import Settings
from tests.training.records import DECODER, SETTINGS, SPEC, compiled, functional, write

pytestmark = pytest.mark.slow

ROWS = 4_000
ONE_DEVICE = strategy.choose("one_device")


@pytest.fixture(autouse=True)
def scope():
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
    assert "would save" not in found["sentence"]
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


@pytest.mark.long
def test_slow_callbacks_ask_for_less_work_and_fewer_calls(pattern, tmp_path):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.2)

    found = train(tmp_path, functional(), pattern, changed(epochs=3, steps_per_call=2), callbacks=[Slow()])
    assert found["sentence"].startswith("Callbacks take ")
    assert "training.steps_per_call=8, which makes fewer calls after batches," in found["sentence"]


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
            {"seconds": {"summing": 40.0}, "accumulate": 2},
            "Summing the gradients over the workers takes 40 %: training.accumulate=8, or a batch_size 4 times as "
            "large, would save about 30 %.",
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
            {"seconds": {"saving": 10.0, "saving within epochs": 30.0}},
            "Checkpoints within epochs take 30 %: training.checkpoint_steps=None, to save after epochs only, would "
            "save about 30 %.",
        ),
        (
            {"seconds": {"evaluation": 50.0}},
            "Evaluation after each epoch takes 50 %: half the rows in the eval split (data.split_by or data.splits) "
            "would save about 25 %.",
        ),
        (
            {"calls": 100, "call": 0.2, "steps_per_call": 10},
            "Python between the calls of 10 steps takes 20 %: training.steps_per_call=40 would save about 15 %.",
        ),
        (
            {"seconds": {"saving": 19.0, "evaluation": 19.0}},
            "Computing limits the training (62 % of 100 s, 62.0 ms a step): try a larger training.batch_size or a "
            "faster machine; training.profile shows the operations.",
        ),
        (
            {"seconds": {"compiling": 90.0}},
            "No setting would make the training much shorter: of 100 s, compiling 90 %, computing 10 %.",
        ),
    ],
)
def test_each_finding_names_the_setting_to_change(measured, sentence):
    assert said(**{"seconds": {}, **measured}) == sentence


def test_what_saves_less_than_seconds_is_no_finding():
    found = diagnose(Measured(seconds={"steps": 0.5, "evaluation": 1.5}))
    assert found.sentence == "No setting would make the training much shorter: of 2 s, evaluation 75 %, computing 25 %."
    assert not found.stands_out
