"""Jobs as processes on this machine: the environment of every replica, and what happens when one fails."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.vertex import REHEARSAL_VARIABLE
from pipeline.vertex.jobs import local_jobs

SHOW = """
import json, os, sys
names = ("TF_CONFIG", "CLUSTER_SPEC", "AIP_CHECKPOINT_DIR", "CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_FILE", "GIVEN")
shown = {"folder": os.listdir(), "arguments": sys.argv[1:], **{name: os.environ.get(name) for name in names}}
print(json.dumps(shown), flush=True)
"""
# The first replica, whose end is the job's, waits until the others have ended by themselves.
LAST = """
import json, os, time
from pathlib import Path
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief":
    while sum(bool(log.read_text()) for log in Path(os.environ["LOGS"]).glob("*workerpool1*")) < 2:
        time.sleep(0.1)
"""
TRIAL = """
import sys, hypertune
values = dict(argument[2:].split("=") for argument in sys.argv[1:])
if float(values["x"]) > 0.7:
    sys.exit("too large")
hypertune.HyperTune().report_hyperparameter_tuning_metric("val_auc", float(values["x"]), global_step=1)
"""


def job(code: str, *replicas: int, env: list[dict[str, str]] | None = None) -> dict[str, Any]:
    container = {"imageUri": "i:1", "command": [sys.executable, "-c", code], "env": env or []}
    pools = [{"replicaCount": count, "containerSpec": container} for count in replicas]
    return {"workerPoolSpecs": pools, "baseOutputDirectory": {"outputUriPrefix": "/root/job"}}


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(REHEARSAL_VARIABLE, str(tmp_path))
    return tmp_path


def said(logs: Path, replica: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((logs / f"some-{replica}.log").read_text())
    return {**found, **{name: json.loads(found[name]) for name in ("TF_CONFIG", "CLUSTER_SPEC")}}


def test_every_replica_has_vertex_ais_environment_and_an_empty_folder(logs):
    local_jobs.run(
        "some", job(SHOW + LAST, 1, 2, 3, env=[{"name": "GIVEN", "value": "x"}]), ["--units=3"], LOGS=str(logs)
    )
    chief, second = said(logs, "workerpool0-0"), said(logs, "workerpool1-1")
    assert chief["TF_CONFIG"]["task"] == {"type": "chief", "index": 0}
    assert second["TF_CONFIG"]["task"] == {"type": "worker", "index": 1}
    assert second["CLUSTER_SPEC"]["task"] == {"type": "workerpool1", "index": 1}
    cluster = chief["TF_CONFIG"]["cluster"]
    assert cluster == second["TF_CONFIG"]["cluster"]
    assert [len(cluster[role]) for role in ("chief", "worker")] == [1, 2]
    assert len({*cluster["chief"], *cluster["worker"]}) == 3
    assert second["AIP_CHECKPOINT_DIR"] == "/root/job/checkpoints/"
    assert (second["GIVEN"], second["folder"], second["arguments"]) == ("x", [], ["--units=3"])
    assert not list(logs.glob("*workerpool2*"))  # Reduction Servers have no part in it


def test_one_replica_alone_is_a_chief_without_pools(logs):
    local_jobs.run("some", job(SHOW, 1))
    assert list(said(logs, "workerpool0-0")["CLUSTER_SPEC"]["cluster"]) == ["chief"]


def only(role: str, statement: str, other: str = "time.sleep(3600)") -> str:
    """Return code that runs ``statement`` in the replicas of a role, and ``other`` in all other replicas."""
    return f"""
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "{role}":
    {statement}
else:
    {other}
"""


@pytest.mark.slow
def test_a_replica_that_fails_ends_the_others_and_says_its_last_lines(monkeypatch):
    monkeypatch.setattr(local_jobs, "SECONDS_TO_END", 1.0)
    with pytest.raises(UserError, match=r"some-workerpool1-0 ended with exit code 1.\nno such variable"):
        local_jobs.run("some", job(only("worker", 'sys.exit("no such variable")'), 1, 1))


def test_the_first_replica_that_fails_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(local_jobs, "SECONDS_TO_END", 3600.0)  # longer than a test may take
    with pytest.raises(UserError, match=r"some-workerpool0-0 ended with exit code 1.\nno such column"):
        local_jobs.run("some", job(only("chief", 'sys.exit("no such column")'), 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("other", ['sys.exit("the first is gone")', "time.sleep(3600)"], ids=["fails", "still waits"])
def test_a_job_has_ended_well_when_its_first_replica_has_though_another(other, monkeypatch):
    monkeypatch.setattr(local_jobs, "SECONDS_TO_END", 3600.0)
    code = only("worker", other, "time.sleep(2)")
    started = time.monotonic()
    local_jobs.run("some", job(code, 1, 1))
    assert time.monotonic() - started >= 2


def search_of(code: str, **study: Any) -> dict[str, Any]:
    parameter = {
        "parameterId": "x",
        "scaleType": "UNIT_LINEAR_SCALE",
        "doubleValueSpec": {"minValue": 0, "maxValue": 1},
    }
    metrics = [{"metricId": "val_auc", "goal": "MAXIMIZE"}]
    return {
        "displayName": "some",
        "studySpec": {"metrics": metrics, "parameters": [parameter], **study},
        "maxTrialCount": 12,
        "parallelTrialCount": 4,
        "trialJobSpec": job(code, 1),
    }


@pytest.mark.slow
def test_a_search_runs_its_trials_with_values_of_the_space_and_goes_on_after_a_failed_one():
    trials = local_jobs.search(search_of(TRIAL))
    assert 0 < len(trials) < 12
    assert all(trial["measured"] == trial["values"]["x"] <= 0.7 for trial in trials)


# Is worse after its second step.
CURVE = """
import sys, hypertune
value = float(sys.argv[1].partition("=")[2])
tune = hypertune.HyperTune()
tune.report_hyperparameter_tuning_metric("val_auc", value, global_step=1)
tune.report_hyperparameter_tuning_metric("val_auc", value - 1, global_step=2)
"""


@pytest.mark.slow
def test_a_study_out_of_time_starts_no_trial_once_one_has_completed():
    limit = {"maximumRuntimeConstraint": {"maxDuration": "0s"}, "minNumTrials": 1, "shouldStopAsap": True}
    search = search_of(CURVE, studyStoppingConfig=limit)
    (trial,) = local_jobs.search({**search, "parallelTrialCount": 1})
    assert trial["id"] == "1"
    assert trial["measured"] == trial["values"]["x"]  # its best measurement
