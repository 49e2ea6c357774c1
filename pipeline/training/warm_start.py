"""Starting from the weights of an earlier model."""

import logging

import keras
import tensorflow as tf
import tensorflow_transform as tft

from pipeline.errors import first_line
from pipeline.training.errors import TrainingError

logger = logging.getLogger("pipeline.training")


def start_from(saved_model: str | None, model: keras.Model, transform_output: tft.TFTransformOutput) -> None:
    """Give a model the weights of one that ``export`` has written; without one it keeps its own.

    Raises:
        TrainingError: the earlier model has other layers, or the same with other shapes, or another vocabulary, whose
            words would get the embeddings of others.
    """
    if not saved_model:
        logger.info("No earlier model to start from: starting from random weights.")
        return
    changed = _changed_vocabularies(saved_model, transform_output)
    if changed:
        raise TrainingError(
            f"cannot start from {saved_model}: the vocabulary of {', '.join(changed)} has changed since, and its "
            "embeddings would stand for other words. Train with training.warm_start=False once"
        )
    checkpoint = tf.train.Checkpoint(model=model)
    try:
        status = checkpoint.read(f"{saved_model}/variables/variables")
        status.assert_existing_objects_matched()
    except (ValueError, AssertionError) as error:
        raise TrainingError(
            f"cannot start from {saved_model}: its weights are not those of this model "
            f"({first_line(error)}). Build the same layers, or train with training.warm_start=False once"
        ) from error
    logger.info("Starting from the weights of %s.", saved_model)


def _changed_vocabularies(saved_model: str, transform_output: tft.TFTransformOutput) -> list[str]:
    """Return the vocabularies of the new Transform that the saved model has with other contents."""
    changed = []
    for path in tf.io.gfile.glob(f"{transform_output.transform_savedmodel_dir}/assets/*"):
        name = path.rsplit("/", 1)[-1]
        earlier = f"{saved_model}/assets/{name}"
        if not tf.io.gfile.exists(earlier):
            continue
        with tf.io.gfile.GFile(path, "rb") as new, tf.io.gfile.GFile(earlier, "rb") as old:
            if new.read() != old.read():
                changed.append(name)
    return sorted(changed)
