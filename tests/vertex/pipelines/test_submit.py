"""Submitting: files go up once, a job is submitted once while it runs, and refusals are one clear message."""

import json
import re
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex.pipelines.submit import console_url, create_schedule, submit
from tests.fakes.google_cloud import BUCKET, NUMBER, GoogleCloud
from tests.fakes.script import Fault

CONTEXTS = f"projects/{NUMBER}/locations/us-central1/metadataStores/default/contexts"


def silent(_: str) -> None:
    pass


def uploads(compiled: Path) -> set[str]:
    return set(json.loads((compiled / "uploads.json").read_text()).values())


def test_a_job_is_submitted_as_its_settings_say(compiled, vertex, cloud, there: GoogleCloud):
    key = "projects/demo/locations/us-central1/keyRings/r/cryptoKeys/k"
    vertex = replace(
        vertex,
        network="projects/12/global/networks/default",
        encryption_key=key,
        labels={"team": "flights"},
    )
    submitted = submit(compiled, vertex, cloud, silent)
    (job,) = there.vertex.pipeline_jobs.values()
    assert submitted.name == job.name
    assert not submitted.already
    assert (job.service_account, job.network) == (vertex.service_account, vertex.network)
    assert job.encryption_spec.kms_key_name == key
    assert job.labels["team"] == "flights"
    assert job.labels["tfx_runner"] == "kubeflow_v2"
    assert job.runtime_config.gcs_output_directory == f"gs://{BUCKET}/flights/artifacts"
    assert job.runtime_config.failure_policy == v1.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_SLOW
    assert console_url(job.name) == (
        "https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines/runs/"
        f"{job.name.rpartition('/')[2]}?project={NUMBER}"
    )


def test_what_the_job_needs_is_uploaded_once(compiled, vertex, cloud, there: GoogleCloud):
    said: list[str] = []
    submit(compiled, vertex, cloud, said.append)
    assert there.files() == uploads(compiled)
    assert said[0].startswith(f"uploading {len(uploads(compiled))} files, ")
    said.clear()
    submit(compiled, vertex, cloud, said.append)
    assert said == []


def test_a_file_that_was_cut_short_is_uploaded_again(compiled, vertex, cloud, there: GoogleCloud):
    submit(compiled, vertex, cloud, silent)
    wheel = next(address for address in uploads(compiled) if address.endswith(".whl"))
    blob = there.storage.bucket(BUCKET).blob(wheel.removeprefix(f"gs://{BUCKET}/"))
    blob.upload_from_string(b"half")
    said: list[str] = []
    submit(compiled, vertex, cloud, said.append)
    assert said[0].startswith("uploading 1 files")
    assert there.buckets.read(wheel) != b"half"


def test_a_file_of_the_right_size_with_other_bytes_is_uploaded_again(compiled, vertex, cloud, there: GoogleCloud):
    submit(compiled, vertex, cloud, silent)
    wheel = next(address for address in uploads(compiled) if address.endswith(".whl"))
    blob = there.storage.bucket(BUCKET).blob(wheel.removeprefix(f"gs://{BUCKET}/"))
    whole = there.buckets.read(wheel)
    blob.upload_from_string(whole[:-1] + bytes([whole[-1] ^ 1]))
    said: list[str] = []
    submit(compiled, vertex, cloud, said.append)
    assert said[0].startswith("uploading 1 files")
    assert there.buckets.read(wheel) == whole


def test_a_file_that_somebody_else_uploads_at_the_same_moment_is_kept_if_it_is_the_same(
    compiled, vertex, cloud, there: GoogleCloud
):
    files = uploads_of(compiled)
    wheel = next(file for file, address in files.items() if address.endswith(".whl"))
    blob = there.storage.bucket(BUCKET).blob(files[wheel].removeprefix(f"gs://{BUCKET}/"))
    # Between our look and our upload.
    submit(compiled, vertex, cloud, lambda _: blob.upload_from_filename(wheel))
    theirs = there.buckets.buckets[BUCKET][blob.name].generation
    assert theirs == blob.generation, "it was not written over"


def test_a_file_that_somebody_else_writes_over_at_the_same_moment_stops_the_submission(
    compiled, vertex, cloud, there: GoogleCloud
):
    wheel = next(address for address in uploads(compiled) if address.endswith(".whl"))
    blob = there.storage.bucket(BUCKET).blob(wheel.removeprefix(f"gs://{BUCKET}/"))
    with pytest.raises(UserError, match=re.escape(f"{wheel} was written by somebody else")):
        submit(compiled, vertex, cloud, lambda _: blob.upload_from_string(b"something else"))
    assert there.vertex.pipeline_jobs == {}


def test_submitting_twice_is_one_job_while_it_runs(compiled, vertex, cloud, there: GoogleCloud):
    first = submit(compiled, vertex, cloud, silent)
    second = submit(compiled, vertex, cloud, silent)
    assert second.name == first.name
    assert second.already
    assert len(there.vertex.pipeline_jobs) == 1


@pytest.mark.slow
def test_two_submissions_at_the_same_moment_are_one_job(compiled, vertex, cloud, there: GoogleCloud, monkeypatch):
    first = submit(compiled, vertex, cloud, silent)
    # The list does not have the other's job yet.
    monkeypatch.setattr(there.vertex, "_list_pipeline_jobs", lambda ask: v1.ListPipelineJobsResponse())
    there.vertex.script.faults.append(Fault("ListPipelineJobs", grpc.StatusCode.UNAVAILABLE, "busy"))
    second = submit(compiled, vertex, cloud, silent)
    assert second.name == first.name
    assert len(there.vertex.pipeline_jobs) == 1


@pytest.mark.slow
def test_a_job_that_has_ended_may_run_again(compiled, vertex, cloud, there: GoogleCloud):
    first = submit(compiled, vertex, cloud, silent)
    there.vertex.pipeline_jobs[first.name].state = v1.PipelineState.PIPELINE_STATE_FAILED
    second = submit(compiled, vertex, cloud, silent)
    assert not second.already
    assert first.name.endswith("-1")
    assert second.name == f"{first.name[:-1]}2"
    there.vertex.pipeline_jobs[second.name].state = v1.PipelineState.PIPELINE_STATE_CANCELLED
    assert submit(compiled, vertex, cloud, silent).name == f"{first.name[:-1]}3"


@pytest.mark.slow
def test_a_job_that_a_schedule_has_started_is_known_by_its_content_whatever_its_id(
    compiled, vertex, cloud, there: GoogleCloud
):
    schedule = create_schedule(compiled, vertex, "flights", "0 3 * * 1", cloud, silent)
    scheduled = there.vertex.run_schedule(schedule.name)
    submitted = submit(compiled, vertex, cloud, silent)
    assert (submitted.name, submitted.already) == (scheduled.name, True)
    scheduled.state = v1.PipelineState.PIPELINE_STATE_SUCCEEDED
    assert submit(compiled, vertex, cloud, silent).name.endswith("-1")


def test_what_vertex_ai_finds_before_it_makes_the_job_is_said_and_nothing_is_submitted(
    compiled, vertex, cloud, there: GoogleCloud
):
    there.vertex.script.preflight = ["image i does not exist", "the account lacks a role"]
    with pytest.raises(UserError, match="found:\n  image i does not exist\n  the account lacks a role$"):
        submit(compiled, vertex, cloud, silent)
    assert there.vertex.pipeline_jobs == {}


def test_another_setting_is_another_job(compiled, vertex, cloud, there: GoogleCloud):
    submit(compiled, vertex, cloud, silent)
    submit(compiled, replace(vertex, labels={"team": "other"}), cloud, silent)
    assert len(there.vertex.pipeline_jobs) == 2


@pytest.mark.slow
def test_an_answer_that_is_lost_on_the_way_does_not_make_a_second_job(compiled, vertex, cloud, there: GoogleCloud):
    lost = Fault("CreatePipelineJob", grpc.StatusCode.UNAVAILABLE, "connection reset", once_done=True)
    there.vertex.script.faults.append(lost)
    submitted = submit(compiled, vertex, cloud, silent)
    assert list(there.vertex.pipeline_jobs) == [submitted.name]
    assert there.vertex.count("CreatePipelineJob") == 2


def test_the_run_is_shown_in_its_experiment(compiled, vertex, cloud, there: GoogleCloud):
    # Vertex AI makes the run's context when it starts the job, which here is when the job is looked at.
    submitted = submit(compiled, replace(vertex, experiment="late-flights"), cloud, silent)
    run = f"{CONTEXTS}/{submitted.name.rpartition('/')[2]}"
    assert there.vertex.children == {f"{CONTEXTS}/late-flights": [run]}


def test_the_first_experiment_of_a_project_makes_the_metadata_store_with_the_key(
    compiled, vertex, cloud, there: GoogleCloud
):
    key = "projects/demo/locations/us-central1/keyRings/r/cryptoKeys/k"
    there.vertex.script.operations_pend = 2
    said: list[str] = []
    submit(compiled, replace(vertex, experiment="late-flights", encryption_key=key), cloud, said.append)
    (store,) = there.vertex.stores.values()
    assert store.encryption_spec.kms_key_name == key
    assert len(said) == 1, said
    assert f"{CONTEXTS}/late-flights" in there.vertex.children


def test_a_metadata_store_that_cannot_be_made_does_not_make_the_submission_fail(compiled, vertex, cloud, there):
    there.vertex.script.failing_operations = {"CreateMetadataStore": "the key is in another region"}
    said: list[str] = []
    submitted = submit(compiled, replace(vertex, experiment="late-flights"), cloud, said.append)
    assert submitted.name in there.vertex.pipeline_jobs
    assert "not in its experiment: adding it to late-flights failed: the key is in another region" in said[-1]


def test_a_name_that_is_no_experiments_is_said(compiled, vertex, cloud, there: GoogleCloud):
    there.vertex.script.starts_at_once = True
    first = submit(compiled, vertex, cloud, silent).name.rpartition("/")[2]
    said: list[str] = []
    submit(compiled, replace(vertex, experiment=first), cloud, said.append)
    assert f"contexts/{first} is there, and is no experiment: system.PipelineRun" in said[-1]


def test_an_experiment_that_cannot_be_reached_does_not_make_the_submission_fail(compiled, vertex, cloud, there):
    refused = Fault("CreateContext", grpc.StatusCode.PERMISSION_DENIED, "no metadata for you")
    there.vertex.script.faults.append(refused)
    said: list[str] = []
    submitted = submit(compiled, replace(vertex, experiment="late-flights"), cloud, said.append)
    assert submitted.name in there.vertex.pipeline_jobs
    assert said[-1].startswith("the job runs, but not in its experiment: adding it to late-flights failed: ")
    assert "no metadata for you" in said[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "Permission denied on resource", "ask for the roles Vertex AI User"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded", "ask for more quota"),
        (grpc.StatusCode.INVALID_ARGUMENT, "Bad spec", "check looks at what may be wrong"),
        (grpc.StatusCode.UNAUTHENTICATED, "Expired", "gcloud auth application-default login"),
    ],
)
def test_a_refusal_is_one_message_with_its_remedy(code, message, expected, compiled, vertex, cloud, there):
    there.vertex.script.faults.append(Fault("CreatePipelineJob", code, message, times=99))
    with pytest.raises(UserError, match=rf"submitting the job failed: .*{message}.*{expected}"):
        submit(compiled, vertex, cloud, silent)
    assert there.vertex.pipeline_jobs == {}


def test_a_bucket_that_is_not_there_is_named(compiled, vertex, cloud, there: GoogleCloud):
    elsewhere = {file: f"gs://other/{number}" for number, file in enumerate(uploads_of(compiled))}
    (compiled / "uploads.json").write_text(json.dumps(elsewhere))
    with pytest.raises(UserError, match="uploading to gs://demo-bucket failed: .*What to do: correct the name"):
        submit(compiled, vertex, cloud, silent)
    assert there.vertex.pipeline_jobs == {}


def uploads_of(compiled: Path) -> dict[str, str]:
    return json.loads((compiled / "uploads.json").read_text())
