"""Starting from an earlier model: its weights, or a refusal that says why."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import training
from pipeline.training import tabular
from pipeline.training.backbone import start_from
from pipeline.training.errors import TrainingError
from pipeline.training.features import Features
from tests.training.records import functional


def save(model: keras.Model, folder: Path, words: str) -> str:
    """A SavedModel with the model and a vocabulary, laid out as ``export`` does."""
    server = tf.Module()
    server.model, server.weights = model, [variable.value for variable in model.weights]
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


def start(folder: str | None, model: keras.Model, transform_output: SimpleNamespace) -> None:
    start_from(folder, model, transform_output, Features({"x": 2}, {}))


def test_the_weights_are_those_of_the_earlier_model(tmp_path):
    earlier, model = functional(), functional()
    earlier.set_weights([weight + 1 for weight in earlier.get_weights()])
    start(save(earlier, tmp_path / "earlier", "a b"), model, transform(tmp_path, "a b"))
    for ours, theirs in zip(model.get_weights(), earlier.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_of_an_earlier_model_no_graph_is_loaded_or_run(tmp_path):
    earlier, model = functional(), functional()
    earlier.set_weights([weight + 1 for weight in earlier.get_weights()])
    folder = save(earlier, tmp_path / "earlier", "a b")
    Path(folder, "saved_model.pb").unlink()
    start(folder, model, transform(tmp_path, "a b"))
    np.testing.assert_array_equal(model.get_weights()[0], earlier.get_weights()[0])


class Stack(keras.layers.Layer):
    """Layers in a list and by name, as many a layer of Keras has them."""

    def __init__(self):
        super().__init__()
        self.several = [keras.layers.Dense(2) for _ in range(2)]
        self.named = {"last": keras.layers.Dense(2)}

    def call(self, inputs):
        for layer in (*self.several, self.named["last"]):
            inputs = layer(inputs)
        return inputs


def test_layers_within_layers_start_from_the_earlier_ones_too(tmp_path):
    models = []
    for _ in range(2):
        inputs = {"x": keras.Input((2,), name="x")}
        hidden = keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization()])(Stack()(inputs["x"]))
        models.append(keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.1)(hidden))))
    earlier, model = models
    start(save(earlier, tmp_path / "earlier", "a b"), model, transform(tmp_path, "a b"))
    for ours, theirs in zip(model.weights, earlier.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)


def test_without_an_earlier_model_the_weights_stay(tmp_path):
    model = functional()
    before = model.get_weights()
    start(None, model, transform(tmp_path, "a b"))
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
        start(save(wider, tmp_path / "wider", "a b"), model, transform(tmp_path, "a b"))
    for ours, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


CATEGORIES = {"words": 4, "others": 3}


def with_words(
    features: Features, *, committee: bool = False, users: int = 1, layer: Any = keras.layers.Embedding
) -> keras.Model:
    """A network of an embedding of words, of another one, and of numbers."""
    inputs = features.inputs()
    parts = [layer(features.categories[name], 3)(inputs[name]) for name in ("words", "others")]
    parts += [keras.ops.cast(keras.ops.expand_dims(inputs["words"], 1), "float32")] * (users - 1)
    hidden = keras.layers.Concatenate()([*(keras.layers.Flatten()(part) for part in parts), inputs["x"]])
    if committee:
        return tabular.Committee(inputs, tabular.MemberDense(2, 1, "sigmoid")(tabular.SharedDense(2, 4)(hidden)))
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))


def answers(model: keras.Model, words: list[int]) -> np.ndarray:
    rows = len(words)
    inputs = {"words": np.array(words)[:, None], "others": np.ones((rows, 1), int), "x": np.ones((rows, 2), "float32")}
    return keras.ops.convert_to_numpy(model(inputs, training=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [{}, {"committee": True}, {"layer": training.embedding}],
    ids=["plain", "committee", "rows alone"],
)
def test_where_words_have_changed_the_model_answers_for_each_word_as_the_earlier_one(tmp_path, kind):
    features = Features({"x": 2}, CATEGORIES)
    earlier = with_words(features, **kind)
    folder = save(earlier, tmp_path / "earlier", "a\nb\nc\n")
    now = Features({"x": 2}, {**CATEGORIES, "words": 5})
    model = with_words(now, **kind)
    start_from(folder, model, transform(tmp_path, "c\nnew\na\nnewer\n"), now)
    # c, a, and a word that neither knows; new ones as that.
    np.testing.assert_allclose(answers(model, [0, 2, 4]), answers(earlier, [2, 0, 3]), rtol=1e-6)
    np.testing.assert_allclose(answers(model, [1, 3]), answers(earlier, [3, 3]), rtol=1e-6)
    assert len({float(answer) for answer in answers(model, [0, 2, 4]).ravel()}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("case", ["no embedding", "used twice", "no row for other words", "shared rows"])
def test_another_vocabulary_is_refused_where_rows_do_not_go_with_words(tmp_path, case):
    features = Features({"x": 2}, CATEGORIES)
    shared = functools.partial(training.embedding, placement="hashed", megabytes=24e-6)
    kind = {"layer": shared} if case == "shared rows" else {"users": 2} if case == "used twice" else {}
    model = with_words(features, **kind)
    words = {"no embedding": "b a", "used twice": "b\na\nc\n", "no row for other words": "b\na\nc\nd\n"}.get(
        case, "b\na\nc\n"
    )
    folder = save(with_words(features), tmp_path / "earlier", "a\nb\nc\n")
    before = model.get_weights()
    with pytest.raises(TrainingError, match="the vocabulary of words has changed since"):
        start_from(folder, model, transform(tmp_path, words), features)
    for ours, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
