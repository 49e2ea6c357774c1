"""Closed-form confidence intervals of metrics, from the counts of their slice (see docs/decisions/0010)."""

import math
from collections.abc import Mapping
from statistics import NormalDist

Interval = tuple[float, float]
COUNTS = ("true_positives", "false_positives", "true_negatives", "false_negatives")


def interval(metric: str, values: Mapping[str, float], confidence: float) -> Interval | None:
    """Return the confidence interval of a metric in a slice; None if it is undefined or has no closed form.

    Args:
        metric: A key of ``tasks.METRICS``.
        values: The metrics of a slice with example_count and, of two classes, the four counts in ``COUNTS``. Where rows
            have weights, these are sums of weights, and effective_count is the equivalent number of equal weights.
        confidence: Such as 0.95; 0 gives no interval.
    """
    value = values.get(metric, math.nan)
    if not confidence or not math.isfinite(value):
        return None
    if "effective_count" in values:
        values = _of_effective_rows(values)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    if "true_positives" not in values:
        return _of_examples(metric, value, values, z)
    hits, false_alarms = values["true_positives"], values["false_positives"]
    positives = hits + values["false_negatives"]
    negatives = false_alarms + values["true_negatives"]
    if not positives:
        return None
    if metric == "precision":
        return wilson(hits, hits + false_alarms, z)
    if metric == "recall":
        return wilson(hits, positives, z)
    if metric == "false_positive_rate":
        return wilson(false_alarms, negatives, z)
    if metric == "auc":
        return hanley_mcneil(value, positives, negatives, z)
    if metric == "auc_precision_recall":
        return logit(value, positives, z)
    # Calibration: chance changes the mean label in the denominator; delta method on its logarithm.
    spread = z * math.sqrt(negatives / (positives + negatives) / positives)
    return value * math.exp(-spread), value * math.exp(spread)


def _of_effective_rows(values: Mapping[str, float]) -> Mapping[str, float]:
    """Return the counts scaled to the effective number of rows."""
    effective = values["effective_count"]
    weights = {name: values[name] for name in COUNTS if name in values}
    total = sum(weights.values())
    counts = {name: weight * effective / total if total else 0.0 for name, weight in weights.items()}
    return {**values, **counts, "example_count": effective}


def _of_examples(metric: str, value: float, values: Mapping[str, float], z: float) -> Interval | None:
    """Return the interval of a metric of several classes or of a regression, from the number of examples."""
    examples = values.get("example_count", 0.0)
    if examples < 4:
        return None
    if metric == "accuracy":
        return wilson(value * examples, examples, z)
    if metric == "mae":  # a mean; its variance follows from the mean square
        half = z * math.sqrt(max(values["rmse"] ** 2 - value**2, 0.0) / examples)
        return max(0.0, value - half), value + half
    if metric == "rmse":  # of errors that are normally distributed
        half = z * value / math.sqrt(2 * examples)
        return max(0.0, value - half), value + half
    if metric == "squared_correlation":
        return fisher(value, examples, z)
    return None


def fisher(squared: float, examples: float, z: float) -> Interval:
    """Return the interval of a squared correlation, by the correlation's (Fisher 1915)."""
    middle = math.atanh(min(math.sqrt(max(squared, 0.0)), 1 - 1e-9))
    half = z / math.sqrt(examples - 3)
    return min(squared, math.tanh(max(0.0, middle - half)) ** 2), max(squared, math.tanh(middle + half) ** 2)


def wilson(successes: float, of: float, z: float) -> Interval | None:
    """Return the interval of a proportion (Wilson 1927); it stays within 0 and 1 and holds for small counts."""
    if not of:
        return None
    share = successes / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    # Of all or none, middle and half are 1 or 0 together only but for the last digit.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def hanley_mcneil(auc: float, positives: float, negatives: float, z: float) -> Interval | None:
    """Return the interval of an area under the ROC curve (Hanley and McNeil 1982)."""
    if not negatives:
        return None
    # The formula has no error for perfect or worst rankings: assume half a pair of rows more or less.
    bound = 0.5 / (positives * negatives)
    inner = min(max(auc, bound), 1 - bound)
    both_above = inner / (2 - inner)
    both_below = 2 * inner * inner / (1 + inner)
    variance = inner * (1 - inner)
    variance += (positives - 1) * (both_above - inner**2) + (negatives - 1) * (both_below - inner**2)
    half = z * math.sqrt(max(variance, 0.0) / (positives * negatives))
    return max(0.0, auc - half), min(1.0, auc + half)


def logit(area: float, positives: float, z: float) -> Interval:
    """Return the interval of an area under the precision-recall curve (Boyd, Eng and Page 2013)."""
    # The formula has no error for areas of 0 and 1: assume half a row more or less.
    bound = 0.5 / positives
    inner = min(max(area, bound), 1 - bound)
    middle = math.log(inner / (1 - inner))
    half = z / math.sqrt(positives * inner * (1 - inner))
    return min(area, 1 / (1 + math.exp(half - middle))), max(area, 1 / (1 + math.exp(-half - middle)))


def difference(high: float, high_interval: Interval, low: float, low_interval: Interval) -> Interval:
    """Return the interval of ``high - low``, two independent values with intervals (Newcombe 1998).

    For two models on the same rows it is wider than necessary, so that a difference rather counts as chance.
    """
    apart = high - low
    down = math.hypot(high - high_interval[0], low_interval[1] - low)
    up = math.hypot(high_interval[1] - high, low - low_interval[0])
    return apart - down, apart + up
