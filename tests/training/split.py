"""A training split over two devices, `python -m tests.training.split PATTERN FOLDER`.

TensorFlow logs the device of everything that it runs.
"""

import dataclasses
import json
import sys
from pathlib import Path

import keras
import tensorflow as tf

from pipeline import training
from pipeline.training import strategy
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from tests.training.records import DECODER, SETTINGS, compiled


def deep() -> keras.Model:
    """A network of four blocks."""
    keras.utils.set_random_seed(1)
    inputs = {"x": keras.Input((2,), name="x")}
    layers = [
        keras.Sequential(
            [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)],
            name=f"block_{number}",
        )
        for number in range(4)
    ]
    return compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(training.blocks(layers)(inputs["x"]))))


def main(pattern: str, folder: str) -> None:
    """Trains and writes where the variables are, and the losses."""
    tf.debugging.set_log_device_placement(True)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    distribution = strategy.choose("split")
    splits = [read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2)]
    with distribution.strategy.scope():
        model = deep()
    settings = dataclasses.replace(SETTINGS, strategy="split", recompute=True)
    fit = Fit(model, *splits, settings, distribution, seed=1, logs=folder)
    fit.run()
    variables = [*model.variables, *model.optimizer.variables]
    devices = {variable.path: variable.value.device for variable in variables}
    Path(folder, "devices.json").write_text(json.dumps(devices))


if __name__ == "__main__":
    main(*sys.argv[1:])
