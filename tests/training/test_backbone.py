"""A network that has learnt other images helps where there are few."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.model.export_format import BACKBONE
from pipeline.training import backbone, decode_image, strategy
from pipeline.training.backbone import save
from pipeline.training.decoding import Decoder
from pipeline.training.errors import TrainingError
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from tests.training import pictures

pytestmark = pytest.mark.slow
ONE_DEVICE = strategy.choose("one_device")


# Of images on which a digit stands anywhere: what it takes to find it can be learnt from other digits.
SIDE = 28


def network(normalised: bool = False) -> keras.Model:
    """A small convolutional network that does not care where a digit stands."""
    images = keras.Input((SIDE, SIDE, 1), dtype="uint8", name="images")
    hidden = keras.layers.Rescaling(1 / 255)(images)
    for filters, stride in ((24, 1), (32, 2)):
        hidden = keras.layers.Conv2D(filters, 3, stride, activation="relu")(hidden)
    if normalised:
        hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Conv2D(96, 3, activation="relu")(keras.layers.MaxPooling2D()(hidden))
    return keras.Model(images, keras.layers.GlobalMaxPooling2D()(hidden), name="small")


def decode(features):
    """PNG → pixels."""
    return {"image": decode_image(features["image"], SIDE, SIDE, 1)}


def model(network: keras.Model, rate: float = 3e-3, weights: str | None = None, **options) -> keras.Model:
    """A backbone with a head for five digits."""
    inputs = {"image": keras.Input((SIDE, SIDE, 1), dtype="uint8", name="image")}
    features = backbone(network, weights, **options)(inputs["image"])
    return pictures.compiled(keras.Model(inputs, keras.layers.Dense(5, "softmax")(features)), rate)


def train(network: keras.Model, train: str, evaluate: str, callbacks=(), **settings) -> dict[str, list[float]]:
    decoder = Decoder(pictures.SPEC, "digit", decode)
    splits = [read([files], decoder, cache="memory") for files in (train, evaluate)]
    changed = dataclasses.replace(pictures.SETTINGS, **{"patience": 100, **settings})
    return Fit(network, *splits, changed, ONE_DEVICE, seed=1, callbacks=callbacks).run()


def write(folder: Path, rows: slice, **arguments) -> str:
    return pictures.write(folder, rows, side=SIDE, **arguments)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model that knows the digits from 0 to 4."""
    folder = tmp_path_factory.mktemp("earlier")
    files = write(folder / "digits", slice(None), digits=range(5), times=4)
    keras.utils.set_random_seed(1)
    with ONE_DEVICE.strategy.scope():
        learnt = model(network())
        train(learnt, files, files, epochs=6, batch_size=32)
    save(learnt, str(folder / "model"))
    return str(folder / "model")


@pytest.mark.long
def test_what_was_learnt_of_other_digits_helps_with_few_images(earlier, tmp_path):
    few = write(tmp_path / "few", slice(0, 100), digits=range(5, 10), counted_from=5)
    many = write(tmp_path / "many", slice(100, None), digits=range(5, 10), counted_from=5)
    transfer = {"head_epochs": 4, "fine_tuning_rate": 0.2}
    accuracy: dict[str, list[float]] = {"scratch": [], "transfer": []}
    for seed in range(5):
        for kind, found in accuracy.items():
            keras.utils.set_random_seed(seed)
            with ONE_DEVICE.strategy.scope():
                if kind == "scratch":
                    history = train(model(network()), few, many, epochs=8)
                else:
                    made = model(network(), 2e-2, earlier, trainable_layers=100)
                    history = train(made, few, many, epochs=8, **transfer)
            found.append(history["val_accuracy"][-1])
    scratch, transferred = (np.array(found) for found in accuracy.values())
    assert transferred.mean() - scratch.mean() > max(np.ptp(scratch), np.ptp(transferred)), accuracy


def test_the_head_learns_alone_and_then_the_last_layers_with_it(tmp_path):
    few = write(tmp_path / "few", slice(0, 100), digits=range(5, 10), counted_from=5)
    with ONE_DEVICE.strategy.scope():
        keras.utils.set_random_seed(1)
        save(model(network(normalised=True)), str(tmp_path / "model"))
        made = model(network(normalised=True), weights=str(tmp_path / "model"), trainable_layers=3)
        (layer,) = (layer for layer in made.layers if layer.name == "backbone")
        seen: list[list[np.ndarray]] = []

        def look(*_) -> None:
            seen.append([weight.numpy() for weight in layer.network.weights])

        look()
        head = made.layers[-1].kernel.numpy()
        train(made, few, few, [keras.callbacks.LambdaCallback(on_epoch_end=look)], epochs=2, head_epochs=1)
    before, of_the_head, after = seen
    assert not np.array_equal(made.layers[-1].kernel.numpy(), head)
    for ours, theirs in zip(of_the_head, before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # The moving averages of batch normalisation stay as they were learnt, and so do the layers before the last three.
    changed = [not np.array_equal(ours, theirs) for ours, theirs in zip(after, before, strict=True)]
    names = [weight.path.split("/")[-2].split("_")[0] for weight in layer.network.weights]
    assert changed == [False] * 8 + [True] * 2, list(zip(names, changed, strict=True))


def test_a_known_network_takes_pixels_as_they_are():
    layer = backbone("MobileNetV3Small", image_size=(32, 32))
    answer = layer(np.zeros((2, 32, 32, 3), np.uint8))
    assert answer.shape == (2, 576)
    assert layer.compute_output_shape((None, 32, 32, 3)) == (None, 576)


def test_the_last_layers_of_a_known_network_are_counted_in_the_network_itself(tmp_path):
    keras.applications.MobileNetV3Small(
        include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg"
    ).save_weights(tmp_path / "known.weights.h5")
    layer = backbone("MobileNetV3Small", str(tmp_path / "known.weights.h5"), image_size=(32, 32), trainable_layers=10)
    inner = next(part for part in layer.network.layers if isinstance(part, keras.Model))
    assert [part.trainable for part in inner.layers] == [False] * (len(inner.layers) - 10) + [True] * 10
    assert 0 < len(layer.trainable_variables) < 10


@pytest.mark.parametrize("name", ["DenseNet121", "ResNet50"])
def test_colours_are_prepared_once_as_the_network_wants_them(name):
    layer = backbone(name, image_size=(32, 32))
    pixels = np.random.default_rng(0).integers(0, 255, (1, 32, 32, 3)).astype(np.uint8)
    inner = next(part for part in layer.network.layers if isinstance(part, keras.Model))
    module = {"DenseNet121": keras.applications.densenet, "ResNet50": keras.applications.resnet}[name]
    expected = inner(module.preprocess_input(pixels.astype(np.float32)), training=False)
    np.testing.assert_allclose(layer(pixels, training=False), expected, rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_there_or_of_another_network_are_refused(earlier, tmp_path):
    with pytest.raises(TrainingError, match=r"no weights of a backbone at .*nothing"):
        backbone(network(), str(tmp_path / "nothing"))
    other = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(3, 5)], name="other")
    with pytest.raises(TrainingError, match="are not those of other"):
        backbone(other, earlier)
    with pytest.raises(TrainingError, match="no backbone 'DenseNet999'; there are DenseNet121"):
        backbone("DenseNet999")


def test_a_download_that_is_impossible_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(
        TrainingError, match=r"cannot download the ImageNet weights of MobileNetV3Small.*backbone_weights"
    ):
        backbone("MobileNetV3Small", "imagenet", image_size=(32, 32))


def test_a_model_without_a_backbone_leaves_no_weights_of_one(tmp_path):
    with ONE_DEVICE.strategy.scope():
        save(pictures.model(), str(tmp_path))
    assert not tf.io.gfile.exists(f"{tmp_path}/{BACKBONE}")
