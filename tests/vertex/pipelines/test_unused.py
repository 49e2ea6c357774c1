"""The search lists deployed models without traffic, stale TensorBoards and schedules that push nothing."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from google.protobuf import struct_pb2

from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Job, Machines
from pipeline.vertex.endpoints.endpoint import DUE, HOLDER, UNTIL, ServingEndpoint
from pipeline.vertex.endpoints.registry import Registry
from pipeline.vertex.pipelines import submit
from pipeline.vertex.pipelines.unused import Scope, Unused, search
from tests.fakes.google_cloud import BUCKET, NUMBER, REGION, GoogleCloud
from tests.fakes.script import Fault
from tests.vertex.pipelines.conftest import ago

CONTAINER = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
PLACE = ["--region=us-central1", "--project=demo"]
Deploy = Callable[..., str]


def found(scope: Scope) -> list[Unused]:
    seen = list(search(scope, lambda _: None))
    assert all(isinstance(one, Unused) for one in seen), seen
    return seen  # type: ignore[return-value]


@pytest.fixture
def deploy(cloud, there: GoogleCloud) -> Deploy:
    """Deploy the next version of a pipeline's model, some days ago; return its id on the endpoint."""

    def deployed(
        share: int = 0, days: float = 90, pipeline: str = "flights", alias: str = "", settings: Endpoint | None = None
    ) -> str:
        serving = ServingEndpoint(cloud, settings or Endpoint("late-flights"))
        serving.create({}, None)
        registry = Registry(cloud, pipeline)
        version = registry.add("gs://m/1", f"gs://b/{pipeline}/1", CONTAINER, {}, "", None)
        if alias:
            registry.move_alias(alias, version)
        key = serving.deploy(version)
        endpoint = there.vertex.serving.endpoints[serving.name]
        endpoint.deployed_models[-1].create_time = ago(days)
        if share:
            endpoint.traffic_split = {**dict.fromkeys(endpoint.traffic_split, 100 - share), key: share}
        return key

    return deployed


def test_a_model_without_traffic_is_found_with_its_price_and_the_command(
    scope: Scope, deploy: Deploy, cloud, there: GoogleCloud
):
    deploy(100)
    key = deploy(0, settings=Endpoint("late-flights", "g2-standard-8", "NVIDIA_L4", 1, min_replicas=2))
    (unused,) = found(scope)
    assert unused.what == ("flights-2 on the endpoint late-flights: no traffic, 2 x g2-standard-8 with 1 NVIDIA_L4")
    hour = scope.prices.per_hour("g2-standard-8", "NVIDIA_L4", 1, region="us-central1", use="prediction")
    assert unused.price == pytest.approx(2 * 730 * hour)
    words = shlex.split(unused.command)
    undeploy = ["gcloud", "ai", "endpoints", "undeploy-model", "late-flights", f"--deployed-model-id={key}"]
    assert words == undeploy + PLACE
    (name,) = there.vertex.serving.endpoints
    cloud.client(v1.EndpointServiceClient).undeploy_model(endpoint=name, deployed_model_id=key).result()
    assert there.vertex.serving.traffic() == {"1": 100}


def test_a_model_that_was_deployed_in_these_days_is_in_use(scope: Scope, deploy: Deploy):
    deploy(0, days=29)
    assert found(scope) == []
    assert len(found(replace(scope, since=ago(28)))) == 1


def test_a_live_version_is_always_in_use_and_the_previous_one_until_its_grace_period_has_ended(
    scope: Scope, deploy: Deploy, there: GoogleCloud
):
    live, previous = deploy(0, alias="live"), deploy(0, alias="previous")
    assert found(scope) == []
    (endpoint,) = there.vertex.serving.endpoints.values()
    for ends, expected in ((600, []), (-600, ["flights-2"])):
        moment = str(int(ago(0).timestamp()) + ends)
        endpoint.labels = {f"{DUE}{live}": moment, f"{DUE}{previous}": moment}
        assert [unused.what.partition(" ")[0] for unused in found(scope)] == expected


def test_an_endpoint_that_a_push_changes_is_in_use_and_one_of_a_push_that_was_killed_is_not(
    scope: Scope, deploy: Deploy, there: GoogleCloud
):
    deploy(0)
    (endpoint,) = there.vertex.serving.endpoints.values()
    endpoint.labels[HOLDER], endpoint.labels[UNTIL] = "run-1", str(int(ago(0).timestamp()) + 600)
    assert found(scope) == []
    endpoint.labels[UNTIL] = str(int(ago(0).timestamp()) - 600)
    assert len(found(scope)) == 1


def test_models_of_other_pipelines_are_not_listed(scope: Scope, deploy: Deploy):
    deploy(0, pipeline="taxi")
    assert found(scope) == []


def test_models_on_every_page_of_endpoints_are_found(scope: Scope, deploy: Deploy):
    for name in ("a", "b", "c"):
        deploy(0, settings=Endpoint(f"late-{name}"))
    assert len(found(scope)) == 3


def test_a_machine_or_region_without_a_price_is_listed(scope: Scope, deploy: Deploy):
    deploy(0, settings=Endpoint("late-flights", "c3-standard-5"))
    for one in (scope, replace(scope, prices=replace(scope.prices, resources={}))):
        (unused,) = found(one)
        assert (unused.price, unused.what[-17:]) == (None, "1 x c3-standard-5")


def test_a_model_that_has_scaled_to_zero_or_shares_a_pool_costs_nothing_alone(
    scope: Scope, deploy: Deploy, there: GoogleCloud
):
    deploy(0)
    (endpoint,) = there.vertex.serving.endpoints.values()
    assert len(found(scope)) == 1
    endpoint.deployed_models[0].dedicated_resources.min_replica_count = 0  # by v1beta1
    assert found(scope) == []
    endpoint.deployed_models[0].shared_resources = "projects/demo/locations/us-central1/deploymentResourcePools/p"
    assert found(scope) == []


BOARDS = f"projects/{NUMBER}/locations/{REGION}/tensorboards"


@pytest.fixture
def board(there: GoogleCloud) -> Callable[..., None]:
    """Make a TensorBoard of a size, with experiments by the days since each of their runs."""

    def made(number: int, size: int = 3 << 30, days: float = 400, **experiments: list[float]) -> None:
        name = f"{BOARDS}/{number}"
        standing = there.vertex.standing
        standing.tensorboards[name] = v1.Tensorboard(name=name, display_name="flights", create_time=ago(days))
        standing.sizes[name] = size
        for key, runs in experiments.items():
            experiment = f"{name}/experiments/{key}"
            standing.experiments[experiment] = v1.TensorboardExperiment(name=experiment, update_time=ago(max(runs)))
            for place, run in enumerate(runs):
                one = f"{experiment}/runs/{place}"
                standing.runs[one] = v1.TensorboardRun(name=one, update_time=ago(run))

    return made


@pytest.fixture
def with_board(scope: Scope, vertex) -> Scope:
    """The pipeline whose table of machines names the TensorBoard 1."""
    training = Job(tensorboard=f"projects/demo/locations/{REGION}/tensorboards/1")
    return replace(scope, vertex=replace(vertex, machines=Machines(training=training)))


def test_a_tensorboard_without_new_data_is_found_with_the_price_of_its_storage(
    with_board: Scope, board: Callable[..., None]
):
    board(1, a=[200, 90], b=[300])
    (unused,) = found(with_board)
    assert unused.what == f"TensorBoard flights: 3.00 GiB, all of it older than {ago(90):%Y-%m-%d}"
    assert unused.price == pytest.approx(30)
    assert unused.command == "gcloud ai tensorboards delete 1 --region=us-central1 --project=demo"


@pytest.mark.parametrize(
    "properties", [{"a": [200, 3], "b": [300]}, {"days": 3}, {"a": [90], "size": 0}, {"number": 2, "a": [90]}]
)
def test_a_tensorboard_with_new_data_or_none_or_of_others_is_not_listed(
    properties, with_board: Scope, board: Callable[..., None]
):
    board(**{"number": 1, **properties})
    assert found(with_board) == []


@pytest.fixture
def schedule(compiled: Path, vertex, cloud) -> Callable[[str], v1.Schedule]:
    """Create the schedule of a pipeline."""
    return lambda name: submit.create_schedule(compiled, vertex, name, "0 3 * * 1", cloud, lambda _: None)


def run(schedule: v1.Schedule, there: GoogleCloud, days: float, state: str = "SUCCEEDED", pushed: bool = False) -> None:
    """Let the schedule have started a run that has ended."""
    job = there.vertex.run_schedule(schedule.name)
    assert job is not None
    job.state, job.create_time = v1.PipelineState[f"PIPELINE_STATE_{state}"], ago(days)
    metadata = struct_pb2.Struct()
    metadata.update({"pushed": int(pushed), "pushed_destination": "gs://b/1"})
    outputs = {"pushed_model": v1.PipelineTaskDetail.ArtifactList(artifacts=[v1.Artifact(metadata=metadata)])}
    job.job_detail.task_details.append(v1.PipelineTaskDetail(task_name="Pusher", outputs=outputs, state="SUCCEEDED"))


def test_a_schedule_is_found_after_three_runs_without_a_push(
    scope: Scope, schedule: Callable[[str], v1.Schedule], there: GoogleCloud
):
    created = schedule("flights")
    run(created, there, 22, pushed=True)
    for days, state in ((21, "FAILED"), (14, "SUCCEEDED")):
        run(created, there, days, state)
    assert found(scope) == [], "the last three runs pushed a model"
    run(created, there, 7)
    (unused,) = found(scope)
    assert (unused.what, unused.price) == ("schedule flights: its last 3 runs pushed no model", None)
    number = created.name.rpartition("/")[2]
    assert unused.command == f"python vertex_runner.py pause {number} --region=us-central1 --project=demo"
    run(created, there, 1, "RUNNING")
    assert len(found(scope)) == 1, "a run that has not ended says nothing"


@pytest.mark.parametrize(("name", "runs", "paused"), [("flights", 2, False), ("flights", 3, True), ("taxi", 3, False)])
def test_a_new_or_paused_schedule_or_one_of_another_pipeline_is_not_listed(
    name, runs, paused, scope: Scope, schedule: Callable[[str], v1.Schedule], cloud, there: GoogleCloud
):
    created = schedule(name)
    for number in range(runs):
        run(created, there, 21 - 7 * number)
    if paused:
        submit.change_schedule(name, "pause", cloud)
    assert found(scope) == []


def test_a_new_project_has_nothing_unused_and_every_place_is_searched(scope: Scope):
    places: list[str] = []
    assert list(search(scope, places.append)) == []
    assert places == ["endpoints", "TensorBoards", "schedules", "artifacts"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "place"),
    [("ListEndpoints", "endpoints"), ("ListTensorboards", "TensorBoards"), ("ListSchedules", "schedules")],
)
def test_what_may_not_be_listed_is_a_line_with_the_role_and_the_search_goes_on(
    method: str, place: str, scope: Scope, there: GoogleCloud
):
    denied = f"Permission 'aiplatform.x.list' denied on {method}"
    there.vertex.script.faults.append(Fault(method, grpc.StatusCode.PERMISSION_DENIED, denied, times=9))
    places: list[str] = []
    lines = list(search(scope, places.append))
    assert lines == [f"not checked: {place}: {denied}; it needs roles/aiplatform.viewer"]
    assert len(places) == 4


def test_a_bucket_that_may_not_be_read_or_does_not_exist_is_a_line(scope: Scope, vertex, there: GoogleCloud):
    (line,) = search(replace(scope, vertex=replace(vertex, bucket="other")), lambda _: None)
    assert "not checked: artifacts: " in line
    assert "The specified bucket does not exist." in line
    there.rest.project.denied.add(("storage.objects.list", f"buckets/{BUCKET}"))
    (line,) = search(scope, lambda _: None)
    assert "not checked: artifacts: " in line
    assert "storage.objects.list denied" in line
    assert line.endswith("; it needs roles/storage.objectViewer")


def test_rejected_credentials_end_the_search(scope: Scope, there: GoogleCloud):
    there.vertex.script.faults.append(Fault("ListEndpoints", grpc.StatusCode.UNAUTHENTICATED, "expired", times=9))
    with pytest.raises(exceptions.Unauthenticated):
        list(search(scope, lambda _: None))


@pytest.mark.slow
def test_a_short_outage_does_not_end_the_search(scope: Scope, deploy: Deploy, there: GoogleCloud):
    deploy(0)
    there.vertex.script.faults.append(Fault("ListEndpoints", grpc.StatusCode.UNAVAILABLE, "connection reset"))
    assert len(found(scope)) == 1
