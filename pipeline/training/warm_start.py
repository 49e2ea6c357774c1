"""Starting from the weights of an earlier model."""

import logging
from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

from pipeline.errors import first_line
from pipeline.training.errors import TrainingError
from pipeline.training.features import Features

logger = logging.getLogger("pipeline.training")


def start_from(
    saved_model: str | None,
    model: keras.Model,
    transform_output: tft.TFTransformOutput,
    features: Features,
    build: Callable[[Features], keras.Model],
) -> None:
    """Give a model the weights of one that ``export`` has written; without one it keeps its own.

    Where a vocabulary has changed, the rows of its ``Embedding`` go with their words, and a new word begins with the
    row that the earlier model had for words it did not know: the model answers as the earlier one does.

    Args:
        saved_model: Address of the earlier model.
        model: Built for the features of today.
        transform_output: Of today.
        features: Of today.
        build: Builds the same model for other features, here with the earlier vocabularies.

    Raises:
        TrainingError: the earlier model has other layers, or the same with other shapes; or a vocabulary has changed
            that is not that of one ``Embedding``, and words would get the rows of others.
    """
    if not saved_model:
        logger.info("No earlier model to start from: starting from random weights.")
        return
    changed = _changed_vocabularies(saved_model, transform_output)
    embeddings = {name: _embedding_of(name, len(now), model, features) for name, (_, now) in changed.items()}
    refused = sorted(name for name, place in embeddings.items() if place is None)
    if refused:
        raise TrainingError(
            f"cannot start from {saved_model}: the vocabulary of {', '.join(refused)} has changed since, and its "
            "embeddings would stand for other words: only those of one Embedding of the input of that name, with a row "
            "for words that it lacks, go with their words. Train with training.warm_start=False once"
        )
    more = {name: len(before) - len(now) for name, (before, now) in changed.items()}
    sizes = {name: size + more.get(name, 0) for name, size in features.categories.items()}
    earlier = build(replace(features, categories=sizes)) if changed else model
    checkpoint = tf.train.Checkpoint(model=earlier)
    try:
        status = checkpoint.read(f"{saved_model}/variables/variables")
        status.assert_existing_objects_matched()
    except (ValueError, AssertionError) as error:
        raise TrainingError(
            f"cannot start from {saved_model}: its weights are not those of this model "
            f"({first_line(error)}). Build the same layers, or train with training.warm_start=False once"
        ) from error
    if changed:
        weights = {place: name for name, place in embeddings.items()}
        for place, (layer, before) in enumerate(zip(model.layers, earlier.layers, strict=True)):
            values = before.get_weights()
            if place in weights:
                values = [_rows_of_words(values[0], *changed[weights[place]])]
            layer.set_weights(values)
        logger.info("The vocabulary of %s has changed: rows of embeddings went with words.", ", ".join(sorted(changed)))
    logger.info("Starting from the weights of %s.", saved_model)


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


def _embedding_of(name: str, words: int, model: keras.Model, features: Features) -> int | None:
    """Return the place among the layers of the one embedding of a vocabulary; None where that is not certain."""
    users = [operation for operation in getattr(model, "operations", ()) if name in _inputs_of(operation)]
    if len(users) != 1 or not isinstance(users[0], keras.layers.Embedding) or len(_inputs_of(users[0])) != 1:
        return None
    # A row for each word and one for all others; before them one for filling up, where numbers of words vary.
    if not users[0].input_dim == features.categories.get(name) == words + 1 + (name in features.padded):
        return None
    return next(place for place, layer in enumerate(model.layers) if layer is users[0])


def _inputs_of(operation: keras.Operation) -> list[str]:
    """Return the names of the tensors that an operation takes, wherever the model calls it."""
    if isinstance(operation, keras.layers.InputLayer):
        return []
    return [tensor.name for node in operation._inbound_nodes for tensor in node.input_tensors]


def _rows_of_words(rows: np.ndarray, before: list[bytes], now: list[bytes]) -> np.ndarray:
    """Return the rows of the words of today; a new one has that of all that the vocabulary lacked, the last one."""
    first = len(rows) - len(before) - 1  # of the words
    places = {word: first + place for place, word in enumerate(before)}
    return rows[[*range(first), *(places.get(word, len(rows) - 1) for word in now), len(rows) - 1]]
