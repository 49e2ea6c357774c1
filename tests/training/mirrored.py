"""A training on two devices that exchange large gradients, `python -m tests.training.mirrored PATTERN FOLDER`."""

import dataclasses
import sys

import keras
import tensorflow as tf

from pipeline.training import observation, strategy
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from tests.training.records import DECODER, SETTINGS


def main(pattern: str, folder: str) -> None:
    """Trains a layer of 16 million weights with two rows per device and step: a sum of 64 MiB for little computing."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    observation.TIMES_COMPILING = 0
    distribution = strategy.choose("mirrored")
    splits = [read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2)]
    with distribution.strategy.scope():
        inputs = {"x": keras.Input((2,), name="x")}
        hidden = keras.layers.Embedding(2_000_000, 8)(keras.ops.cast(inputs["x"] > 0, "int32"))
        hidden = keras.layers.Flatten()(hidden)
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
        model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    settings = dataclasses.replace(SETTINGS, epochs=8, patience=8, batch_size=50, steps_per_call=32)
    Fit(model, splits[0], splits[1], settings, distribution, seed=1, logs=folder).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
