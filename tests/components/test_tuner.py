"""Trials of a search, trained in parallel processes."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.preloaded import Preloaded

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="one after the other here"),
]


def search(folder: Path, way: str, code: int = 0) -> tuple[list[dict], str]:
    """Run a search; return its trials, best first, and its log."""
    process = Preloaded("tests.components.searching", [str(folder / "search"), way], ROOT, dict(os.environ))
    with process.stdout:
        log = process.stdout.read()
    assert process.wait() == code, log[-5000:]
    return [] if code else json.loads(re.findall(r"^\[\{.*", log, re.MULTILINE)[-1]), log


def test_the_same_values_are_tried_and_win_as_one_after_the_other(tmp_path):
    beside, log = search(tmp_path / "beside", "side by side")
    alone, _ = search(tmp_path / "alone", "one after the other")
    assert "Trials are trained 2 at a time" in log or len(os.sched_getaffinity(0)) > 2
    # Which of the others are stopped early depends on which have ended by then.
    assert {trial["trial_id"]: trial["rate"] for trial in beside} == {
        trial["trial_id"]: trial["rate"] for trial in alone
    }
    assert beside[0]["trial_id"] == alone[0]["trial_id"]
    assert beside[0]["score"] == pytest.approx(alone[0]["score"], rel=1e-5)


def test_a_trial_whose_process_is_killed_fails_and_the_search_goes_on(tmp_path):
    trials, log = search(tmp_path, "one is killed")
    assert "Failed: trial 1: its process exited without an error message" in log
    assert {trial["trial_id"] for trial in trials if trial["score"]} == {"0", "2", "3"}


def test_a_search_in_which_none_trains_is_an_error_with_a_reason(tmp_path):
    _, log = search(tmp_path, "none trains", code=1)
    assert "TrainingError: every trial of the search failed. trial 3 with {'rate': " in log
    assert "the loss is" in log.splitlines()[-1]
