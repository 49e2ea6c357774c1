"""Configure an evaluation with TFMA, count weighted rows, and read the metrics that TFMA has written."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis import constants
from tensorflow_model_analysis.metrics import metric_types
from tensorflow_model_analysis.proto import config_pb2

from pipeline import filesystem
from pipeline.settings.config import Label
from pipeline.settings.gates import Evaluation
from pipeline.settings.tasks import ANSWERS, Task

# TFMA's classes of the metrics that gates can name, and of the counts for their intervals.
BINARY = {
    "auc": "AUC",
    "auc_precision_recall": "AUCPrecisionRecall",
    "calibration": "Calibration",
    "precision": "Precision",
    "recall": "Recall",
    "false_positive_rate": "FPR",
    "true_positives": "TruePositives",
    "false_positives": "FalsePositives",
    "true_negatives": "TrueNegatives",
    "false_negatives": "FalseNegatives",
}
NEED_BOTH_CLASSES = {"auc", "auc_precision_recall", "precision"}
WITHOUT_THRESHOLD = ("auc", "auc_precision_recall", "calibration")
MULTICLASS = {"accuracy": "SparseCategoricalAccuracy", "log_loss": "SparseCategoricalCrossentropy"}
REGRESSION = {"mse": "MeanSquaredError", "mae": "MeanAbsoluteError", "squared_correlation": "SquaredPearsonCorrelation"}
CLASSES: dict[Task, dict[str, str]] = {"binary": BINARY, "multiclass": MULTICLASS, "regression": REGRESSION}
CANDIDATE, BASELINE = "candidate", "baseline"
# Rows, the sum of their weights, and the sum of the squares of these.
Sums = tuple[int, float, float]


def eval_config(
    settings: Evaluation, label: Label, thresholds: Mapping[str, float] | None = None
) -> config_pb2.EvalConfig:
    """Return the metrics and slices, with the overall one, that the Evaluator computes.

    ``thresholds``, by ``CANDIDATE`` and ``BASELINE``, replace the threshold of the settings.
    """
    if thresholds is None:
        assert isinstance(settings.threshold, int | float)
        thresholds = {CANDIDATE: settings.threshold}
    by_threshold: dict[float, list[str]] = {}
    for model, threshold in thresholds.items():
        by_threshold.setdefault(threshold, []).append(model)
    weighted = config_pb2.ExampleWeightOptions(weighted=True)
    metrics = [
        config_pb2.MetricsSpec(
            metrics=_metrics(label.task, threshold),
            model_names=models if len(by_threshold) > 1 else [],
            example_weights=weighted if label.weight else None,
        )
        for threshold, models in by_threshold.items()
    ]
    # The sum of the weights is the number of examples also where several come in one array, unless they have weights.
    counts = config_pb2.MetricConfig(class_name="ExampleCount")
    if label.weight:
        counts = config_pb2.MetricConfig(class_name=RowCounts.__name__, module=RowCounts.__module__)
    return config_pb2.EvalConfig(
        # Without a signature name TFMA takes "predict", which takes serialized tf.Examples in our models, or
        # "serving_default" of models without it, such as those of TFX's own examples.
        model_specs=[
            config_pb2.ModelSpec(
                label_key=label.name, example_weight_key=label.weight or "", prediction_key=ANSWERS[label.task]
            )
        ],
        slicing_specs=[
            config_pb2.SlicingSpec(),
            *(config_pb2.SlicingSpec(feature_keys=[column]) for column in settings.sliced_by),
        ],
        metrics_specs=[*metrics, config_pb2.MetricsSpec(metrics=[counts], example_weights=weighted)],
    )


def _metrics(task: Task, threshold: float) -> list[config_pb2.MetricConfig]:
    configs = []
    for name, class_name in CLASSES[task].items():
        with_threshold = task == "binary" and name not in WITHOUT_THRESHOLD
        # A model answers the second class from the threshold on, and TFMA counts what lies above it.
        below = np.nextafter(np.float32(threshold), np.float32(-1))
        arguments = f'"thresholds": {float(below)}, ' if with_threshold else ""
        configs.append(config_pb2.MetricConfig(class_name=class_name, config=f'{{{arguments}"name": "{name}"}}'))
    return configs


def task_in(config: config_pb2.EvalConfig) -> Task:
    """Return the task that ``eval_config`` was made for."""
    return next(task for task, key in ANSWERS.items() if key == config.model_specs[0].prediction_key)


def as_measured(outputs: Any, task: Task, logits: bool) -> Any:
    """Return outputs [rows, ...], or such arrays by name at any depth, as the metrics need them.

    Logits become probabilities, and of two probabilities of a binary task the second one is kept.
    """
    if isinstance(outputs, Mapping):
        return {name: as_measured(values, task, logits) for name, values in outputs.items()}
    if task == "regression" or outputs.dtype.kind != "f":
        return outputs
    of_both = task == "binary" and outputs.ndim > 1 and outputs.shape[-1] == 2
    if logits:
        if task == "multiclass" or of_both:
            powers = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
            outputs = powers / powers.sum(axis=-1, keepdims=True)
        else:
            outputs = np.exp(-np.logaddexp(0, -outputs))  # the sigmoid, also of large numbers
    return outputs[..., 1:] if of_both else outputs


def read_metrics(evaluation_uri: str, model: str = CANDIDATE) -> dict[str, dict[str, float]]:
    """Return defined metrics by slice, as {"overall" or "carrier=UA": {"auc": 0.7, ..., "example_count": 100.0}}.

    A refused model that could not be evaluated has none.
    """
    metrics: dict[str, dict[str, float]] = {"overall": {}}
    if not filesystem.find_files(evaluation_uri, "metrics*"):
        return metrics
    for metrics_for_slice in tfma.load_metrics(evaluation_uri):
        key = metrics_for_slice.slice_key.single_slice_keys
        name = ", ".join(f"{part.column}={_slice_value(part)}" for part in key) or "overall"
        values: dict[str, float] = {}
        for item in metrics_for_slice.metric_keys_and_values:
            # Differences from the baseline have the same names. Without a baseline, the candidate has no name.
            of_model = (item.key.model_name or CANDIDATE) == model and not item.key.is_diff
            if of_model and item.value.WhichOneof("type") == "double_value":
                values.setdefault(item.key.name, item.value.double_value.value)
        if "mse" in values:
            values["rmse"] = math.sqrt(values.pop("mse"))
        metrics[name] = _defined(values)
    return metrics


def _defined(values: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a slice without those that are undefined.

    For rows of one class, TFMA has an AUC of 0, and a precision that depends on the class and not on the model.
    """
    undefined = {name for name, value in values.items() if not math.isfinite(value)}
    if "true_positives" in values:
        positives = values["true_positives"] + values["false_negatives"]
        negatives = values["true_negatives"] + values["false_positives"]
        if not positives or not negatives:
            undefined |= NEED_BOTH_CLASSES
    return {name: value for name, value in values.items() if name not in undefined}


def _slice_value(part: Any) -> str:
    kind = part.WhichOneof("kind")
    value = getattr(part, kind)
    return value.decode() if isinstance(value, bytes) else str(value)


class RowCounts(metric_types.Metric):
    """Number of rows, and their effective number: (sum of w)^2 / sum of w^2 (Kish 1965, "Survey Sampling").

    TFMA's ExampleCount is the sum of the weights, where they are counted at all.
    """

    def __init__(self, name: str = "example_count"):
        super().__init__(_row_counts, name=name)


metric_types.register_metric(RowCounts)


def _row_counts(
    name: str, model_names: list[str] | None = None, example_weighted: bool = False
) -> metric_types.MetricComputations:
    """Return a computation per model; all use the weights of the rows, so the results are equal."""
    computations = []
    for model in model_names or [""]:
        keys = [
            metric_types.MetricKey(name=key, model_name=model, example_weighted=example_weighted)
            for key in (name, "effective_count")
        ]
        inputs = metric_types.StandardMetricInputsPreprocessor(
            include_filter={constants.EXAMPLE_WEIGHTS_KEY: {}}, include_default_inputs=False
        )
        computations.append(
            metric_types.MetricComputation(keys=keys, preprocessors=[inputs], combiner=_SumsOfWeights(model, keys))
        )
    return computations


class _SumsOfWeights(beam.CombineFn):
    """Sum the rows and weights of a slice."""

    def __init__(self, model: str, keys: list[metric_types.MetricKey]):
        self._model, self._keys = model, keys

    def create_accumulator(self) -> Sums:
        return 0, 0.0, 0.0

    def add_input(self, sums: Sums, element: metric_types.StandardMetricInputs) -> Sums:
        weights: Any = element.example_weight
        if isinstance(weights, Mapping):
            weights = weights[self._model]
        values = np.asarray(weights, np.float64)
        return sums[0] + values.size, sums[1] + values.sum(), sums[2] + np.square(values).sum()

    def merge_accumulators(self, several: Iterable[Sums]) -> Sums:
        rows, total, squares = zip(*several, strict=True)
        return sum(rows), sum(total), sum(squares)

    def extract_output(self, sums: Sums) -> dict[metric_types.MetricKey, float]:
        rows, total, squares = sums
        return dict(zip(self._keys, (float(rows), total**2 / squares if squares else 0.0), strict=True))
