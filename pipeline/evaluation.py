"""The TFMA config made from a PipelineConfig, and the Evaluator's findings read back."""

from __future__ import annotations

from typing import Any

import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2

from pipeline.config import ConfigError, Label
from pipeline.config import Evaluation as EvaluationSettings

# Metrics a gate can name, all higher is better, 0 to 1. Precision and recall are taken at the threshold.
METRICS = {
    "auc": "AUC",
    "auc_precision_recall": "AUCPrecisionRecall",
    "precision": "Precision",
    "recall": "Recall",
}
# Reported without a gate. Calibration is the mean prediction over the mean label, best at 1.
REPORTED = ("Calibration", "ExampleCount")


def eval_config(settings: EvaluationSettings, label: Label) -> config_pb2.EvalConfig:
    """What the Evaluator measures and requires.

    The overall slice is always among the slices: TFX blesses no model without it.

    Raises:
        ConfigError: a gate names a metric that is not in ``METRICS``, or two gates name the same.
    """
    gates = {gate.metric: gate for gate in settings.gates}
    unknown = sorted(set(gates) - set(METRICS))
    if unknown or len(gates) != len(settings.gates):
        raise ConfigError(
            f"evaluation.gates must name each of {', '.join(METRICS)} at most once, got "
            + ", ".join(gate.metric for gate in settings.gates)
        )

    metrics = []
    for name, class_name in METRICS.items():
        arguments = f'"thresholds": {settings.threshold}, ' if name in ("precision", "recall") else ""
        metric = config_pb2.MetricConfig(class_name=class_name, config=f'{{{arguments}"name": "{name}"}}')
        if name in gates:
            gate = gates[name]
            threshold = config_pb2.MetricThreshold()
            threshold.value_threshold.lower_bound.value = gate.floor
            if gate.max_drop is not None:
                threshold.change_threshold.direction = config_pb2.MetricDirection.HIGHER_IS_BETTER
                threshold.change_threshold.absolute.value = -gate.max_drop
            # For all rows only: a plain threshold would hold for every slice, down to a carrier with one flight.
            metric.per_slice_thresholds.append(
                config_pb2.PerSliceMetricThreshold(slicing_specs=[config_pb2.SlicingSpec()], threshold=threshold)
            )
        metrics.append(metric)
    metrics += [config_pb2.MetricConfig(class_name=class_name) for class_name in REPORTED]

    return config_pb2.EvalConfig(
        # No signature is named: TFMA takes "predict", which our models answer serialized tf.Examples with, and
        # "serving_default" of models that have no other, which is what TFX's own examples export.
        model_specs=[config_pb2.ModelSpec(label_key=label.name, prediction_key="probability")],
        slicing_specs=[
            config_pb2.SlicingSpec(),
            *(config_pb2.SlicingSpec(feature_keys=[column]) for column in settings.slices),
        ],
        metrics_specs=[config_pb2.MetricsSpec(metrics=metrics)],
    )


def read_metrics(evaluation_uri: str) -> dict[str, dict[str, float]]:
    """Metrics by slice, as {"overall" or "carrier=UA": {"auc": 0.7, ..., "example_count": 100.0}}."""
    found: dict[str, dict[str, float]] = {}
    for metrics_for_slice in tfma.load_metrics(evaluation_uri):
        key = metrics_for_slice.slice_key.single_slice_keys
        name = ", ".join(f"{part.column}={_slice_value(part)}" for part in key) or "overall"
        values: dict[str, float] = {}
        for item in metrics_for_slice.metric_keys_and_values:
            # Differences to the baseline stand under the same names with is_diff set.
            if item.value.WhichOneof("type") == "double_value" and not item.key.is_diff:
                values.setdefault(item.key.name, item.value.double_value.value)
        found[name] = values
    return found


def read_verdict(evaluation_uri: str) -> tuple[bool, list[str]]:
    """Whether the model was blessed, and one sentence for each condition it failed."""
    result = tfma.load_validation_result(evaluation_uri)
    failures = []
    for by_slice in result.metric_validations_per_slice:
        key = by_slice.slice_key.single_slice_keys
        where = ", ".join(f"{part.column}={_slice_value(part)}" for part in key) or "all rows"
        for failure in by_slice.failures:
            failures.append(f"{failure.metric_key.name} on {where}: {_reason(failure)}")
    if result.missing_slices or result.missing_cross_slices:
        failures.append("a slice that a gate needs has no rows in the test split")
    return result.validation_ok, failures


def _slice_value(part: Any) -> str:
    kind = part.WhichOneof("kind")
    value = getattr(part, kind)
    return value.decode() if isinstance(value, bytes) else str(value)


def _reason(failure: Any) -> str:
    measured = failure.metric_value.double_value.value
    threshold = failure.metric_threshold
    if failure.metric_key.is_diff:
        drop = -threshold.change_threshold.absolute.value
        return f"{measured:+.4f} against the last blessed model, may drop by {drop:g} at most"
    return f"{measured:.4f} is below the floor {threshold.value_threshold.lower_bound.value:g}"
