"""Slices in which a metric is undefined: no number, no failed gate, and JSON that any reader takes."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_model_analysis as tfma

from pipeline.quality.tfma_config import eval_config, read_metrics
from pipeline.quality.verdict import judge
from pipeline.settings.config import Label
from pipeline.settings.gates import Evaluation, FairnessGate, Gate, SliceGate
from pipeline.settings.tasks import ANSWERS
from tests.fast.test_slicing import fast, measure

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:invalid value encountered in divide")]
CARRIERS = np.repeat([b"late", b"on time", b"both"], 200)
LATE = np.concatenate([np.ones(200), np.zeros(200), np.arange(200) % 2])


def measured(settings: Evaluation, label: Label, values: np.ndarray, answers: np.ndarray, to: Path) -> dict:
    columns = {"label": values, ANSWERS[label.task]: answers, "carrier": CARRIERS}
    types = {name: pa.list_(pa.binary() if name == "carrier" else pa.float32()) for name in columns}
    table = pa.table({name: pa.array([[one] for one in column], types[name]) for name, column in columns.items()})
    config = tfma.utils.update_eval_config_with_defaults(eval_config(settings, label))
    batches = [{tfma.ARROW_RECORD_BATCH_KEY: batch} for batch in table.to_batches()]
    return read_metrics(measure(*fast(config), batches, to))


def test_rows_of_one_class_have_no_auc_and_pass_the_gates_with_a_note(tmp_path):
    gates = (
        Gate("auc", 0.4),
        SliceGate("auc", by="carrier", floor=0.3),
        SliceGate("precision", by="carrier", floor=0.3),
        FairnessGate("auc", by="carrier", max_gap=0.1),
    )
    settings = Evaluation(gates)
    answers = np.random.default_rng(0).uniform(size=600)
    metrics = measured(settings, Label("label"), LATE, answers, tmp_path)
    for name, there in (("late", {"recall"}), ("on time", {"false_positive_rate"})):
        undefined = {"auc", "auc_precision_recall", "precision", "recall", "false_positive_rate"} - there
        assert not undefined & metrics[f"carrier={name}"].keys()
        assert there <= metrics[f"carrier={name}"].keys()
    assert {"auc", "precision", "recall", "calibration"} <= metrics["carrier=both"].keys()
    json.dumps(metrics, allow_nan=False)
    verdict = judge(settings, metrics, None)
    assert verdict.blessed, verdict.failed
    assert "auc on carrier=late is undefined for want of rows of both classes (200 examples)" in verdict.passed_over
    assert "precision on carrier=on time is undefined for want of rows of both classes (200 examples)" in (
        verdict.passed_over
    )


def test_a_test_split_of_one_class_fails_the_gate_over_all_rows(tmp_path):
    settings = Evaluation((Gate("auc", 0.4),))
    metrics = measured(settings, Label("label"), np.ones(600), LATE, tmp_path)
    assert judge(settings, metrics, None).failed == (
        "auc on all rows is undefined for want of rows of both classes (600 examples)",
    )


def test_numbers_that_are_all_the_same_have_no_squared_correlation(tmp_path):
    settings = Evaluation((Gate("rmse", ceiling=9), SliceGate("squared_correlation", by="carrier", floor=0.001)))
    values = np.where(CARRIERS == b"both", np.random.default_rng(0).normal(size=600), 3.0)
    metrics = measured(settings, Label("label", ()), values, values * 0.9, tmp_path)
    assert "squared_correlation" not in metrics["carrier=late"]
    verdict = judge(settings, metrics, None)
    assert verdict.blessed
    assert "squared_correlation on carrier=late is undefined for want of rows that differ (200 examples)" in (
        verdict.passed_over
    )
