"""What the Evaluator is asked, and how its verdict is read."""

from __future__ import annotations

import pytest
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2

from pipeline.config import ConfigError, Evaluation, Gate, Label
from pipeline.evaluation import eval_config

LABEL = Label("late")


def gated(made: config_pb2.EvalConfig) -> dict[str, tuple[float, float | None]]:
    """Floor and change limit by metric, as TFMA sees them for all rows."""
    found = {}
    for metric in made.metrics_specs[0].metrics:
        for per_slice in metric.per_slice_thresholds:
            assert list(per_slice.slicing_specs) == [config_pb2.SlicingSpec()]
            threshold = per_slice.threshold
            change = threshold.change_threshold.absolute.value if threshold.HasField("change_threshold") else None
            found[metric.class_name] = (threshold.value_threshold.lower_bound.value, change)
    return found


def test_the_overall_slice_is_there_with_and_without_slices():
    for slices in ((), ("origin", "carrier")):
        made = eval_config(Evaluation(gates=(Gate("auc", 0.6),), slices=slices), LABEL)
        assert made.slicing_specs[0] == config_pb2.SlicingSpec()
        assert [list(spec.feature_keys) for spec in made.slicing_specs[1:]] == [[column] for column in slices]


def test_a_gate_holds_a_floor_and_the_last_blessed_model_over_all_rows():
    gates = (Gate("auc", floor=0.6), Gate("recall", floor=0.2, max_drop=None), Gate("precision", 0.1, max_drop=0.05))
    made = eval_config(Evaluation(gates=gates), LABEL)
    assert gated(made) == {"AUC": (0.6, 0.0), "Recall": (0.2, None), "Precision": (0.1, -0.05)}
    # TFX blesses nothing, and says nothing, unless TFMA finds a threshold in the config.
    assert tfma.metrics.metric_thresholds_from_metrics_specs(made.metrics_specs, eval_config=made)


def test_precision_and_recall_are_taken_at_the_stated_threshold():
    made = eval_config(Evaluation(gates=(Gate("auc", 0.6),), threshold=0.3), LABEL)
    configs = {metric.class_name: metric.config for metric in made.metrics_specs[0].metrics}
    assert configs["Precision"] == '{"thresholds": 0.3, "name": "precision"}'
    assert configs["Recall"] == '{"thresholds": 0.3, "name": "recall"}'


@pytest.mark.parametrize("gates", [(Gate("auroc", 0.6),), (Gate("auc", 0.6), Gate("auc", 0.7))])
def test_an_unknown_or_doubled_metric_is_refused(gates):
    with pytest.raises(ConfigError, match="auc, auc_precision_recall, precision, recall at most once, got au"):
        eval_config(Evaluation(gates=gates), LABEL)
