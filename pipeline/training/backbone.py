"""Weights that a training starts from: of a network pretrained on other images, or of an earlier model."""

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

from pipeline.errors import first_line
from pipeline.model.export_format import BACKBONE, WEIGHTS
from pipeline.training.errors import TrainingError
from pipeline.training.features import Features
from pipeline.training.gradients import Embedding

NETWORKS = {
    "DenseNet121": "densenet",
    "EfficientNetV2B0": "efficientnet_v2",
    "EfficientNetV2S": "efficientnet_v2",
    "MobileNetV3Small": "mobilenet_v3",
    "MobileNetV3Large": "mobilenet_v3",
    "ResNet50": "resnet",
}


def backbone(
    network: str | keras.Model,
    weights: str | None = None,
    *,
    image_size: tuple[int, int] = (224, 224),
    trainable_layers: int | None = None,
) -> "Backbone":
    """Return a layer that maps images, uint8 [batch, height, width, 3], to features, float32 [batch, features].

    The layer includes the network's scaling of colours, so pass unscaled pixels. With ``weights``, batch normalisation
    keeps its pretrained statistics even if the last layers are trained (Keras guide "Transfer learning
    & fine-tuning").

    Args:
        network: One of ``NETWORKS`` in keras.applications, or a model of your own that maps images to features.
        weights: "imagenet"; a .weights.h5 file, or the folder of a model pushed by this pipeline, whose backbone is
            taken: here or gs://; None starts at random. Mostly ``features.weights``, from the config.
        image_size: Height and width, for a network of keras.applications.
        trainable_layers: How many of the last layers may be trained, after training.head_epochs; None: all of them
            where they start at random, else none.

    Raises:
        TrainingError: there is no such network or file, the weights are of another one, or "imagenet" cannot be
            downloaded.
    """
    if isinstance(network, str):
        network = _application(network, weights, image_size)
    if weights and weights != "imagenet":
        _load(network, weights)
    layers = _inner(network).layers
    if trainable_layers is None:
        trainable_layers = 0 if weights else len(layers)
    for layer in layers[: max(0, len(layers) - trainable_layers)]:
        layer.trainable = False
    return Backbone(network, pretrained=weights is not None)


class Backbone(keras.layers.Layer):
    """A network whose batch normalisation does not learn where it is ``pretrained``."""

    def __init__(self, network: keras.Model, pretrained: bool):
        super().__init__(name="backbone")
        self.network = network
        self.pretrained = pretrained

    def call(self, images: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return the features of images."""
        return self.network(images, training=False if self.pretrained else training)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the features."""
        return tuple(self.network.compute_output_shape(input_shape))


class Preprocess(keras.layers.Layer):
    """Colours of 0 to 255 → the range that a network of keras.applications was trained with."""

    def __init__(self, module: str):
        super().__init__(name="preprocess")
        self._module = getattr(keras.applications, module)

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Return images in the form that the network expects, float32."""
        return self._module.preprocess_input(keras.ops.cast(images, "float32"))


def backbone_of(model: keras.Model) -> Backbone | None:
    """Return the backbone among a model's layers, if it has one."""
    return next((layer for layer in model.layers if isinstance(layer, Backbone)), None)


def save(model: keras.Model, folder: str) -> None:
    """Write the weights of a model's backbone into the folder of a served model, if it has one."""
    layer = backbone_of(model)
    if layer is not None:
        tf.io.gfile.makedirs(os.path.dirname(f"{folder}/{BACKBONE}"))
        layer.network.save_weights(f"{folder}/{BACKBONE}")  # here or in a bucket


def _application(name: str, weights: str | None, image_size: tuple[int, int]) -> keras.Model:
    if name not in NETWORKS:
        raise TrainingError(f"no backbone {name!r}; there are {', '.join(NETWORKS)}, or give a keras.Model")
    try:
        network = getattr(keras.applications, name)(
            include_top=False,
            weights="imagenet" if weights == "imagenet" else None,
            input_shape=(*image_size, 3),
            pooling="avg",
        )
    except Exception as error:
        if weights != "imagenet":
            raise
        raise TrainingError(
            f"cannot download the ImageNet weights of {name}: {first_line(error)}. Where there is no network, download "
            "them elsewhere and say training.backbone_weights=FILE in the config, here or gs://"
        ) from error
    images = keras.Input((*image_size, 3), dtype="uint8", name="images")
    return keras.Model(images, network(Preprocess(NETWORKS[name])(images)), name=name)


def _inner(network: keras.Model) -> keras.Model:
    """Return the network of keras.applications without the layers that prepare the colours; any other as it is."""
    return network.layers[-1] if isinstance(network.layers[-1], keras.Model) else network


def _load(network: keras.Model, weights: str) -> None:
    file = f"{weights.rstrip('/')}/{BACKBONE}" if tf.io.gfile.isdir(weights) else weights
    if not tf.io.gfile.exists(file):
        raise TrainingError(
            f"no weights of a backbone at {file}; expected a .weights.h5 file, or the folder of a pushed model with a "
            "backbone"
        )
    with tempfile.TemporaryDirectory() as scratch:
        local = os.path.join(scratch, "backbone.weights.h5" if file.endswith(".weights.h5") else "backbone.h5")
        tf.io.gfile.copy(file, local)
        try:
            # A file of keras.applications has the weights of the network alone.
            (network if file.endswith(os.path.basename(BACKBONE)) else _inner(network)).load_weights(local)
        except (ValueError, OSError, KeyError) as error:
            raise TrainingError(
                f"the weights in {file} are not those of {network.name}: {first_line(error)}"
            ) from error


logger = logging.getLogger("pipeline.training")


def start_from(
    saved_model: str | None, model: keras.Model, transform_output: tft.TFTransformOutput, features: Features
) -> None:
    """Load the weights of a model that ``export`` has written; without one, keep the model's own.

    If a vocabulary has changed, the rows of its embedding move with their words, and a new word begins with the row for
    unknown words: the model answers as the earlier one does.

    Raises:
        TrainingError: the earlier model has other weights, or other shapes of them; or the words of a changed
            vocabulary are not rows of exactly one embedding.
    """
    if not saved_model:
        logger.info("No earlier model to start from: starting from random weights.")
        return
    changed = _changed_vocabularies(saved_model, transform_output)
    tables = {name: _table_of(name, len(now), model, features) for name, (_, now) in changed.items()}
    refused = sorted(name for name, table in tables.items() if table is None)
    if refused:
        raise TrainingError(
            f"cannot start from {saved_model}: the vocabulary of {', '.join(refused)} has changed since, and its "
            "embeddings would stand for other words: only those of one Embedding of the input of that name, with a "
            "row for each word and one for all others, go with their words. Train with training.warm_start=False once"
        )
    words = {id(table): changed[name] for name, table in tables.items()}
    # Not by TensorFlow's Checkpoint of a model, which silently skips layers that a layer of Keras has in a list.
    saved = tf.train.load_checkpoint(f"{saved_model}/variables/variables")
    shapes = saved.get_variable_to_shape_map()
    names = [f"{WEIGHTS}/{number}/.ATTRIBUTES/VARIABLE_VALUE" for number in range(len(model.weights))]
    _check(saved_model, shapes, dict(zip(names, model.weights, strict=True)), words)
    for name, variable in zip(names, model.weights, strict=True):
        values = saved.get_tensor(name)
        variable.assign(_rows_of_words(values, *words[id(variable)]) if id(variable) in words else values)
    if changed:
        logger.info("The vocabulary of %s has changed: rows of embeddings went with words.", ", ".join(sorted(changed)))
    logger.info("Starting from the weights of %s.", saved_model)


def _check(
    saved_model: str,
    shapes: Mapping[str, Sequence[int]],
    variables: Mapping[str, keras.Variable],
    words: Mapping[int, tuple[list[bytes], list[bytes]]],
) -> None:
    """Raise a TrainingError unless a saved model has weights of the shapes of variables, by their names in it."""
    count = sum(name.startswith(f"{WEIGHTS}/") for name in shapes)
    found = ""
    if not count:
        found = "it has no list of them: it has only trees, or is of an earlier version of this pipeline"
    for name, variable in variables.items():
        expected = list(variable.shape)
        if id(variable) in words:
            before, now = words[id(variable)]
            expected[0] += len(before) - len(now)
        if not found and list(shapes.get(name, ())) != expected:
            there = f"has the shape {list(shapes[name])}" if name in shapes else "is not there"
            found = f"{variable.path}, {expected} in this model, {there}"
    if not found and count > len(variables):
        found = f"it has {count}, this model {len(variables)}"
    if found:
        raise TrainingError(
            f"cannot start from {saved_model}: its weights are not those of this model ({found}). Build the same "
            "layers, or train with training.warm_start=False once"
        )


def _changed_vocabularies(
    saved_model: str, transform_output: tft.TFTransformOutput
) -> dict[str, tuple[list[bytes], list[bytes]]]:
    """Return the words before and now of the vocabularies that the saved model has with other contents, by name."""
    changed = {}
    for path in tf.io.gfile.glob(f"{transform_output.transform_savedmodel_dir}/assets/*"):
        name = path.rsplit("/", 1)[-1]
        earlier = f"{saved_model}/assets/{name}"
        if not tf.io.gfile.exists(earlier):
            continue
        with tf.io.gfile.GFile(path, "rb") as new, tf.io.gfile.GFile(earlier, "rb") as old:
            before, now = old.read(), new.read()
        if before != now:
            changed[name] = before.splitlines(), now.splitlines()
    return changed


def _table_of(name: str, words: int, model: keras.Model, features: Features) -> keras.Variable | None:
    """Return the rows of the one embedding of a vocabulary; None if that is not certain."""
    inputs_of = {  # in all calls of a layer in the model
        operation: [tensor.name for node in operation._inbound_nodes for tensor in node.input_tensors]
        for operation in getattr(model, "operations", ())
        if not isinstance(operation, keras.layers.InputLayer)
    }
    users = [operation for operation, names in inputs_of.items() if name in names]
    if len(users) != 1 or len(inputs_of[users[0]]) != 1:
        return None
    rows = None
    if isinstance(users[0], keras.layers.Embedding):
        rows = users[0].input_dim
    elif isinstance(users[0], Embedding) and users[0].rows == users[0].size:
        rows = users[0].size
    # A row for each word and one for all others; before them one for filling up, where numbers of words vary.
    if not rows == features.categories.get(name) == words + 1 + (name in features.padded):
        return None
    return users[0].weights[0]


def _rows_of_words(rows: np.ndarray, before: list[bytes], now: list[bytes]) -> np.ndarray:
    """Return the rows of today's words; a new one has the row for unknown words, the last one."""
    first = len(rows) - len(before) - 1  # of the words
    places = {word: first + place for place, word in enumerate(before)}
    return rows[[*range(first), *(places.get(word, len(rows) - 1) for word in now), len(rows) - 1]]
