"""Calibrate probabilities on rows that the model has not learnt from: 0.8 then means 80 % of the rows."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from pipeline.settings.training import Calibration
from pipeline.training.ensemble import losses_of

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


def fit(
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
