"""Compute TFMA's metrics from arrays with all rows of a slice.

TFMA's combiners take one pair of label and prediction after the other, in Python, and Beam pickles each bucket of a
histogram by itself: that was more than half of the Evaluator's time. Here NumPy adds up what they add up. How a metric
follows from the sums stays TFMA's. Values are the same (tests/fast/test_slicing.py).
"""

from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.metrics import (
    binary_confusion_matrices,
    calibration,
    calibration_histogram,
    mean_regression_error,
    metric_types,
    metric_util,
    squared_pearson_correlation,
)
from tensorflow_model_analysis.proto import config_pb2

# Of the names of these classes, after those of TFMA's.
SUFFIX = "OfArrays"
# Probabilities that Keras takes for 0 and 1 before it takes the logarithm.
EPSILON = 1e-7
# Numbers of buckets, [buckets], and their sums: weighted labels, weighted predictions, weights, [buckets, 3].
Histogram = tuple[np.ndarray, np.ndarray]


class Buckets(list[calibration_histogram.Bucket]):
    """A histogram as TFMA's metrics take it, which Beam pickles as two arrays, where it would pickle each bucket."""

    def __init__(self, numbers: np.ndarray, sums: np.ndarray):
        """Make it of a ``Histogram``."""
        self._arrays = numbers, sums
        pairs = zip(numbers.tolist(), sums.tolist(), strict=True)
        super().__init__(calibration_histogram.Bucket(number, *values) for number, values in pairs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Buckets, self._arrays


class _Combiner(beam.CombineFn):
    """Adds up the rows of a slice.

    Args:
        key: Of the metric.
        config: Of the evaluation.
        weighted: Whether rows have weights.
    """

    def __init__(self, key: metric_types.MetricKey, config: config_pb2.EvalConfig, weighted: bool):
        self._key, self._config, self._weighted = key, config, weighted

    def add_input(self, sums: Any, element: metric_types.StandardMetricInputs) -> Any:
        ((label, prediction, weight),) = metric_util.to_label_prediction_example_weight(
            element,
            eval_config=self._config,
            model_name=self._key.model_name,
            output_name=self._key.output_name,
            example_weighted=self._weighted,
            flatten=False,
            squeeze=False,
            require_single_example_weight=False,
        )
        labels = np.asarray(label, np.float64).ravel()
        weights = np.broadcast_to(np.asarray(weight, np.float64).ravel(), labels.shape)
        return self.add(sums, labels, np.asarray(prediction, np.float64).reshape(len(labels), -1), weights)

    def add(self, sums: Any, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> Any:
        """Return the sums with rows: labels [rows], predictions [rows, 1 or classes], weights [rows]."""
        raise NotImplementedError


class _InPlaceOf(_Combiner):
    """A combiner of TFMA that adds up arrays.

    Args:
        theirs: Whose sums these are, unless a subclass has its own, and whose results.
    """

    def __init__(self, theirs: beam.CombineFn):
        self._theirs, self._settings = theirs, vars(theirs)
        key = self._settings.get("_key") or self._settings["_metric_key"]
        super().__init__(key, self._settings["_eval_config"], self._settings["_example_weighted"])

    def create_accumulator(self) -> Any:
        return self._theirs.create_accumulator()

    def merge_accumulators(self, several: Iterable[Any]) -> Any:
        return self._theirs.merge_accumulators(several)

    def extract_output(self, sums: Any) -> Any:
        return self._theirs.extract_output(sums)


class _Histogram(_InPlaceOf):
    """Of predictions, in buckets of equal width."""

    def create_accumulator(self) -> Histogram:
        return np.zeros(0, np.int64), np.zeros((0, 3))

    def add(self, sums: Histogram, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> Histogram:
        count, (predictions,) = self._settings["_num_buckets"], predictions.T
        if np.isnan(predictions).any():
            raise ValueError("expected predictions that are numbers, found NaN")
        place = (predictions - self._settings["_left"]) / self._settings["_range"] * count + 1
        numbers = np.clip(place, 0, count + 1).astype(np.int64)
        rows = np.stack([weights * _checked(labels), weights * predictions, weights], axis=1)
        return self.merge_accumulators([sums, (numbers, rows)])

    def merge_accumulators(self, several: Iterable[Histogram]) -> Histogram:
        numbers, sums = map(np.concatenate, zip(*several, strict=True))
        found, place = np.unique(numbers, return_inverse=True)
        return found, np.stack([np.bincount(place, column, len(found)) for column in sums.T], axis=1)

    def extract_output(self, sums: Histogram) -> metric_types.MetricsDict:
        return {self._key: Buckets(*sums)}


class _Matrices(_InPlaceOf):
    """Weights of true positives, false negatives, false positives and true negatives, [thresholds, 4]."""

    def create_accumulator(self) -> np.ndarray:
        return np.zeros((len(self._thresholds), 4))

    @property
    def _thresholds(self) -> list[float]:
        return list(vars(self._settings["_binary_confusion_matrices"])["_thresholds"])

    def add(self, sums: np.ndarray, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> np.ndarray:
        positive = weights * _checked(labels)
        above = predictions > np.array(self._thresholds)  # [rows, thresholds]
        parts = [positive @ above, positive @ ~above, (weights - positive) @ above, (weights - positive) @ ~above]
        return sums + np.stack(parts, axis=1)

    def merge_accumulators(self, several: Iterable[np.ndarray]) -> np.ndarray:
        return np.sum(list(several), axis=0)

    def extract_output(self, sums: np.ndarray) -> Any:
        # TFMA's own, of four rows that weigh as much.
        matrices: dict[float, Any] = {}
        for threshold, weights in zip(self._thresholds, sums.tolist(), strict=True):
            of_one = type(self._settings["_binary_confusion_matrices"])(thresholds=[threshold])
            matrices |= of_one.add_input({}, [1, 1, 0, 0], [np.inf, -np.inf, np.inf, -np.inf], weights, None)
        return {self._key: matrices}


class _Totals(_InPlaceOf):
    def add(self, sums: Any, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> Any:
        sums.total_weighted_labels += weights @ labels
        sums.total_weighted_predictions += weights @ predictions[:, 0]
        sums.total_weighted_examples += weights.sum()
        return sums


class _Errors(_InPlaceOf):
    """Sum of absolute errors to some power."""

    power = 1

    def add(self, sums: Any, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> Any:
        errors = np.abs(labels - predictions[:, 0]) ** self.power
        known = ~np.isnan(errors)
        sums.total_regression_error += weights[known] @ errors[known]
        sums.total_example_weights += weights[known].sum()
        return sums


class _SquaredErrors(_Errors):
    power = 2


class _Correlation(_InPlaceOf):
    def add(self, sums: Any, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> Any:
        (predictions,) = predictions.T
        sums.total_weighted_labels += weights @ labels
        sums.total_weighted_predictions += weights @ predictions
        sums.total_weighted_squared_labels += weights @ labels**2
        sums.total_weighted_squared_predictions += weights @ predictions**2
        sums.total_weighted_labels_times_predictions += weights @ (labels * predictions)
        sums.total_weighted_examples += weights.sum()
        return sums


class _Mean(_Combiner):
    """Mean over rows of what is computed for each.

    Args:
        of_rows: Takes labels [rows] and predictions [rows, classes], returns a number for each row.
    """

    def __init__(self, key: metric_types.MetricKey, config: Any, weighted: bool, of_rows: Callable[..., np.ndarray]):
        super().__init__(key, config, weighted)
        self._of_rows = of_rows

    def create_accumulator(self) -> tuple[float, float]:
        return 0.0, 0.0

    def add(self, sums: Any, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
        return sums[0] + weights @ self._of_rows(labels.astype(np.int64), predictions), sums[1] + weights.sum()

    def merge_accumulators(self, several: Iterable[tuple[float, float]]) -> tuple[float, float]:
        totals, weights = zip(*several, strict=True)
        return sum(totals), sum(weights)

    def extract_output(self, sums: tuple[float, float]) -> metric_types.MetricsDict:
        return {self._key: float(sums[0] / sums[1]) if sums[1] else float("nan")}


IN_PLACE_OF = {
    calibration_histogram._CalibrationHistogramCombiner: _Histogram,
    binary_confusion_matrices._BinaryConfusionMatrixCombiner: _Matrices,
    calibration._WeightedLabelsPredictionsExamplesCombiner: _Totals,
    mean_regression_error._MeanAbsoluteErrorCombiner: _Errors,
    mean_regression_error._MeanSquaredErrorCombiner: _SquaredErrors,
    squared_pearson_correlation._SquaredPearsonCorrelationCombiner: _Correlation,
}


def of_arrays(config: config_pb2.EvalConfig) -> config_pb2.EvalConfig:
    """Return a config with the metrics of this module in place of TFMA's."""
    ours = config_pb2.EvalConfig()
    ours.CopyFrom(config)
    for metric in (metric for spec in ours.metrics_specs for metric in spec.metrics):
        if metric.class_name in OF_ARRAYS and not metric.module:
            metric.class_name, metric.module = metric.class_name + SUFFIX, __name__
    return ours


def _checked(labels: np.ndarray) -> np.ndarray:
    """Return labels of two classes; TFMA takes one between 0 and 1 for a share of a row."""
    if labels.size and not (labels.min() >= 0 and labels.max() <= 1):
        raise ValueError(f"expected labels from 0 to 1, found {labels.min():g} to {labels.max():g}")
    return labels


def _register(theirs: type[metric_types.Metric]) -> None:
    """Register a metric of TFMA's for arrays."""

    class OfArrays(theirs):
        def computations(self, *arguments: Any, **named: Any) -> metric_types.MetricComputations:
            return [
                computation._replace(combiner=IN_PLACE_OF[type(computation.combiner)](computation.combiner))
                if isinstance(computation, metric_types.MetricComputation)
                else computation
                for computation in super().computations(*arguments, **named)
            ]

    OfArrays.__name__ = theirs.__name__ + SUFFIX
    metric_types.register_metric(OfArrays)


_METRICS = (
    *(tfma.metrics.AUC, tfma.metrics.AUCPrecisionRecall, tfma.metrics.Calibration, tfma.metrics.Precision),
    *(tfma.metrics.Recall, tfma.metrics.FPR, tfma.metrics.TruePositives, tfma.metrics.FalsePositives),
    *(tfma.metrics.TrueNegatives, tfma.metrics.FalseNegatives),
    *(tfma.metrics.MeanSquaredError, tfma.metrics.MeanAbsoluteError, tfma.metrics.SquaredPearsonCorrelation),
)
for _metric in _METRICS:
    _register(_metric)
# Names of TFMA's metrics that have a counterpart here.
OF_ARRAYS = {metric.__name__ for metric in _METRICS} | {"SparseCategoricalAccuracy", "SparseCategoricalCrossentropy"}


def _are_right(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    return predictions.argmax(axis=1) == labels


def _log_losses(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    clipped = np.clip(predictions, EPSILON, 1 - EPSILON)
    return -np.log(clipped[np.arange(len(labels)), labels] / clipped.sum(axis=1))


class _OfClasses(metric_types.Metric):
    """A mean over rows that Keras computes for TFMA, row by row."""

    of_rows: Callable[..., np.ndarray]

    def __init__(self, name: str):
        super().__init__(metric_util.merge_per_key_computations(self._computations), name=name)

    def _computations(
        self,
        name: str,
        eval_config: config_pb2.EvalConfig,
        model_name: str = "",
        output_name: str = "",
        example_weighted: bool = False,
    ) -> metric_types.MetricComputations:
        key = metric_types.MetricKey(
            name=name, model_name=model_name, output_name=output_name, example_weighted=example_weighted
        )
        combiner = _Mean(key, eval_config, example_weighted, type(self).of_rows)
        return [metric_types.MetricComputation(keys=[key], preprocessors=None, combiner=combiner)]


class SparseCategoricalAccuracyOfArrays(_OfClasses):
    """Share of rows whose most probable class is the label."""

    of_rows = staticmethod(_are_right)


class SparseCategoricalCrossentropyOfArrays(_OfClasses):
    """Mean of the logarithm of the label's probability, negative."""

    of_rows = staticmethod(_log_losses)


metric_types.register_metric(SparseCategoricalAccuracyOfArrays)
metric_types.register_metric(SparseCategoricalCrossentropyOfArrays)
