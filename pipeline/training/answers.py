"""Make the answers that are served of a model's output, with what the eval split decides about them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.settings.tasks import ANSWERS, HIGH, LABEL_SET, LOW, task_of
from pipeline.training import calibration, conformal
from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import BATCH, Ensemble, answering
from pipeline.training.errors import TrainingError
from pipeline.training.input_pipeline import Split, each_row
from pipeline.training.settings import Settings
from pipeline.training.thresholds import choose_threshold

logger = logging.getLogger("pipeline.training")


class Answers:
    """What a signature answers, of a model's output [batch, 1 or classes].

    What ``tasks.ANSWERS`` says, float32; and of classes ``label``, the class in words, [batch]: of two, by the
    threshold; of more, the most probable. Where a coverage is asked for, of numbers ``prediction_low`` and
    ``prediction_high``, float32 [batch], and of classes ``label_set``: whether each is in the set, [batch, classes].

    Args:
        classes: In words, in the order of their numbers; empty where the label is a number.
        threshold: Of two classes, the probability from which the answer is the second.
        interval: Of numbers, what is added to the prediction for its lowest and its highest value.
        calibrate: Of classes, makes probabilities of the output, [batch, 1 or classes], those that are answered.
        least: Of classes, the least probability of those in a set; the label always is.
        fitted: What the model and its report say about that, for ``export_format.FITTED``.
    """

    def __init__(
        self,
        classes: Sequence[str],
        threshold: float = 0.5,
        *,
        calibrate: Callable[[tf.Tensor], tf.Tensor] | None = None,
        interval: tuple[float, float] | None = None,
        least: float | None = None,
        fitted: Mapping[str, Any] | None = None,
    ):
        self.classes, self.threshold, self.interval, self.least = tuple(classes), threshold, interval, least
        self._calibrate, self.fitted = calibrate, dict(fitted or {})

    def __call__(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the answers by name, [batch, ...].

        Raises:
            TrainingError: the output does not fit the classes.
        """
        task = task_of(len(self.classes))
        _check_shape(list(output.shape), len(self.classes))
        output = self.calibrated(output)
        answers = tf.cast(output if task == "multiclass" else output[:, 0], tf.float32)
        if task == "regression":
            bounds = {LOW: answers + self.interval[0], HIGH: answers + self.interval[1]} if self.interval else {}
            return {ANSWERS[task]: answers, **bounds}
        chosen = tf.argmax(answers, axis=1) if task == "multiclass" else tf.cast(answers >= self.threshold, tf.int64)
        found = {ANSWERS[task]: answers, "label": tf.gather(tf.constant(list(self.classes)), chosen)}
        if self.least is not None:
            shares = answers if task == "multiclass" else tf.stack([1 - answers, answers], axis=1)
            found[LABEL_SET] = (shares >= self.least) | tf.one_hot(chosen, len(self.classes), True, False)
        return found

    def calibrated(self, output: tf.Tensor) -> tf.Tensor:
        """Return the probabilities that are answered, [batch, 1 or classes]; numbers as they are."""
        return self._calibrate(output) if self._calibrate else output


def fit(
    model: keras.Model, decoder: Decoder, evaluate: Split, settings: Settings, ensemble: Ensemble | None = None
) -> Answers:
    """Decide on the eval split what the settings leave to it.

    Every worker does so, for reading some variables of the network takes all of them.

    Args:
        model: Trained.
        decoder: Of the transformed features.
        evaluate: The eval split.
        settings: Of the training.
        ensemble: Trees that answer with the model, or alone.

    Raises:
        TrainingError: the eval split has no answer to what is asked.
    """
    classes, threshold = settings.classes, settings.threshold
    if isinstance(threshold, int | float) and settings.coverage is None and settings.calibration == "none":
        return Answers(classes, threshold, fitted={"threshold": threshold} if len(classes) == 2 else {})
    answer, at_once = answering(model, decoder, ensemble), settings.batch_size if decoder.decodes else BATCH
    output, labels, weights = _asked(answer, evaluate, at_once)
    _check_shape(list(output.shape), len(classes))
    fitted: dict[str, Any] = {}
    found: list[str] = []
    calibrate = None
    if settings.calibration != "none":
        calibrate, sentence = calibration.fit(settings.calibration, output, labels, weights)
        output = np.asarray(calibrate(tf.constant(output)))
        found.append(sentence)
    if not isinstance(threshold, int | float):
        threshold, sentence = choose_threshold(threshold, output[:, 0], labels, weights)
        found.append(sentence)
    if len(classes) == 2:
        fitted["threshold"] = threshold
    interval = least = None
    if settings.coverage is not None:
        asked = f"{100 * settings.coverage:g} % of the rows, fitted on the eval split"
        fitted |= {"coverage": settings.coverage, "rows": len(labels)}
        if classes:
            least = conformal.least_probability(output, labels, settings.coverage)
            found.append(f"sets for {asked}: classes of a probability from {least:.3g}")
        else:
            interval = conformal.interval(output[:, 0], labels, settings.coverage)
            low, high = interval
            found.append(f"intervals for {asked}: prediction {low:+.4g} to prediction {high:+.4g}")
    for sentence in found:
        logger.info("%s.", sentence[0].upper() + sentence[1:])
    fitted["found"] = found
    return Answers(classes, threshold, calibrate=calibrate, interval=interval, least=least, fitted=fitted)


def _check_shape(shape: list[int | None], classes: int) -> None:
    """Raise TrainingError unless a model's output, [batch, values], fits the number of classes."""
    width = classes if task_of(classes) == "multiclass" else 1
    if len(shape) != 2 or shape[1] != width:
        raise TrainingError(
            f"the model answers {shape} for a label of {classes or 'no'} classes; expected [batch, {width}]: correct "
            "build_model, or label.classes in the config"
        )


def _asked(
    answer: Callable[[Mapping[str, tf.Tensor]], tf.Tensor], split: Split, at_once: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the answers to all rows of a split, float32 [rows, 1 or classes], and labels and any weights, [rows]."""
    answers, labels, weights = [], [], []
    for features, label, weight in each_row(split, at_once):
        answers.append(np.asarray(answer(features), np.float32))
        labels.append(label)
        weights.append(weight)
    return np.concatenate(answers), np.concatenate(labels), None if weights[0] is None else np.concatenate(weights)
