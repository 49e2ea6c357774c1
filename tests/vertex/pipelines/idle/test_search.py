"""Looking everywhere: what may not be looked at is said, the rest is found, and nothing is changed."""

from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest
from google.api_core import exceptions

from pipeline.vertex.pipelines.idle.finding import Scope
from pipeline.vertex.pipelines.idle.search import search
from tests.fakes.google_cloud import BUCKET, NUMBER, GoogleCloud
from tests.fakes.script import Fault


def test_a_new_project_has_nothing_idle_and_every_place_was_looked_at(scope: Scope):
    places: list[str] = []
    found = search(scope, places.append)
    assert (found.idle, found.unseen, found.notes) == ([], [], [])
    assert places == ["endpoints", "TensorBoards", "jobs", "schedules", "artifacts"]
    search(replace(scope, whole=True), places.append)
    assert places[-1] == "persistent resources"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("ListEndpoints", "endpoints"),
        ("ListTensorboards", "TensorBoards"),
        ("ListCustomJobs", "jobs"),
        ("ListHyperparameterTuningJobs", "jobs"),
        ("ListSchedules", "schedules"),
        ("ListPersistentResources", "persistent resources"),
    ],
)
def test_what_may_not_be_listed_is_said_and_the_rest_is_looked_at(
    method: str, place: str, scope: Scope, write: Callable[..., None], there: GoogleCloud
):
    write(f"flights/artifacts/{NUMBER}/flights-1/Trainer_1/b", 90)
    denied = f"Permission 'aiplatform.x.list' denied on {method}"
    there.vertex.script.faults.append(Fault(method, grpc.StatusCode.PERMISSION_DENIED, denied, times=9))
    found = search(replace(scope, whole=True), lambda _: None)
    assert [(unseen.what, unseen.reason) for unseen in found.unseen] == [
        (place, f"{denied}; it needs roles/aiplatform.viewer")
    ]
    assert [idle.what for idle in found.idle] == ["artifacts of flights, run flights-1"]


def test_a_bucket_that_may_not_be_read_is_said(scope: Scope, there: GoogleCloud):
    there.rest.project.denied.add(("storage.objects.list", f"buckets/{BUCKET}"))
    (unseen,) = search(scope, lambda _: None).unseen
    assert unseen.what == "artifacts"
    assert "storage.objects.list denied" in unseen.reason
    assert unseen.reason.endswith("it needs roles/storage.objectViewer of the bucket and roles/aiplatform.viewer")


def test_a_bucket_that_is_not_there_is_said(scope: Scope):
    (unseen,) = search(replace(scope, bucket="other"), lambda _: None).unseen
    assert "The specified bucket does not exist." in unseen.reason


def test_refused_credentials_end_it(scope: Scope, there: GoogleCloud):
    there.vertex.script.faults.append(Fault("ListEndpoints", grpc.StatusCode.UNAUTHENTICATED, "expired", times=9))
    with pytest.raises(exceptions.Unauthenticated):
        search(scope, lambda _: None)


def test_nothing_is_changed(scope: Scope, write: Callable[..., None], there: GoogleCloud):
    write(f"flights/artifacts/{NUMBER}/flights-1/Trainer_1/b", 90)
    before = there.files()
    assert search(replace(scope, whole=True), lambda _: None).idle
    assert {call.rpartition(".")[2].rstrip("s")[:4] for call in there.vertex.calls} <= {"List", "Get", "GetM", "Read"}
    assert there.files() == before
