"""Make the answers that are served of a model's output, with what the eval split decides about them."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.settings.gates import AtLeast, Costs
from pipeline.settings.tasks import ANSWERS, task_of
from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import BATCH, Ensemble, answering
from pipeline.training.errors import TrainingError
from pipeline.training.input_pipeline import Split, evaluation_steps
from pipeline.training.settings import Settings
from pipeline.training.strategy import Part

logger = logging.getLogger("pipeline.training")


class Answers:
    """What a signature answers, of a model's output [batch, 1 or classes].

    What ``tasks.ANSWERS`` says, float32; and of classes ``label``, the class in words, [batch]: of two, by the
    threshold; of more, the most probable.

    Args:
        classes: In words, in the order of their numbers; empty where the label is a number.
        threshold: Of two classes, the probability from which the answer is the second.
        fitted: What the eval split has decided, for ``export_format.FITTED``.
    """

    def __init__(self, classes: Sequence[str], threshold: float = 0.5, fitted: Mapping[str, Any] | None = None):
        self.classes, self.threshold, self.fitted = tuple(classes), threshold, dict(fitted or {})

    def __call__(self, output: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the answers by name, [batch, ...].

        Raises:
            TrainingError: the output does not fit the classes.
        """
        task = task_of(len(self.classes))
        width = len(self.classes) if task == "multiclass" else 1
        if output.shape.rank != 2 or output.shape[1] != width:
            raise TrainingError(
                f"the model answers {list(output.shape)} for a label of {len(self.classes) or 'no'} classes; expected "
                f"[batch, {width}]: correct build_model, or label.classes in the config"
            )
        answers = tf.cast(output if task == "multiclass" else output[:, 0], tf.float32)
        if task == "regression":
            return {ANSWERS[task]: answers}
        chosen = tf.argmax(answers, axis=1) if task == "multiclass" else tf.cast(answers >= self.threshold, tf.int64)
        return {ANSWERS[task]: answers, "label": tf.gather(tf.constant(list(self.classes)), chosen)}


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
    if not isinstance(settings.threshold, Costs | AtLeast):
        return Answers(settings.classes, settings.threshold)
    output, labels, weights = _asked(
        answering(model, decoder, ensemble), evaluate, settings.batch_size if decoder.decodes else BATCH
    )
    threshold, found = choose_threshold(settings.threshold, output[:, 0], labels, weights)
    logger.info("%s.", found[0].upper() + found[1:])
    return Answers(settings.classes, threshold, {"threshold": threshold, "found": [found]})


def choose_threshold(
    wanted: Costs | AtLeast, answers: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> tuple[float, str]:
    """Return the best threshold, a float32 number, and what it reaches, in words.

    It lies in the middle between two neighbouring answers, so that neither is on its other side when a server computes
    another last digit. Of equally good ones it is, of costs, the nearest to the one that costs least where
    probabilities are right (Elkan 2001, "The Foundations of Cost-Sensitive Learning", equation 2).

    Args:
        wanted: What it has to reach.
        answers: Probabilities of the second class, [rows].
        labels: 0 or 1, [rows].
        weights: How much each row counts, [rows]; None: all count the same.

    Raises:
        TrainingError: no threshold reaches the precision, or a class has no row.
    """
    answers = answers.astype(np.float32)
    weights = np.ones(len(answers)) if weights is None else weights
    if len(np.unique(labels[weights > 0])) < 2:
        raise TrainingError("the eval split has rows of one class only, and a threshold needs both: give it more rows")
    known = np.unique(answers)
    # From the lowest to the highest; "at least" the threshold is the second class.
    thresholds = (np.append(0, known) + np.append(known, 1)).astype(np.float32) / 2
    hits, false_alarms = (_weight_from(thresholds, answers[labels == one], weights[labels == one]) for one in (1, 0))
    recalls = hits / hits[0]
    # Where no row is taken for the second class there is no precision.
    precisions = np.divide(hits, hits + false_alarms, out=np.full(len(hits), np.nan), where=hits + false_alarms > 0)
    cost = ""
    if isinstance(wanted, Costs):
        costs = wanted.false_positive * false_alarms + wanted.false_negative * (hits[0] - hits)
        middle = wanted.false_positive / (wanted.false_positive + wanted.false_negative)
        place = np.lexsort((np.abs(thresholds - middle), costs))[0]
        cost = f", {costs[place] / weights.sum():.3g} a row by the costs asked for"
    else:
        place = _reaching(wanted, precisions, recalls)
    precision = "no precision" if math.isnan(precisions[place]) else f"precision {precisions[place]:.3f}"
    found = f"{precision}, recall {recalls[place]:.3f}{cost}"
    return float(thresholds[place]), f"threshold {thresholds[place]:.3g}, chosen on the eval split: {found}"


def _weight_from(thresholds: np.ndarray, answers: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weight of the answers from each threshold on, [thresholds]."""
    order = np.argsort(answers)
    # Summed from the highest, so that beyond all answers it is 0 and no rest of rounding.
    above: np.ndarray = np.append(np.cumsum(weights[order][::-1])[::-1], 0.0)
    return above[np.searchsorted(answers[order], thresholds)]


def _reaching(wanted: AtLeast, precisions: np.ndarray, recalls: np.ndarray) -> int:
    """Return the place of the highest recall of the precisions that are enough, or the other way round."""
    name, least, given, other = (
        ("recall", wanted.recall, recalls, precisions)
        if wanted.precision is None
        else ("precision", wanted.precision, precisions, recalls)
    )
    enough = np.flatnonzero(given >= least)  # NaN is not
    if not len(enough):
        best = np.nanargmax(given)
        raise TrainingError(
            f"no threshold reaches a {name} of {least:g} on the eval split: the highest is {given[best]:.3f}, with a "
            f"recall of {recalls[best]:.3f}. Ask for less in evaluation.threshold, or train a better model"
        )
    known = enough[~np.isnan(other[enough])]
    return int(known[np.lexsort((-given[known], -other[known]))[0]])


def _asked(
    answer: Callable[[Mapping[str, tf.Tensor]], tf.Tensor], split: Split, at_once: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the answers to all rows of a split, float32 [rows, 1 or classes], and labels and any weights, [rows]."""
    answers, labels, weights = [], [], []
    for packed in split.evaluation(at_once, Part()).take(evaluation_steps(split.examples, at_once, 1)):
        features, label, weight = keras.utils.unpack_x_y_sample_weight(split.rows.unpack(split.rows.pick(packed)))
        answers.append(np.asarray(answer(features), np.float32))
        labels.append(label.numpy().ravel())
        if weight is not None:
            weights.append(weight.numpy().astype(np.float64))
    return np.concatenate(answers), np.concatenate(labels), np.concatenate(weights) if weights else None
