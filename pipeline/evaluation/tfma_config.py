"""The TFMA config made from a PipelineConfig, and the Evaluator's findings read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2

from pipeline.settings.config import Label
from pipeline.settings.gates import Evaluation
from pipeline.settings.tasks import ANSWERS, Task

# TFMA's classes of the metrics that gates can name, and of what they and their intervals are made of.
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
EXAMPLE_COUNT = "ExampleCount"
# Those that take the labels and predictions of several examples in one array as they take them one by one.
TAKE_ARRAYS = {*BINARY.values(), *REGRESSION.values(), EXAMPLE_COUNT}
CLASSES: dict[Task, dict[str, str]] = {"binary": BINARY, "multiclass": MULTICLASS, "regression": REGRESSION}
CANDIDATE, BASELINE = "candidate", "baseline"


def eval_config(settings: Evaluation, label: Label) -> config_pb2.EvalConfig:
    """What the Evaluator measures; ``pipeline.evaluation.verdict`` judges it.

    The overall slice is always among the slices.
    """
    metrics = []
    for name, class_name in CLASSES[label.task].items():
        with_threshold = label.task == "binary" and name not in WITHOUT_THRESHOLD
        arguments = f'"thresholds": {settings.threshold}, ' if with_threshold else ""
        metrics.append(config_pb2.MetricConfig(class_name=class_name, config=f'{{{arguments}"name": "{name}"}}'))
    return config_pb2.EvalConfig(
        # No signature is named: TFMA takes "predict", which our models answer serialized tf.Examples with, and
        # "serving_default" of models that have no other, which is what TFX's own examples export.
        model_specs=[config_pb2.ModelSpec(label_key=label.name, prediction_key=ANSWERS[label.task])],
        slicing_specs=[
            config_pb2.SlicingSpec(),
            *(config_pb2.SlicingSpec(feature_keys=[column]) for column in settings.sliced_by),
        ],
        metrics_specs=[
            config_pb2.MetricsSpec(metrics=metrics),
            # The sum of the weights, which is the number of examples also where several come as one.
            config_pb2.MetricsSpec(
                metrics=[config_pb2.MetricConfig(class_name=EXAMPLE_COUNT)],
                example_weights=config_pb2.ExampleWeightOptions(weighted=True),
            ),
        ],
    )


def task_in(config: config_pb2.EvalConfig) -> Task:
    """Return the task that ``eval_config`` was made for."""
    return next(task for task, key in ANSWERS.items() if key == config.model_specs[0].prediction_key)


def as_measured(answers: Any, task: Task, logits: bool) -> Any:
    """Turn what a model answers into what is measured.

    Args:
        answers: [rows, ...], or such arrays by name, however deep. Of two classes, a row may have a value for each.
        task: Kind of model.
        logits: Whether the answers are logits.

    Returns:
        The same, with probabilities in place of logits and, of two classes, that of the second in place of both.
    """
    if isinstance(answers, Mapping):
        return {name: as_measured(values, task, logits) for name, values in answers.items()}
    if task == "regression" or answers.dtype.kind != "f":
        return answers
    of_both = task == "binary" and answers.ndim > 1 and answers.shape[-1] == 2
    if logits:
        if task == "multiclass" or of_both:
            powers = np.exp(answers - answers.max(axis=-1, keepdims=True))
            answers = powers / powers.sum(axis=-1, keepdims=True)
        else:
            answers = np.exp(-np.logaddexp(0, -answers))  # the sigmoid, also of large numbers
    return answers[..., 1:] if of_both else answers


def read_metrics(evaluation_uri: str, model: str = CANDIDATE) -> dict[str, dict[str, float]]:
    """Metrics by slice, as {"overall" or "carrier=UA": {"auc": 0.7, ..., "example_count": 100.0}}.

    A metric that is undefined in a slice is left out there.

    Args:
        evaluation_uri: What the Evaluator wrote.
        model: "candidate" or "baseline".
    """
    found: dict[str, dict[str, float]] = {}
    for metrics_for_slice in tfma.load_metrics(evaluation_uri):
        key = metrics_for_slice.slice_key.single_slice_keys
        name = ", ".join(f"{part.column}={_slice_value(part)}" for part in key) or "overall"
        values: dict[str, float] = {}
        for item in metrics_for_slice.metric_keys_and_values:
            # Differences to the baseline stand under the same names with is_diff set. Without a baseline, the
            # candidate has no name.
            mine = (item.key.model_name or CANDIDATE) == model and not item.key.is_diff
            if mine and item.value.WhichOneof("type") == "double_value":
                values.setdefault(item.key.name, item.value.double_value.value)
        if "mse" in values:
            values["rmse"] = math.sqrt(values.pop("mse"))
        found[name] = _defined(values)
    return found


def _defined(values: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a slice without those that are undefined.

    Of rows of one class, TFMA says an AUC of 0, and a precision that is the class and not the model.
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
