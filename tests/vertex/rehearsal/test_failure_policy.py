"""A rehearsal goes on after a failed task as far as the failure policy of the job says, and no further."""

from pathlib import Path

import pytest

from pipeline.runs.step import StepFailed
from pipeline.vertex import ALL_NODES, REPORT_TASK
from pipeline.vertex.rehearsal import task_runner
from tests.vertex.rehearsal.test_rehearsal_parts import TASK, after, job_of

REPORT = {
    "dependentTasks": [ALL_NODES],
    "triggerPolicy": {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"},
    "componentRef": {"name": REPORT_TASK},
}


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "ran"), [("FAST", ["First"]), ("SLOW", ["First", "Other", REPORT_TASK])])
def test_after_a_failed_task_others_and_the_report_run_with_slow_and_nothing_with_fast(policy, ran, tmp_path: Path):
    fails = f"import sys\nassert '/First_' not in sys.argv[1], 'no'\n{TASK}"
    job = job_of({"First": {}, "Needs": after("First"), "Other": {}}, tmp_path, fails)
    spec = job["pipelineSpec"]
    spec["components"][ALL_NODES] = {"dag": spec["root"]["dag"]}
    spec["components"][REPORT_TASK] = spec["components"]["some"]
    spec["root"]["dag"] = {"tasks": {ALL_NODES: {"componentRef": {"name": ALL_NODES}}, REPORT_TASK: REPORT}}
    job["runtimeConfig"]["failurePolicy"] = f"PIPELINE_FAILURE_POLICY_FAIL_{policy}"
    with pytest.raises(StepFailed, match="First"):
        task_runner.run(job, "1", tmp_path, tmp_path / "module.py", lambda name: None, lambda step: None)
    assert sorted(log.stem for log in (tmp_path / "logs/1").glob("*.log")) == ran
