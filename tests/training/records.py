"""Small TFRecord files, and a model that learns from them."""

import functools
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import fit_trees, with_trees
from pipeline.training.settings import Settings

SPEC = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([1], tf.int64)}
DECODER = Decoder(SPEC, "y")
SETTINGS = Settings(
    label="y",
    objective="auc",
    epochs=3,
    batch_size=20,
    patience=5,
    schedule="constant",
    warmup_epochs=0.0,
    strategy="one_device",
    seed=1,
    steps_per_call=4,
)


def write(folder: Path, rows: int, files: int | Sequence[int] = 1, spoil: int | None = None, seed: int = 1) -> str:
    """Writes rows of x = two numbers, y = whether the first is above 0; ``spoil`` is infinite. Returns the pattern.

    ``files`` is their number, or the number of rows in each.
    """
    x = np.random.default_rng(seed).normal(size=(rows, 2)).astype("float32")
    x[:, 1] = np.arange(rows)  # tells the rows apart
    if spoil is not None:
        x[spoil, 0] = np.inf
    folder.mkdir(parents=True, exist_ok=True)
    ends = files if isinstance(files, int) else np.cumsum(files)[:-1]
    for number, part in enumerate(np.array_split(np.arange(rows), ends)):
        options = tf.io.TFRecordOptions(compression_type="GZIP")
        with tf.io.TFRecordWriter(str(folder / f"part-{number}.gz"), options) as writer:
            for row in part:
                features = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=x[row])),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(x[row, 0] > 0)])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return f"{folder}/*"


def compiled(model: keras.Model, rate: float = 0.05) -> keras.Model:
    """Compiles a model for these rows."""
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def functional(rate: float = 0.05) -> keras.Model:
    """A network of one hidden layer."""
    keras.utils.set_random_seed(1)
    inputs = {"x": keras.Input((2,), name="x")}
    hidden = keras.layers.Dense(4, "relu")(inputs["x"] * np.array([1.0, 0.001], "float32"))
    return compiled(keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden)), rate)


def ensemble_of(model, decoder, features, train, evaluate, settings):
    """Fit trees and weigh them and a network; None where trees have nothing to learn from."""
    fitted = functools.partial(fit_trees, features, train, evaluate, settings)
    return with_trees(model, decoder, fitted, features, evaluate, settings)
