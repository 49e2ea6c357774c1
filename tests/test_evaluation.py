"""What the Evaluator is asked."""

from __future__ import annotations

from tensorflow_model_analysis.proto import config_pb2

from pipeline.config import Evaluation, FairnessGate, Gate, Label, SliceGate
from pipeline.evaluation import eval_config

LABEL = Label("late")


def test_the_overall_slice_is_there_with_and_without_slices():
    for slices in ((), ("origin", "carrier")):
        made = eval_config(Evaluation(gates=(Gate("auc", 0.6),), slices=slices), LABEL)
        assert made.slicing_specs[0] == config_pb2.SlicingSpec()
        assert [list(spec.feature_keys) for spec in made.slicing_specs[1:]] == [[column] for column in slices]


def test_columns_that_a_gate_names_are_sliced_by_too():
    gates = (Gate("auc", 0.6), SliceGate("auc", by="carrier=MQ", floor=0.6), FairnessGate("recall", "origin", 0.1))
    made = eval_config(Evaluation(gates=gates, slices=("origin", "weekday")), LABEL)
    assert [list(spec.feature_keys) for spec in made.slicing_specs] == [[], ["origin"], ["weekday"], ["carrier"]]


def test_precision_and_recall_are_taken_at_the_stated_threshold():
    made = eval_config(Evaluation(gates=(Gate("auc", 0.6),), threshold=0.3), LABEL)
    configs = {metric.class_name: metric.config for metric in made.metrics_specs[0].metrics}
    assert configs["Precision"] == '{"thresholds": 0.3, "name": "precision"}'
    assert configs["Recall"] == '{"thresholds": 0.3, "name": "recall"}'
