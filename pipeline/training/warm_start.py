"""Start from the weights of an earlier model."""

import logging
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

from pipeline.model.export_format import WEIGHTS
from pipeline.training.errors import TrainingError
from pipeline.training.features import Features
from pipeline.training.gradients import Embedding

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
