"""A training is measured by its own steps and its own input, whatever the label and the features are."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.costs.measured import TrainingMeasured
from pipeline.costs.performance import Trainings
from pipeline.settings.checks import from_json
from pipeline.training import probe, strategy
from pipeline.training.decoding import Decoder
from pipeline.training.input_pipeline import read
from pipeline.training.settings import Settings
from tests.training import pictures, records

pytestmark = pytest.mark.slow

ONE_DEVICE = strategy.choose("one_device")
ROWS = 200


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures less: what is measured is looked at, not how well."""
    monkeypatch.setattr(probe, "MOST_SECONDS", 0.2)


def measured(model: keras.Model, decoder: Decoder, pattern: str, settings: Settings, **more) -> TrainingMeasured:
    splits = [read([pattern], decoder, cache="memory", on_cpu=True, classes=len(settings.classes)) for _ in range(2)]
    training = probe.Training(model, *splits, settings, ONE_DEVICE, 1, more.get("augment"))
    return probe.measure(training, decoder, [pattern])


def check(found: TrainingMeasured, sizes: list[int]) -> None:
    (speed,) = found.speeds
    assert [size for size, _ in speed.steps] == sizes
    assert [each.examples for each in found.work] == sizes
    assert all(seconds > 0 for _, seconds in speed.steps)
    assert min(speed.evaluation_row, speed.input_row, speed.loading_row) > 0
    assert all(later.flops > earlier.flops > 0 for earlier, later in zip(found.work, found.work[1:], strict=False))
    assert 0 < Trainings(found).step_here(found.batch_size, 1) < 60


def test_two_classes(tmp_path: Path):
    with ONE_DEVICE.strategy.scope():
        model = records.functional()
    found = measured(model, records.DECODER, records.write(tmp_path, ROWS), records.SETTINGS)
    check(found, [3, 10, 20, 40])
    assert found.gradient_bytes == 4 * (2 * 4 + 4 + 4 + 1)
    assert found.row_bytes == 4 * (2 + 2)
    assert not found.loops


def test_no_batch_is_larger_than_the_data(tmp_path: Path):
    with ONE_DEVICE.strategy.scope():
        model = records.functional()
    settings = dataclasses.replace(records.SETTINGS, batch_size=1_024)
    check(measured(model, records.DECODER, records.write(tmp_path, 150), settings), [128, 150])


def test_a_number_as_label_and_steps_of_several_batches(tmp_path: Path):
    with tf.io.TFRecordWriter(str(tmp_path / "rows")) as writer:
        for x in np.random.default_rng(1).normal(size=(ROWS, 2)).astype("float32"):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                "y": tf.train.Feature(float_list=tf.train.FloatList(value=[x.sum()])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    decoder = Decoder({"x": records.SPEC["x"], "y": tf.io.FixedLenFeature([1], tf.float32)}, "y")
    with ONE_DEVICE.strategy.scope():
        inputs = {"x": keras.Input((2,), name="x")}
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
        model.compile("adam", "mse", metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])
    settings = dataclasses.replace(records.SETTINGS, objective="rmse", accumulate=2)
    found = measured(model, decoder, str(tmp_path / "rows"), settings)
    check(found, [6, 20, 40, 80])
    assert found.batch_size == 40


def test_images_that_are_decoded_and_changed(tmp_path: Path):
    with ONE_DEVICE.strategy.scope():
        model = pictures.model()
    decoder = Decoder(pictures.SPEC, "digit", pictures.decode)
    pattern = pictures.write(tmp_path, slice(0, 100))
    found = measured(model, decoder, pattern, pictures.SETTINGS, augment=pictures.augment)
    check(found, [2, 8, 16, 32])
    # Decoding costs more than taking what is decoded.
    assert found.speeds[0].loading_row > found.speeds[0].input_row


def test_a_measurement_is_written_and_read_as_it_was(tmp_path: Path):
    with ONE_DEVICE.strategy.scope():
        model = records.functional()
    pattern, to = records.write(tmp_path / "rows", ROWS), tmp_path / "measured.json"
    splits = [read([pattern], records.DECODER, cache="memory", on_cpu=True) for _ in range(2)]
    training = probe.Training(model, *splits, records.SETTINGS, ONE_DEVICE, 1, None)
    probe.write(training, records.DECODER, [pattern], str(to))
    found = from_json(TrainingMeasured, to.read_text(encoding="utf-8"))
    assert isinstance(found, TrainingMeasured)
    assert found.speeds[0].steps[0][0] == 3
