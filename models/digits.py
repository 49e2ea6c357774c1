"""Digits: which of ten handwritten digits an image shows.

This is the file to edit. TFX calls ``preprocessing_fn`` in Transform, ``tuner_fn`` in the Tuner and ``run_fn`` in the
Trainer; each step runs again only when code that it uses has changed.
"""

import keras
from keras import layers

from pipeline import training

SIZE = 16  # pixels; twice that of the files, so that a digit can be moved by less than one of theirs
CLASSES = 10  # as many as label.classes in configs/digits.py


def preprocessing_fn(inputs, custom_config):
    """Raw features → model features, in training and serving alike: images stay as they are until ``decode``."""
    label = custom_config["label"]
    return {label: inputs[label], "image": inputs["image"]}


def decode(features):
    """One image, as the file is → pixels, in training and serving alike."""
    return {"image": training.decode_image(features["image"], SIZE, SIZE, channels=1)}


# What another hand could have done to a digit; mirrored it would be none. Left empty is white on these black images.
CHANGES = [
    layers.RandomTranslation(0.1, 0.1, fill_mode="constant"),
    layers.RandomRotation(0.04, fill_mode="constant"),  # of a full turn: 14 degrees
    layers.RandomZoom(0.1, 0.1, fill_mode="constant"),
]


def augment(features, label):
    """Images [batch, height, width, channels] of one training step, changed at random."""
    image = features["image"]
    for change in CHANGES:
        image = change(image, training=True)
    return {"image": image}, label


def build_model(hp, features):
    """A small convolutional network; ``hp`` names what the Tuner may vary, and the default of each."""
    filters = hp.Choice("filters", [16, 32, 48], default=32)
    dropout = hp.Float("dropout", 0.1, 0.5, step=0.1, default=0.3)
    learning_rate = hp.Float("learning_rate", 5e-4, 3e-3, sampling="log", default=2e-3)

    inputs = features.inputs()
    hidden = layers.Rescaling(1 / 255)(inputs["image"])  # [batch, 16, 16, 1]
    hidden = convolution(hidden, filters, 5, strides=2)  # [batch, 8, 8, filters]
    hidden = convolution(hidden, 2 * filters, 3)
    hidden = layers.MaxPooling2D()(hidden)  # [batch, 4, 4, 2 * filters]
    hidden = convolution(hidden, 2 * filters, 3)
    hidden = layers.Dropout(dropout)(layers.Flatten()(hidden))
    hidden = layers.Dropout(dropout)(layers.Dense(4 * filters, "relu")(hidden))
    model = keras.Model(inputs, layers.Dense(CLASSES, "softmax", dtype="float32")(hidden))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=1e-3),
        loss="sparse_categorical_crossentropy",
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model


def convolution(images, filters, size, strides=1):
    """Images → one value for each of some filters at each place, normalised."""
    hidden = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(images)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(hidden))


def tuner_fn(fn_args):
    """Searches the values that ``build_model`` leaves open."""
    return training.tune(fn_args, build_model, decode=decode, augment=augment)


def run_fn(fn_args):
    """Trains with the best values found, and exports."""
    training.run(fn_args, build_model, decode=decode, augment=augment)
