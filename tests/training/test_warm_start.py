"""Starting from an earlier model: its weights, or a refusal that says why."""

from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.training.errors import TrainingError
from pipeline.training.warm_start import start_from
from tests.training.records import functional


def save(model: keras.Model, folder: Path, words: str) -> str:
    """A SavedModel with the model and a vocabulary, laid out as ``export`` does."""
    server = tf.Module()
    server.model = model
    vocabulary = folder / "words"
    folder.mkdir()
    vocabulary.write_text(words)
    server.asset = tf.saved_model.Asset(str(vocabulary))
    tf.saved_model.save(server, str(folder / "saved"))
    return str(folder / "saved")


def transform(folder: Path, words: str) -> SimpleNamespace:
    (folder / "transform/assets").mkdir(parents=True)
    (folder / "transform/assets/words").write_text(words)
    return SimpleNamespace(transform_savedmodel_dir=str(folder / "transform"))


def test_the_weights_are_those_of_the_earlier_model(tmp_path):
    earlier, model = functional(), functional()
    earlier.set_weights([weight + 1 for weight in earlier.get_weights()])
    start_from(save(earlier, tmp_path / "earlier", "a b"), model, transform(tmp_path, "a b"))
    for ours, theirs in zip(model.get_weights(), earlier.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_of_an_earlier_model_no_graph_is_loaded_or_run(tmp_path):
    earlier, model = functional(), functional()
    earlier.set_weights([weight + 1 for weight in earlier.get_weights()])
    folder = save(earlier, tmp_path / "earlier", "a b")
    Path(folder, "saved_model.pb").unlink()
    start_from(folder, model, transform(tmp_path, "a b"))
    np.testing.assert_array_equal(model.get_weights()[0], earlier.get_weights()[0])


def test_without_an_earlier_model_the_weights_stay(tmp_path):
    model = functional()
    before = model.get_weights()
    start_from(None, model, transform(tmp_path, "a b"))
    for ours, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_other_shapes_are_refused_and_the_weights_stay(tmp_path):
    inputs = {"x": keras.Input((2,), name="x")}
    hidden = keras.layers.Dense(7, "relu")(inputs["x"] * np.array([1.0, 0.001], "float32"))
    wider = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model = functional()
    before = model.get_weights()
    with pytest.raises(
        TrainingError, match=r"cannot start from .*saved: its weights are not those of this model \(.*7"
    ):
        start_from(save(wider, tmp_path / "wider", "a b"), model, transform(tmp_path, "a b"))
    for ours, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_another_vocabulary_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="the vocabulary of words has changed since"):
        start_from(save(functional(), tmp_path / "earlier", "a b"), functional(), transform(tmp_path, "b a"))
