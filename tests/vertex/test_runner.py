"""vertex_runner.py as a user calls it, against the fake Google Cloud."""

import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.pipelines.submit import submit
from tests.fakes.google_cloud import GoogleCloud
from tests.fakes.script import Fault
from tests.vertex.pipelines.test_watch import PUSHED

# Each starts Python anew with Google's clients, some TFX too: together half a minute.
pytestmark = pytest.mark.slow


@pytest.fixture
def submitted(compiled: Path, vertex, cloud, there: GoogleCloud) -> str:
    """A job that is submitted and has not started."""
    return submit(compiled, vertex, cloud, lambda _: None).name


def test_a_run_is_checked_uploaded_submitted_and_waited_for(runner, there: GoogleCloud):
    there.vertex.script.outputs = PUSHED
    there.vertex.script.starts_at_once = True
    code, text = runner("run", "--labels=team=flights", "--experiment=late-flights")
    assert code == 0, text
    assert "  credentials      ok" in text
    assert f"uploading {len(there.files())} files" in text
    assert "page  https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines/runs/flights-" in text
    assert "  Trainer             ran          90.0 s" in text
    assert "pushed to gs://demo-bucket/flights/serving/17" in text
    assert "costs an hour; no earlier run shows how long it takes" in text
    # 90 seconds on the fake's clock, at the price of e2-standard-8 and its disk.
    assert re.search(r" Trainer +e2-standard-8 +0.03 +\$0.01", text)
    assert re.search(r" together +\$0.1\d", text)
    (job,) = there.vertex.pipeline_jobs.values()
    assert job.labels["team"] == "flights"


def test_the_next_run_is_estimated_from_the_job_that_was_watched_and_refused_above_the_limit(
    runner, there: GoogleCloud, tmp_path: Path
):
    there.vertex.script.outputs = PUSHED
    code, text = runner("run")
    assert code == 0, text
    uploaded, (job,) = there.files(), there.vertex.pipeline_jobs
    code, text = runner("run", "--max-cost=0.05")
    assert code == 1, text
    assert f"costs, estimated from the job {job.rpartition('/')[2]} on Vertex AI" in text
    assert re.search(r"budget +wrong +the run is estimated at \$0.1\d, between .* above the limit of \$0.05", text)
    assert text.endswith("1 of these must be put right first. Nothing was submitted.\n")
    assert (there.files(), list(there.vertex.pipeline_jobs)) == (uploaded, [job])
    listed = subprocess.run(
        [sys.executable, "-m", "pipeline", "runs", "list", f"--output={tmp_path / 'output'}"],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert re.search(rf" {job.rpartition('/')[2]} +2026-01-01 .* succeeded .* \$0.1\d", listed)


def test_a_limit_refuses_what_no_earlier_run_has_shown(runner, there: GoogleCloud):
    code, text = runner("check", "--max-cost=5")
    assert code == 1, text
    assert "what the run costs is not known, so the limit of $5.00" in text
    code, text = runner("run", "--max-cost=five")
    assert code == 2, text
    assert "--max-cost: must be US dollars, a number above 0, got 'five'" in text


def test_submitting_without_waiting_returns_with_the_name_and_page_of_the_job(runner, there: GoogleCloud):
    code, text = runner("run", "--no-wait")
    assert code == 0, text
    (name,) = there.vertex.pipeline_jobs
    assert f"submitted\n  job   {name}\n  page  https://" in text
    assert there.vertex.count("GetPipelineJob") == 0


def test_check_lists_what_is_wrong_and_submits_nothing(runner, there: GoogleCloud):
    there.rest.project.images.clear()
    code, text = runner("check", "--bucket=not-there")
    assert code == 1, text
    assert "gs://not-there does not exist" in text
    assert "-> gcloud storage buckets create gs://not-there --location=us-central1" in text
    assert "-> make image IMAGE=localhost" in text
    assert "2 of these must be put right first. Nothing was submitted." in text
    assert there.vertex.pipeline_jobs == {}


def test_check_alone_submits_nothing_when_all_is_well(runner, there: GoogleCloud):
    code, text = runner("check")
    assert code == 0, text
    assert there.vertex.calls == []


def test_lost_contact_has_an_exit_code_of_its_own_and_says_how_to_go_on(runner, submitted: str, there: GoogleCloud):
    there.vertex.script.faults.append(Fault("GetPipelineJob", grpc.StatusCode.UNAVAILABLE, "down", times=10_000))
    code, text = runner("watch", submitted, "--patience=0.3")
    assert code == 4, text
    assert f"python vertex_runner.py watch {submitted}" in text


def test_a_failed_job_is_watched_to_its_end_by_its_id(runner, submitted: str, there: GoogleCloud):
    there.vertex.script.failing_tasks = {"Transform": "out of memory"}
    code, text = runner("watch", submitted.rpartition("/")[2])
    assert code == 1, text
    assert "Transform           failed" in text
    assert "out of memory" in text
    # As it was asked for: Vertex AI's own name has the project's number.
    assert f"job  projects/demo/locations/us-central1/pipelineJobs/{submitted.rpartition('/')[2]}" in text


def test_a_cancelled_job_is_reported_by_who_watches_it(runner, submitted: str, there: GoogleCloud):
    there.vertex.pipeline_jobs[submitted].state = v1.PipelineState.PIPELINE_STATE_CANCELLING
    code, text = runner("watch", submitted)
    assert code == 1, text
    assert "the job cancelled: The PipelineJob was cancelled." in text
    (page,) = re.findall(r"report (/.*/report\.html)", text)
    assert "The PipelineJob was cancelled." in Path(page).read_text(encoding="utf-8")


def test_a_model_that_is_not_blessed_has_an_exit_code_of_its_own(runner, submitted: str):
    code, text = runner("watch", submitted)
    assert code == 3, text
    assert "not pushed" in text
