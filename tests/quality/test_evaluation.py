"""Configuration of the Evaluator: slices, metrics and thresholds."""

import json

import numpy as np
import pytest
from tensorflow_model_analysis.proto import config_pb2

from pipeline.quality.tfma_config import as_measured, eval_config, task_in
from pipeline.settings.config import Label
from pipeline.settings.gates import Evaluation, FairnessGate, Gate, SliceGate

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
    for name in ("Precision", "Recall"):
        config = json.loads(configs[name])
        assert config["name"] == name.lower()
        # TFMA counts what is above it; a model answers the second class from the threshold on.
        assert config["thresholds"] < np.float32(0.3) == np.nextafter(np.float32(config["thresholds"]), np.float32(1))


@pytest.mark.parametrize(
    ("task", "logits", "answers", "expected"),
    [
        ("binary", True, [[0.0], [800.0], [-800.0]], [[0.5], [1.0], [0.0]]),
        ("binary", True, [0.0, np.log(3)], [0.5, 0.75]),
        ("binary", True, [[1.0, 1.0 + np.log(3)]], [[0.75]]),
        ("binary", False, [[0.9, 0.1]], [[0.1]]),
        ("binary", False, [[0.9], [0.1]], [[0.9], [0.1]]),
        ("multiclass", True, [[0.0, 0.0, np.log(2)], [999.0, 0.0, 0.0]], [[0.25, 0.25, 0.5], [1.0, 0.0, 0.0]]),
        ("multiclass", False, [[0.2, 0.3, 0.5]], [[0.2, 0.3, 0.5]]),
        ("regression", False, [[7.0]], [[7.0]]),
    ],
)
def test_what_is_measured_is_a_probability_or_a_number(task, logits, answers, expected):
    made = as_measured({"candidate": {"outputs": np.array(answers), "label": np.array([b"a"], object)}}, task, logits)
    assert np.allclose(made["candidate"]["outputs"], expected)
    assert made["candidate"]["outputs"].shape == np.shape(expected)
    assert made["candidate"]["label"] == [b"a"]


@pytest.mark.parametrize(
    ("classes", "task"), [(("0", "1"), "binary"), (("a", "b", "c"), "multiclass"), ((), "regression")]
)
def test_the_task_is_read_back_from_the_config(classes, task):
    gate = Gate({"binary": "auc", "multiclass": "accuracy", "regression": "rmse"}[task], ceiling=1.0, max_drop=None)
    assert task_in(eval_config(Evaluation((gate,)), Label("some", classes))) == task
