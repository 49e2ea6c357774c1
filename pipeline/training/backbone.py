"""Transfer learning: a network pretrained on other images, in front of trainable layers."""

import os
import tempfile

import keras
import tensorflow as tf

from pipeline.errors import first_line
from pipeline.model.export_format import BACKBONE
from pipeline.training.errors import TrainingError

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
