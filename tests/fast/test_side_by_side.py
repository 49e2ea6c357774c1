"""Steps that run in parallel processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="one after the other here"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, dict]:
    """Return the outcomes of graphs whose steps wait, fail or die, by case."""
    folder = tmp_path_factory.mktemp("graphs")
    command = [sys.executable, "-m", "tests.fast.side_by_side", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_steps_with_their_inputs_run_at_the_same_time_and_what_they_make_is_there(runs):
    run = runs["well"]
    assert run["failed"] == ""
    assert run["files"] == ["Baselines", "Check", "DataGate", "First", "Trainer", "Transform"]
    assert run["pids"] == 6
    # Transform does not wait for the gate, but what goes on from it does. Check has waited for Transform to begin, and
    # Transform for Baselines, so that each ran at the same time as the other.
    assert run["began"] == ["First", "Check", "Transform", "DataGate", "Baselines", "Trainer"]
    assert {state.split()[1] for state in run["ended"]} == {"ran"}


def test_no_step_has_a_lowered_priority(runs):
    assert set(runs["well"]["niceness"].values()) == {os.nice(0)}


def test_a_step_that_waits_has_its_cpu_time_beside_its_seconds(runs):
    assert set(runs["well"]["cpu"]) == {"First", "Check", "DataGate", "Transform", "Baselines", "Trainer"}
    cpu_seconds, seconds = runs["well"]["cpu"]["Transform"]
    assert 0 < cpu_seconds < seconds / 1.5  # it sleeps for 2 s, or twice 2


def test_a_second_run_executes_nothing(runs):
    assert {state.split()[1] for state in runs["again"]["ended"]} == {"cached"}


def test_a_gate_that_closes_ends_what_began_beside_it(runs):
    run = runs["bad data"]
    assert run["failed"] == "DataGate: there is no more"
    assert run["others"] == []  # Transform was ended
    assert run["files"] == ["Check", "First"]
    assert run["began"] == ["First", "Check", "Transform", "DataGate"]


def test_of_two_that_fail_the_first_of_the_graph_is_the_reason_and_the_other_is_not_lost(runs):
    run = runs["bad data that breaks"]
    assert run["others"] == ["Transform: there is no more"]
    assert run["began"].index("Transform") < run["began"].index("DataGate")
    assert run["failed"] == "DataGate: there is no more"
    assert runs["a bad step"]["failed"] == "Transform: there is no more"
    assert runs["a bad step"]["files"] == ["Baselines", "Check", "DataGate", "First"]


def test_a_process_that_is_killed_fails_its_step(runs):
    assert runs["a lost process"]["failed"].startswith("Check: its process exited without an error message")
    assert "DataGate" not in runs["a lost process"]["began"]


def test_one_after_the_other_nothing_runs_before_its_gate(runs):
    assert runs["alone"]["failed"] == "DataGate: there is no more"
    assert runs["alone"]["began"] == ["First", "Check", "DataGate"]
    assert runs["alone"]["pids"] == 0
