"""When a run repeats an earlier one, so that it has no report to write."""

import datetime
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.runs import record
from pipeline.runs.step import Step
from pipeline.settings.config import load_config

ROOT = Path(__file__).resolve().parents[2]
METRICS = {"auc": 0.7, "recall": float("nan")}


def a_run(name: str, *states: str, failed: tuple[str, float] | None = None) -> record.Record:
    steps = [Step(f"step{number}", state, 1.0, {}, None) for number, state in enumerate(states)]
    outcome = {"failed": [], "metrics": METRICS, "pushed_to": "output/serving/1"}
    config = load_config(ROOT / "configs/flights.py")
    return record.make(name, ["x.py", name], config, datetime.datetime.now(), 0, outcome, steps, failed)


@pytest.fixture
def first() -> record.Record:
    """An earlier run, as the metadata store gives it back."""
    return record.Record(**json.loads(json.dumps(asdict(a_run("first", "ran", "ran")), default=str)))


def test_a_run_that_executed_nothing_repeats_one_with_the_same_outcome(first):
    assert record.repeats(a_run("second", "cached", "looked up"), first)


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"auc": 0.8, "recall": float("nan")}},
        {"pushed_to": "output/serving/2"},
        {"code": "another"},
        {"config": {}},
        {"failed": ("why",)},
        {"artifacts": [7]},
        {"exit_code": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_run_with_another_outcome_or_other_settings_repeats_nothing(first, change):
    assert not record.repeats(replace(a_run("second", "cached"), **change), first)


def test_a_run_that_executed_or_failed_a_step_repeats_nothing(first):
    assert not record.repeats(a_run("second", "cached", "ran"), first)
    assert not record.repeats(a_run("second", "cached", failed=("step1", 1.0)), first)
    assert not record.repeats(a_run("second"), first)
