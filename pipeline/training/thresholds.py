"""Choose the probability from which a row counts as the second of two classes."""

import math

import numpy as np

from pipeline.settings.gates import AtLeast, Costs
from pipeline.training.errors import TrainingError


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
