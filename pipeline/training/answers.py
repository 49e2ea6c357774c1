"""Turn a model's output into served answers: calibration, threshold, intervals and sets, fitted on the eval split."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from pipeline.settings.gates import AtLeast, Costs
from pipeline.settings.tasks import ANSWERS, HIGH, LABEL_SET, LOW, task_of
from pipeline.settings.training import Calibration
from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import BATCH, each_row, losses_of
from pipeline.training.errors import TrainingError
from pipeline.training.input_pipeline import Split
from pipeline.training.settings import Settings

logger = logging.getLogger("pipeline.training")


class Answers:
    """The answers of a signature, from a model's output [batch, 1 or classes].

    They are named as in ``tasks.ANSWERS``, float32; of classes also ``label``, the name of the class, [batch]: of two
    by the threshold, of more the most probable. With a coverage, of numbers ``prediction_low`` and ``prediction_high``,
    float32 [batch], and of classes ``label_set``: whether each is in the set, [batch, classes].

    Args:
        classes: Names in the order of their numbers; empty where the label is a number.
        threshold: Of two classes, the probability from which the answer is the second.
        calibrate: Of classes, maps probabilities of the model to calibrated ones, [batch, 1 or classes].
        interval: Of numbers, the distances of the lowest and the highest value from the prediction.
        least: Of classes, the least probability of the members of a set; the label is always in it.
        fitted: What the eval split decided, for ``export_format.FITTED``.
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
        """Return the answers by name, [batch, ...]; raise TrainingError if the output does not fit the classes."""
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
        """Return the calibrated probabilities, [batch, 1 or classes]; numbers are unchanged."""
        return self._calibrate(output) if self._calibrate else output


def fit(
    answer: Callable[[Mapping[str, tf.Tensor]], tf.Tensor], decoder: Decoder, evaluate: Split, settings: Settings
) -> Answers:
    """Fit on the eval split whatever the settings leave to it; every worker must call it, to read some variables.

    Raises:
        TrainingError: the eval split has too few rows, or no threshold meets the requirement.
    """
    classes, threshold = settings.classes, settings.threshold
    if isinstance(threshold, int | float) and settings.coverage is None and settings.calibration == "none":
        return Answers(classes, threshold, fitted={"threshold": threshold} if len(classes) == 2 else {})
    batch_size = settings.batch_size if decoder.decodes else BATCH
    rows = [
        (np.asarray(answer(features), np.float32), label, weight)
        for features, label, weight in each_row(evaluate, batch_size)
    ]
    output, labels = (np.concatenate([row[place] for row in rows]) for place in (0, 1))
    weights = None if rows[0][2] is None else np.concatenate([row[2] for row in rows])
    _check_shape(list(output.shape), len(classes))
    fitted: dict[str, Any] = {}
    found: list[str] = []
    calibrate = None
    if settings.calibration != "none":
        calibrate, sentence = fit_calibration(settings.calibration, output, labels, weights)
        output = np.asarray(calibrate(tf.constant(output)))
        found.append(sentence)
    if not isinstance(threshold, int | float):
        threshold, sentence = choose_threshold(threshold, output[:, 0], labels, weights)
        found.append(sentence)
    if len(classes) == 2:
        fitted["threshold"] = threshold
    bounds = least = None
    if settings.coverage is not None:
        asked = f"{100 * settings.coverage:g} % of the rows, fitted on the eval split"
        fitted |= {"coverage": settings.coverage, "rows": len(labels)}
        if classes:
            least = least_probability(output, labels, settings.coverage)
            found.append(f"sets for {asked}: classes of a probability from {least:.3g}")
        else:
            bounds = low, high = interval(output[:, 0], labels, settings.coverage)
            found.append(f"intervals for {asked}: prediction {low:+.4g} to prediction {high:+.4g}")
    for sentence in found:
        logger.info("%s.", sentence[0].upper() + sentence[1:])
    fitted["found"] = found
    return Answers(classes, threshold, calibrate=calibrate, interval=bounds, least=least, fitted=fitted)


def _check_shape(shape: list[int | None], classes: int) -> None:
    width = classes if task_of(classes) == "multiclass" else 1
    if len(shape) != 2 or shape[1] != width:
        raise TrainingError(
            f"the model answers {shape} for a label of {classes or 'no'} classes; expected [batch, {width}]: correct "
            "build_model, or label.classes in the config"
        )


def interval(answers: np.ndarray, labels: np.ndarray, coverage: float) -> tuple[float, float]:
    """Return the distances of the lowest and the highest value from a prediction, by split conformal prediction.

    They hold for rows drawn like the fitted ones, whatever the model (Vovk, Gammerman and Shafer 2005, "Algorithmic
    Learning in a Random World"). Each side misses half, which fits skewed errors (Linusson, Johansson and Loefstroem
    2014, "Signed-Error Conformal Regression").

    Args:
        answers: Predictions, [rows].
        labels: The numbers, [rows].
        coverage: Share of the rows whose label lies within.

    Raises:
        TrainingError: there are too few rows.
    """
    errors = np.sort(np.asarray(labels, np.float64) - answers)
    rank = rank_of(len(errors), coverage, both_sides=True)
    return float(errors[len(errors) - rank]), float(errors[rank - 1])


def least_probability(answers: np.ndarray, labels: np.ndarray, coverage: float) -> float:
    """Return the probability from which a class is in the set, for the smallest sets of such coverage.

    By Sadinle, Lei and Wasserman 2019, "Least Ambiguous Set-Valued Classifiers With Bounded Error Levels".

    Args:
        answers: Probabilities of the second of two classes, [rows, 1], or of all, [rows, classes].
        labels: Numbers of classes, [rows].
        coverage: Share of the rows whose class is in the set.

    Raises:
        TrainingError: there are too few rows.
    """
    shares = np.concatenate([1 - answers, answers], axis=1) if answers.shape[1] == 1 else answers
    of_label = np.sort(shares[np.arange(len(labels)), labels.astype(int)])
    return float(of_label[len(of_label) - rank_of(len(of_label), coverage)])


def rank_of(rows: int, coverage: float, both_sides: bool = False) -> int:
    """Return the place, from 1, of the sorted value that a new value exceeds in a share of at most 1 - coverage.

    ``both_sides`` leaves half of that share to the other side.

    Raises:
        TrainingError: there are too few rows.
    """
    share = (1 + coverage) / 2 if both_sides else coverage
    rank = math.ceil(round((rows + 1) * share, 9))
    if rank > rows:
        needed = math.ceil(round(share / (1 - share), 9))
        raise TrainingError(
            f"evaluation.coverage of {coverage:g} needs {needed:,} rows of the eval split, which has {rows:,}: ask for "
            "less, or give that split more rows"
        )
    return rank


def choose_threshold(
    wanted: Costs | AtLeast, answers: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> tuple[float, str]:
    """Return the best threshold, a float32 number, and its measures in words.

    It lies in the middle between two neighbouring answers, so that neither changes sides when a server computes another
    last digit. Of several thresholds with the least costs it is the nearest to the best one for correct probabilities
    (Elkan 2001, "The Foundations of Cost-Sensitive Learning", equation 2).

    Args:
        wanted: The costs, or the precision or recall that it must reach.
        answers: Probabilities of the second class, [rows].
        labels: 0 or 1, [rows].
        weights: How much each row counts, [rows]; None: all count the same.

    Raises:
        TrainingError: no threshold reaches it, or a class has no row.
    """
    answers = answers.astype(np.float32)
    weights = np.ones(len(answers)) if weights is None else weights
    if len(np.unique(labels[weights > 0])) < 2:
        raise TrainingError("the eval split has rows of one class only, and a threshold needs both: give it more rows")
    known = np.unique(answers)
    # From the lowest to the highest; "at least" the threshold is the second class.
    thresholds = (np.append(0, known) + np.append(known, 1)).astype(np.float32) / 2
    thresholds = thresholds[(thresholds > 0) & (thresholds < 1)]  # answers of 0 and 1 lie on one side of all of them
    hits, false_alarms = (_weight_from(thresholds, answers[labels == one], weights[labels == one]) for one in (1, 0))
    positives = _weight_from(np.zeros(1), answers[labels == 1], weights[labels == 1])[0]
    recalls = hits / positives
    # Where no row is taken for the second class there is no precision.
    precisions = np.divide(hits, hits + false_alarms, out=np.full(len(hits), np.nan), where=hits + false_alarms > 0)
    cost = ""
    if isinstance(wanted, Costs):
        costs = wanted.false_positive * false_alarms + wanted.false_negative * (positives - hits)
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
    """Return the place of the highest recall among the sufficient precisions, or the other way round."""
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


# Probabilities are kept this far from 0 and 1 before their logarithm is taken.
LEAST = 1e-7
# Slopes that a temperature is chosen from, and the standard deviation of their logarithm before rows say otherwise: a
# few dozen rows, all answered rightly, do not make a model boundlessly sure.
SLOPES = np.geomspace(1 / 8, 8, 601)
PRIOR = 0.5


class Linear:
    """Probabilities whose log-odds, or logarithms of several classes, are multiplied by a slope and moved by an offset.

    A slope below 1 makes answers less sure; it is 1 over the temperature.
    """

    def __init__(self, slope: float, offset: float = 0.0):
        self.slope, self.offset = slope, offset

    def __call__(self, answers: tf.Tensor) -> tf.Tensor:
        """Return calibrated answers, float32 [batch, 1 or classes]: of the second of two classes, or of all."""
        if answers.shape[1] == 1:
            return tf.sigmoid(self.slope * (_log(answers) - _log(1 - answers)) + self.offset)
        return tf.nn.softmax(self.slope * _log(answers))

    def __str__(self) -> str:
        offset = f" and an offset of {self.offset:+.3g}" if self.offset else ""
        return f"a slope of {self.slope:.3g}{offset}"


class Interpolated:
    """Probabilities of the second of two classes, mapped by lines between points as scikit-learn's ``predict`` does.

    Args:
        answered: Probabilities of the points, rising, float64 [points].
        meant: Their calibrated values, never falling, float64 [points].
    """

    def __init__(self, answered: np.ndarray, meant: np.ndarray):
        self.answered, self.meant = answered, meant

    def __call__(self, answers: tf.Tensor) -> tf.Tensor:
        """Return the answers calibrated, float32 [batch, 1]."""
        if len(self.answered) == 1:
            return tf.zeros_like(answers) + tf.cast(self.meant[0], tf.float32)
        known = tf.constant(self.answered)
        values = tf.clip_by_value(tf.cast(answers[:, 0], tf.float64), known[0], known[-1])
        place = tf.clip_by_value(tf.searchsorted(known, values), 1, len(self.answered) - 1)
        (left, right), (low, high) = (
            (tf.gather(points, place - 1), tf.gather(points, place)) for points in (known, tf.constant(self.meant))
        )
        return tf.cast(low + (values - left) * (high - low) / (right - left), tf.float32)[:, tf.newaxis]

    def __str__(self) -> str:
        return f"{len(self.answered)} points"


def fit_calibration(
    kind: Calibration, answers: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> tuple[Callable[[tf.Tensor], tf.Tensor], str]:
    """Return a function from probabilities to calibrated ones, and its gain in words.

    Args:
        kind: Of two classes "sigmoid" or "isotonic", of any number "temperature".
        answers: Probabilities of the second of two classes, float32 [rows, 1], or of all, [rows, classes].
        labels: Numbers of classes, [rows].
        weights: How much each row counts, [rows]; None: all count the same.
    """
    # As many rows as Kish's effective number (1965, "Survey Sampling"): weights are not further evidence.
    weights = np.ones(len(labels)) if weights is None else weights * weights.sum() / np.square(weights).sum()
    calibrate: Linear | Interpolated
    if kind == "sigmoid":
        calibrate = _sigmoid(answers[:, 0], labels, weights)
    elif kind == "isotonic":
        found = IsotonicRegression().fit(answers[:, 0].astype(np.float64), labels, weights)
        calibrate = Interpolated(found.X_thresholds_, found.y_thresholds_)
    else:
        calibrate = _temperature(answers, labels, weights)
    losses = [
        np.average(losses_of(np.asarray(part), labels, max(2, answers.shape[1])), weights=weights)
        for part in (answers, calibrate(tf.constant(answers)))
    ]
    return calibrate, (
        f"probabilities calibrated ({kind}, {calibrate}) on the eval split: its log loss was {losses[0]:.4g}, and is "
        f"{losses[1]:.4g}"
    )


def _sigmoid(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> Linear:
    """Fit slope and offset of the log-odds (Platt 1999, "Probabilistic Outputs for Support Vector Machines").

    Labels are not quite 1 and 0 (his section 2.2), or rows without a wrong answer would lead to an endless slope.
    """
    clipped = np.clip(answers.astype(np.float64), LEAST, 1 - LEAST)
    odds = (np.log(clipped) - np.log1p(-clipped))[:, np.newaxis]
    positives = float(weights @ (labels == 1))
    negatives = weights.sum() - positives
    targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    # Each row once as the one class and once as the other, weighed by the target.
    found = LogisticRegression(penalty=None).fit(
        np.concatenate([odds, odds]),
        np.repeat([1, 0], len(labels)),
        np.concatenate([weights * targets, weights * (1 - targets)]),
    )
    return Linear(float(found.coef_[0, 0]), float(found.intercept_[0]))


def _temperature(answers: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> Linear:
    """Choose the slope of the logarithms (Guo et al. 2017, "On Calibration of Modern Neural Networks", 4.2)."""
    classes = max(2, answers.shape[1])
    losses = [
        weights @ losses_of(np.asarray(Linear(slope)(tf.constant(answers))), labels, classes)
        + np.log(slope) ** 2 / (2 * PRIOR**2)
        for slope in SLOPES
    ]
    return Linear(float(SLOPES[np.argmin(losses)]))


def _log(answers: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.maximum(tf.cast(answers, tf.float32), LEAST))
