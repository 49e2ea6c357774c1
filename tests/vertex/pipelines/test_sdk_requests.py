"""Our requests beside those of Google's SDK for the same job and the same schedule: every difference is meant."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform
from google.cloud.aiplatform import initializer
from google.cloud.aiplatform.utils import resource_manager_utils
from google.protobuf import json_format

from pipeline.vertex.pipelines.submit import create_schedule, submit
from tests.fakes.google_cloud import PROJECT, REGION, GoogleCloud

pytestmark = pytest.mark.slow  # the SDK alone takes seconds to import
CRON = "TZ=Europe/Berlin 0 3 * * 1"
KEY = "projects/demo/locations/us-central1/keyRings/r/cryptoKeys/k"


@pytest.fixture
def sdk(there: GoogleCloud, cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK, led to the fake; what ``init`` sets is gone after the test."""
    monkeypatch.setattr(initializer, "global_config", initializer._Config())
    settings = {"project": PROJECT, "location": REGION, "credentials": cloud.credentials}
    initializer.global_config.init(**settings, api_endpoint=there.vertex.endpoint, encryption_spec_key_name=KEY)
    # Asked by gRPC of an address that cannot be led elsewhere, again and again for a minute where there is no network.
    monkeypatch.setattr(resource_manager_utils, "get_project_number", lambda project, credentials=None: "1")


@pytest.fixture
def their_job(sdk, compiled: Path, vertex) -> aiplatform.PipelineJob:
    """The compiled job as somebody without our code would submit it."""
    job = json.loads((compiled / "pipeline_job.json").read_text())
    labels = {**job.get("labels", {}), **vertex.labels}
    path = compiled / "pipeline_job.json"
    return aiplatform.PipelineJob(job["displayName"], str(path), labels=labels, failure_policy="slow")


def requests_of(there: GoogleCloud) -> dict[str, Any]:
    """The last request of each method as {path: value}, and no longer those that only read."""
    found = {}
    for method, request in there.vertex.requests:
        if not method.startswith(("Get", "List")):
            found[method] = flat(json_format.MessageToDict(type(request).pb(request)))
    there.vertex.empty()
    return found


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """{"a.b": value} of nested dicts; a pipeline's spec is one value."""
    if isinstance(value, dict) and not path.endswith("pipelineSpec"):
        items = [flat(inner, f"{path}.{key}" if path else key) for key, inner in value.items()]
        return {key: one for item in items for key, one in item.items()}
    return {path: value}


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    paths = [path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path)]
    return {path: (ours.get(path), theirs.get(path)) for path in paths}


def test_a_submission_with_an_experiment_asks_what_the_sdk_asks(
    their_job: aiplatform.PipelineJob, compiled: Path, vertex, cloud, there: GoogleCloud
):
    name = "late-flights"
    vertex = replace(vertex, experiment=name, encryption_key=KEY, network="projects/12/global/networks/n")
    their_job.submit(vertex.service_account, vertex.network, experiment=name, enable_preflight_validations=True)
    theirs = requests_of(there)
    assert submit(compiled, vertex, cloud, lambda _: None).already is False
    ours = requests_of(there)
    assert set(ours) == set(theirs)
    meant = {
        "CreatePipelineJob": {
            "pipelineJobId": "made of the content, so that two submissions are one job; theirs of the time",
            "pipelineJob.labels.submission": "by which that job is found",
        },
        "CreateMetadataStore": {},
        "CreateContext": {},
        "AddContextChildren": {"childContexts": "of the other job"},
    }
    for method, reasons in meant.items():
        different = differences(ours[method], theirs[method])
        assert set(different) == set(reasons), (method, different)


def test_a_schedule_asks_what_the_sdk_asks(
    their_job: aiplatform.PipelineJob, compiled: Path, vertex, cloud, there: GoogleCloud
):
    vertex = replace(vertex, encryption_key=KEY)
    name = "flights"
    their_job.create_schedule(CRON, name, max_concurrent_active_run_count=1, service_account=vertex.service_account)
    theirs = requests_of(there)["CreateSchedule"]
    create_schedule(compiled, vertex, name, CRON, cloud, lambda _: None)
    created = list(there.vertex.schedules)
    ours = requests_of(there)["CreateSchedule"]
    assert created
    meant = {
        "schedule.createPipelineJobRequest.pipelineJob.displayName": "theirs leaves it out",
        "schedule.createPipelineJobRequest.pipelineJob.labels.submission": "by which submit finds its runs",
    }
    different = differences(ours, theirs)
    assert set(different) == set(meant), different


def test_a_change_of_a_schedule_asks_what_the_sdk_asks(
    their_job: aiplatform.PipelineJob, compiled: Path, vertex, cloud, there: GoogleCloud
):
    their_schedule = aiplatform.PipelineJobSchedule(their_job, "flights")
    their_schedule.create(CRON, max_concurrent_active_run_count=1)
    their_schedule.update(cron="30 4 * * *", max_concurrent_run_count=1, max_concurrent_active_run_count=1)
    theirs = requests_of(there)["UpdateSchedule"]
    for cron in (CRON, "30 4 * * *"):
        create_schedule(compiled, replace(vertex, encryption_key=KEY), "flights", cron, cloud, lambda _: None)
    ours = requests_of(there)["UpdateSchedule"]
    assert ours["updateMask"] == "cron,createPipelineJobRequest,maxConcurrentRunCount,maxConcurrentActiveRunCount"
    assert theirs["updateMask"] == "cron,maxConcurrentRunCount,maxConcurrentActiveRunCount"  # it never changes the job
    assert ours["schedule.cron"] == theirs["schedule.cron"]
    # They send the whole schedule back, of which the service ignores what is output only.
    output_only = {"schedule.state", "schedule.createTime", "schedule.nextRunTime"}
    assert output_only <= set(theirs) - set(ours)
