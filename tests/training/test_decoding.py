"""Inputs of a model: images, texts and sequences beside numbers, decoded once and kept."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_sample_images

from pipeline.training import decode_image, strategy
from pipeline.training.decoding import Decoder
from pipeline.training.errors import TrainingError
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from pipeline.training.rows import Rows
from pipeline.training.strategy import Part
from tests.encoded import encoded
from tests.training import pictures

LABEL = {"y": tf.io.FixedLenFeature([1], tf.int64)}
WORDS = {"words": tf.io.VarLenFeature(tf.int64), "x": tf.io.FixedLenFeature([2], tf.float32), **LABEL}
ONE_DEVICE = strategy.choose("one_device")


def example(**features) -> bytes:
    made = {}
    for name, values in features.items():
        if isinstance(values[0], bytes):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif isinstance(values[0], int):
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def unpacked(rows: Rows, *records: bytes) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    return rows.unpack(rows.parse(tf.constant(records)))


def test_sequences_are_filled_up_with_zeros_that_stand_for_nothing_else():
    rows = Rows(Decoder(WORDS, "y", sequence_length=4))
    features, label = unpacked(
        rows, example(words=[0, 7], x=[1.0, 2.0], y=[1]), example(words=[5, 4, 3, 2, 1], x=[3.0, 4.0], y=[0])
    )
    assert features["words"].numpy().tolist() == [[1, 8, 0, 0], [6, 5, 4, 3]]
    assert features["x"].numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert label.numpy().tolist() == [[1], [0]]


def test_a_label_that_preprocessing_fn_does_not_return_is_named():
    with pytest.raises(TrainingError, match=r"returns no 'z', the label, but words, x, y; .* outputs\['z'\] = inputs"):
        Decoder(WORDS, "z")


def test_an_example_without_any_word_is_all_padding():
    rows = Rows(Decoder(WORDS, "y", sequence_length=3))
    features, _ = unpacked(rows, example(x=[1.0, 2.0], y=[1]))
    assert features["words"].numpy().tolist() == [[0, 0, 0]]


def test_decode_makes_the_features_and_all_types_survive_packing():
    spec = {"image": tf.io.FixedLenFeature([1], tf.string), "words": tf.io.VarLenFeature(tf.int64), **LABEL}

    def decode(features):
        image = tf.ensure_shape(tf.io.decode_raw(features["image"][0], tf.uint8), [5])
        return {
            "image": tf.reshape(image, [5, 1]),
            "words": features["words"],
            "most": tf.reduce_max(features["words"]),
            "share": tf.cast(image[:3], tf.float32) / 255,
            "small": tf.cast(image[:2], tf.int32) - 1,
        }

    rows = Rows(Decoder(spec, "y", decode, sequence_length=3))
    features, label = unpacked(
        rows, *(example(image=[bytes([n, 0, 255, 3, 4])], words=[n, 9], y=[n]) for n in range(3))
    )
    assert features["image"].dtype == tf.uint8
    assert features["image"][2, :, 0].numpy().tolist() == [2, 0, 255, 3, 4]
    assert features["words"].numpy().tolist() == [[1, 10, 0], [2, 10, 0], [3, 10, 0]]
    assert features["most"].numpy().tolist() == [9, 9, 9]
    assert features["share"][0].numpy().tolist() == [0.0, 0.0, 1.0]
    assert features["small"].numpy().tolist() == [[-1, -1], [0, -1], [1, -1]]
    assert label.numpy().tolist() == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (None, "preprocessing_fn returns 'image' as string of shape"),
        (lambda features: features, "decode returns 'image' as string"),
        (lambda features: features["image"], "expected a dictionary of tensors"),
        (lambda features: {"image": features["picture"]}, "decode fails for the features image string"),
        (lambda features: {"x": tf.random.uniform([2])}, "decode uses random numbers"),
        (lambda features: {"x": tf.zeros([2], tf.float64)}, "decode returns 'x' as float64"),
    ],
)
def test_what_no_model_takes_is_refused_with_the_remedy(decode, message):
    spec = {"image": tf.io.FixedLenFeature([1], tf.string), **LABEL}
    with pytest.raises(TrainingError, match=message):
        Decoder(spec, "y", decode)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["memory", "disk", "none"])
def test_images_are_decoded_before_they_are_kept(tmp_path, cache):
    pattern = pictures.write(tmp_path, slice(0, 100))
    decoder = Decoder(pictures.SPEC, "digit", pictures.decode)
    split = read([pattern], decoder, classes=10, cache=cache, scratch=str(tmp_path))
    images, labels = split.rows.unpack(split.rows.pick(next(iter(split.evaluation(100, Part())))))
    data = pictures.load_digits()
    np.testing.assert_array_equal(images["image"][..., 0], data.images[:100] * 15)
    np.testing.assert_array_equal(labels[:, 0], data.target[:100])


def trained(pattern: str, checkpoints: str | None = None, callbacks=(), **settings) -> keras.Model:
    """Trains with augmentation."""
    decoder = Decoder(pictures.SPEC, "digit", pictures.decode)
    splits = [read([pattern], decoder, cache="memory") for _ in range(2)]
    with ONE_DEVICE.strategy.scope():
        model = pictures.model()
        fit = Fit(
            model,
            *splits,
            dataclasses.replace(pictures.SETTINGS, **settings),
            ONE_DEVICE,
            seed=1,
            callbacks=callbacks,
            augment=pictures.augment,
            checkpoints=checkpoints,
        )
        fit.run()
    return model


@pytest.mark.slow
def test_a_training_with_augmentation_is_the_same_every_time_and_another_one_without(tmp_path, monkeypatch):
    pattern = pictures.write(tmp_path, slice(0, 160))
    first, second = (trained(pattern).get_weights() for _ in range(2))
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    monkeypatch.setattr(pictures, "augment", lambda features, label: (features, label))
    assert not np.array_equal(trained(pattern).get_weights()[0], first[0])


class Stop(Exception):
    """The end of a process."""


class StopIn(keras.callbacks.Callback):
    """Ends the training in the second epoch."""

    def __init__(self, call: int | None = None):
        super().__init__()
        self.call = call
        self.calls = 0

    def on_train_batch_begin(self, batch, logs=None):
        """Counts calls."""
        self.calls += 1
        if self.calls == self.call:
            raise Stop


@pytest.mark.slow
def test_a_training_with_augmentation_goes_on_as_if_nothing_had_happened(tmp_path):
    pattern = pictures.write(tmp_path / "data", slice(0, 160))
    whole = trained(pattern)
    with pytest.raises(Stop):
        trained(pattern, str(tmp_path / "checkpoints"), [StopIn(5)], checkpoint_steps=4)
    resumed = trained(pattern, str(tmp_path / "checkpoints"), [StopIn()], checkpoint_steps=4)
    for ours, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (lambda features, label: features, "augment returns dict"),
        (lambda features, label: ({}, label), "augment returns the features"),
        (lambda features, label: ({"image": features["image"][:, :4]}, label), "augment returns 'image' of shape"),
        (
            lambda features, label: ({"image": features["image"] + tf.cast(tf.random.uniform([]), tf.uint8)}, label),
            "augment uses RandomUniform of TensorFlow",
        ),
    ],
)
@pytest.mark.slow
def test_an_augmentation_that_cannot_be_is_refused(tmp_path, monkeypatch, augment, message):
    monkeypatch.setattr(pictures, "augment", augment)
    with pytest.raises(TrainingError, match=message):
        trained(pictures.write(tmp_path, slice(0, 100)))


@pytest.mark.slow
def test_the_served_model_decodes_bit_by_bit_as_the_training_does(tmp_path):
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    records = []
    for number, photo in enumerate(photos):
        records.append(example(image=[encoded(photo, "JPEG")], y=[number]))
    with tf.io.TFRecordWriter(str(tmp_path / "photos")) as writer:
        for record in records:
            writer.write(record)
    spec = {"image": tf.io.FixedLenFeature([1], tf.string), **LABEL}
    decoder = Decoder(spec, "y", lambda features: {"image": decode_image(features["image"], 100, 77, crop=True)})
    split = read([str(tmp_path / "photos")], decoder, cache="memory")
    images, _ = split.rows.unpack(split.rows.pick(next(iter(split.evaluation(2, Part())))))

    served = tf.Module()
    served.decode = tf.function(
        lambda serialized: decoder(tf.io.parse_example(serialized, spec)), [tf.TensorSpec([None], tf.string)]
    )
    tf.saved_model.save(served, str(tmp_path / "model"))
    again = tf.saved_model.load(str(tmp_path / "model")).decode(tf.constant(records))
    assert len(np.unique(images["image"])) > 200
    np.testing.assert_array_equal(again["image"], images["image"])


def test_features_of_varying_length_are_known():
    spec = {"words": tf.io.VarLenFeature(tf.int64), "y": tf.io.FixedLenFeature([1], tf.int64)}
    assert Decoder(spec, "y").padded == {"words"}
