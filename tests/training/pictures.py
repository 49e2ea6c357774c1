"""scikit-learn's handwritten digits as TFRecords of PNG files, and a model that learns them."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_digits

from pipeline.training import decode_image
from pipeline.training.settings import Settings
from tests.encoded import encoded

SPEC = {"image": tf.io.FixedLenFeature([1], tf.string), "digit": tf.io.FixedLenFeature([1], tf.int64)}
SETTINGS = Settings(
    label="digit",
    objective="accuracy",
    epochs=3,
    batch_size=16,
    schedule="constant",
    warmup_epochs=0.0,
    strategy="one_device",
    steps_per_call=4,
    classes=tuple("0123456789"),
)
SHIFT = keras.layers.RandomTranslation(0.1, 0.1, fill_mode="constant")


def png(pixels: np.ndarray) -> bytes:
    """Encodes grey values of 0 to 16."""
    return encoded(Image.fromarray((pixels * 15).astype(np.uint8)))


def somewhere(pixels: np.ndarray, side: int, random: np.random.Generator) -> np.ndarray:
    """Puts a digit anywhere on a larger image."""
    top, left = random.integers(0, side - 8, 2)
    image = np.zeros((side, side))
    image[top : top + 8, left : left + 8] = pixels
    return image


def write(
    folder: Path, rows: slice, digits: range = range(10), counted_from: int = 0, side: int = 8, times: int = 1
) -> str:
    """Writes some of the digits, on larger images anywhere, as often as asked for; returns the pattern of the files."""
    data = load_digits()
    random = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [row for row in range(len(data.target)) if data.target[row] in digits][rows]
    with tf.io.TFRecordWriter(str(folder / "part-0")) as writer:
        for row in chosen * times:
            pixels = somewhere(data.images[row], side, random) if side > 8 else data.images[row]
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png(pixels)])),
                "digit": tf.train.Feature(int64_list=tf.train.Int64List(value=[data.target[row] - counted_from])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return f"{folder}/*"


def decode(features):
    """PNG → pixels."""
    return {"image": decode_image(features["image"], 8, 8, 1)}


def augment(features, label):
    """Shifted digits."""
    return {"image": SHIFT(features["image"])}, label


def model(classes: int = 10) -> keras.Model:
    """A small convolutional network."""
    keras.utils.set_random_seed(1)
    inputs = {"image": keras.Input((8, 8, 1), dtype="uint8", name="image")}
    hidden = keras.layers.Rescaling(1 / 255)(inputs["image"])
    hidden = keras.layers.Conv2D(16, 3, activation="relu", padding="same")(hidden)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    return compiled(keras.Model(inputs, keras.layers.Dense(classes, "softmax")(hidden)))


def compiled(network: keras.Model, rate: float = 3e-3) -> keras.Model:
    """Compiles a model of classes."""
    network.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network
