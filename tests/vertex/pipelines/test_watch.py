"""Waiting for a job: a line for every task, outages lived through, the end said with its cause and link."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex.cloud import Cloud, LostContact
from pipeline.vertex.pipelines.submit import submit
from pipeline.vertex.pipelines.watch import TaskLine, failure_of, pushed_to, state_of, watch
from tests.fakes.google_cloud import GoogleCloud
from tests.fakes.script import Fault

PUSHED = {"Pusher": {"pushed_model": {"pushed": 1, "pushed_destination": "gs://demo-bucket/flights/serving/17"}}}


@pytest.fixture
def job(compiled: Path, vertex, cloud: Cloud, there: GoogleCloud) -> str:
    """A job that is submitted and has not started."""
    return submit(compiled, vertex, cloud, lambda _: None).name


def watched(job: str, cloud: Cloud, **settings: float) -> tuple[v1.PipelineJob, list[TaskLine], list[str]]:
    lines: list[TaskLine] = []
    notes: list[str] = []
    return watch(job, cloud, lines.append, notes.append, seconds=0.0, **settings), lines, notes


@pytest.mark.slow
def test_every_task_has_a_line_when_it_starts_and_when_it_ends(job, cloud, there: GoogleCloud):
    there.vertex.script.outputs = PUSHED
    there.vertex.script.cached_tasks = {"StatisticsGen"}
    ended, lines, notes = watched(job, cloud)
    assert (state_of(ended), pushed_to(ended)) == ("succeeded", "gs://demo-bucket/flights/serving/17")
    assert notes == []
    states = {}
    for line in lines:
        states.setdefault(line.name, []).append(line.state)
    assert states["Trainer"] == ["running", "ran"]
    assert states["StatisticsGen"] == ["running", "cached"]
    assert {"ExampleGen", "Transform", "Tuner", "LatestBlessedModel", "Evaluator", "Pusher"} <= set(states)
    assert not any("resolver" in name for name in states)
    assert next(line.seconds for line in lines if line.state == "ran") == 90.0


@pytest.mark.slow
def test_a_model_that_is_not_blessed_is_not_pushed(job, cloud, there: GoogleCloud):
    there.vertex.script.outputs = {"Pusher": {"pushed_model": {"pushed": 0}}}
    ended, _, _ = watched(job, cloud)
    assert (state_of(ended), pushed_to(ended)) == ("succeeded", None)


@pytest.mark.slow
def test_a_failed_task_is_said_with_its_cause_and_the_job_with_its_link(job, cloud, there: GoogleCloud):
    there.vertex.script.failing_tasks = {"Trainer": "the replica workerpool0-0 ran out of memory"}
    ended, lines, _ = watched(job, cloud)
    (failed,) = (line for line in lines if line.state == "failed")
    assert failed.name == "Trainer"
    assert (lines[-1].name, lines[-1].state) == ("Report", "ran")
    assert failed.detail == "the replica workerpool0-0 ran out of memory"
    text = failure_of(job, ended)
    assert "the job failed: The DAG failed because some tasks failed. The failed tasks are: ['Trainer']." in text
    assert job in text
    assert "https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines/runs/flights-" in text


def test_a_job_that_is_cancelled_ends_the_waiting_and_starts_nothing_more(job, cloud, there: GoogleCloud):
    client = cloud.client(v1.PipelineServiceClient)
    for _ in range(2):
        client.get_pipeline_job(name=job)
    client.cancel_pipeline_job(name=job)
    ended, lines, _ = watched(job, cloud)
    assert state_of(ended) == "cancelled"
    assert {line.state for line in lines if line.name != "LatestBlessedModel"} == {"cancelled"}
    assert "Report" not in {line.name for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL]
)
def test_a_short_outage_is_waited_through(code, job, cloud, there: GoogleCloud):
    there.vertex.script.faults.append(Fault("GetPipelineJob", code, "try later", times=3, after=2))
    ended, _, notes = watched(job, cloud)
    assert state_of(ended) == "succeeded"
    assert "the job goes on, trying again" in notes[0]
    assert "try later" in notes[0]
    assert notes[1:] == ["Vertex AI answers again"]


@pytest.mark.slow
def test_waiting_that_was_given_up_can_be_taken_up_again(job, cloud, there: GoogleCloud):
    there.vertex.script.faults.append(Fault("GetPipelineJob", grpc.StatusCode.UNAVAILABLE, "down", times=10_000))
    with pytest.raises(LostContact, match=rf"The job goes on; .* python vertex_runner.py watch {job}"):
        watched(job, cloud, patience=0.2)
    there.vertex.script.faults.clear()
    ended, _, _ = watched(job, cloud)
    assert state_of(ended) == "succeeded"


def test_a_network_that_is_gone_ends_the_waiting_and_not_the_job(job, cloud):
    without_network = replace(cloud, endpoints={**cloud.endpoints, "aiplatform": "https://localhost:9/"})
    with pytest.raises(LostContact, match="The job goes on"):
        watched(job, without_network, patience=0.2)


@pytest.mark.slow
def test_a_slow_job_is_looked_at_until_it_ends(job, cloud, there: GoogleCloud):
    there.vertex.script.slow = 3
    ended, lines, _ = watched(job, cloud)
    assert state_of(ended) == "succeeded"
    assert len(lines) == len({(line.name, line.state) for line in lines}), "a line came twice"


def test_a_job_that_does_not_exist_is_named(cloud, there: GoogleCloud):
    with pytest.raises(UserError, match="looking at projects/.*/pipelineJobs/flights-7 failed: .*does not exist"):
        watched("projects/demo/locations/us-central1/pipelineJobs/flights-7", cloud)
