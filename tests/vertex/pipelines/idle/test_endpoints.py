"""Deployed models that nobody asks are found; those that are asked, kept for a rollback or of others are not."""

import re
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.settings.endpoint import Endpoint
from pipeline.vertex.endpoints.endpoint import DUE, HOLDER, UNTIL, ServingEndpoint
from pipeline.vertex.endpoints.registry import Registry
from pipeline.vertex.pipelines.idle import endpoints
from pipeline.vertex.pipelines.idle.finding import Idle, Scope, Unseen
from tests.fakes.google_cloud import GoogleCloud
from tests.fakes.script import Fault
from tests.vertex.pipelines.idle.conftest import ago

CONTAINER = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
Deploy = Callable[..., str]


@pytest.fixture
def deploy(cloud, there: GoogleCloud) -> Deploy:
    """Deploy the next version of a pipeline's model, some days ago; return its id on the endpoint."""

    def deployed(share: int = 0, days: float = 90, pipeline: str = "flights", settings: Endpoint | None = None) -> str:
        serving = ServingEndpoint(cloud, settings or Endpoint("late-flights"))
        serving.create({}, None)
        version = Registry(cloud, pipeline).add("gs://m/1", f"gs://b/{pipeline}/1", CONTAINER, {}, "", None)
        key = serving.deploy(version)
        endpoint = there.vertex.serving.endpoints[serving.name]
        endpoint.deployed_models[-1].create_time = ago(days)
        if share:
            endpoint.traffic_split = {**dict.fromkeys(endpoint.traffic_split, 100 - share), key: share}
        return key

    return deployed


def found(scope: Scope) -> list[Idle]:
    seen = list(endpoints.look(scope))
    assert all(isinstance(one, Idle) for one in seen), seen
    return seen  # type: ignore[return-value]


def test_a_version_without_requests_is_found_with_its_price_and_the_command(scope: Scope, deploy: Deploy):
    key = deploy(100, settings=Endpoint("late-flights", "g2-standard-8", "NVIDIA_L4", 1, min_replicas=2))
    (idle,) = found(scope)
    assert idle.what == "endpoint late-flights, flights-1"
    assert idle.why == "no requests in 30 days, 2 x g2-standard-8 with 1 NVIDIA_L4"
    hour = scope.prices.per_hour("g2-standard-8", "NVIDIA_L4", 1, region="us-central1", use="prediction")
    assert idle.price.dollars == pytest.approx(2 * 730 * hour)
    assert idle.command == (
        f"gcloud ai endpoints undeploy-model late-flights --deployed-model-id={key} --region=us-central1 --project=demo"
    )


@pytest.mark.parametrize(
    ("requests", "days", "why"),
    [
        (29, 90, "29 requests in 30 days"),
        (30, 90, None),
        (1, 3, "1 request in 3 days"),
        (3, 3, None),
        (0, 0.9, None),
    ],
)
def test_less_than_a_request_a_day_since_it_is_there_is_hardly_any(
    requests: int, days: float, why: str | None, scope: Scope, deploy: Deploy, there: GoogleCloud
):
    deploy(100, days)
    there.vertex.serving.of_others["1"] = [(200, 12.0)] * (requests - requests // 3) + [(500, 12.0)] * (requests // 3)
    assert [idle.why.partition(", ")[0] for idle in found(scope)] == ([why] if why else [])


def test_a_version_without_a_share_is_found_beside_one_that_is_asked(scope: Scope, deploy: Deploy, there: GoogleCloud):
    deploy(100)
    deploy(0)
    there.vertex.serving.of_others["1"] = [(200, 12.0)] * 10_000
    (idle,) = found(scope)
    assert (idle.what, idle.why) == (
        "endpoint late-flights, flights-2",
        "no share of the traffic, 1 x n2-standard-4",
    )


def test_a_version_in_its_grace_period_is_left_alone_and_one_past_it_is_not(
    scope: Scope, deploy: Deploy, there: GoogleCloud
):
    deploy(100)
    key = deploy(0)
    there.vertex.serving.of_others["1"] = [(200, 12.0)] * 10_000
    (endpoint,) = there.vertex.serving.endpoints.values()
    endpoint.labels[f"{DUE}{key}"] = str(int(scope.now.timestamp()) + 600)
    assert found(scope) == []
    endpoint.labels[f"{DUE}{key}"] = str(int(scope.now.timestamp()) - 600)
    assert [idle.why for idle in found(scope)] == ["no share of the traffic, past its grace period, 1 x n2-standard-4"]


def test_an_endpoint_that_a_push_changes_now_is_left_alone_and_one_of_a_push_that_was_killed_is_not(
    scope: Scope, deploy: Deploy, there: GoogleCloud
):
    deploy(100)
    (endpoint,) = there.vertex.serving.endpoints.values()
    endpoint.labels[HOLDER], endpoint.labels[UNTIL] = "run-1", str(int(scope.now.timestamp()) + 600)
    assert found(scope) == []
    endpoint.labels[UNTIL] = str(int(scope.now.timestamp()) - 600)
    assert len(found(scope)) == 1


def test_the_commands_carried_out_in_their_order_leave_nothing_deployed(
    scope: Scope, deploy: Deploy, cloud, there: GoogleCloud
):
    for share in (100, 20, 0):
        deploy(share)
    client = cloud.client(v1.EndpointServiceClient)
    commands = [idle.command for idle in found(scope)]
    assert len(commands) == 3
    for command in commands[:-1]:  # that of the last one is Vertex AI's own matter: "will always end up empty"
        words = dict(re.findall(r"--([\w-]+)=(\S+)", command))
        split = words.get("traffic-split")
        traffic = {split.partition("=")[0]: int(split.partition("=")[2])} if split else {}
        (name,) = there.vertex.serving.endpoints
        client.undeploy_model(
            endpoint=name, deployed_model_id=words["deployed-model-id"], traffic_split=traffic
        ).result()
    assert there.vertex.serving.traffic() == {"1": 100}
    assert "--traffic-split" not in commands[-1]


def test_models_of_other_pipelines_are_looked_at_with_all_or_on_the_endpoint_of_the_settings_only(
    scope: Scope, deploy: Deploy
):
    deploy(100, pipeline="taxi", settings=Endpoint("trips"))
    assert found(scope) == []
    assert [idle.what for idle in found(replace(scope, whole=True))] == ["endpoint trips, taxi-1"]
    assert [idle.what for idle in found(replace(scope, endpoint="trips"))] == ["endpoint trips, taxi-1"]


def test_every_page_of_endpoints_is_looked_at(scope: Scope, deploy: Deploy, there: GoogleCloud):
    for name in ("a", "b", "c"):
        deploy(100, settings=Endpoint(f"late-{name}"))
    assert len(found(scope)) == 3
    assert there.vertex.count("ListEndpoints") == 3


def test_without_cloud_monitoring_the_versions_without_a_share_are_found_all_the_same(
    scope: Scope, deploy: Deploy, there: GoogleCloud
):
    deploy(100)
    deploy(0)
    there.rest.project.monitored = False
    unseen, idle = endpoints.look(scope)
    assert isinstance(unseen, Unseen)
    assert unseen.what == "the requests to the endpoint late-flights"
    assert unseen.reason.startswith("Permission monitoring.timeSeries.list denied; it needs roles/monitoring.viewer")
    assert isinstance(idle, Idle)
    assert idle.what == "endpoint late-flights, flights-2"


def test_a_machine_or_region_without_a_price_is_found_and_the_reason_said(scope: Scope, deploy: Deploy):
    deploy(100, settings=Endpoint("late-flights", "c3-standard-5"))
    (idle,) = found(scope)
    assert idle.price.dollars is None
    assert "has no machine type 'c3-standard-5'; the nearest is " in idle.price.unknown
    (idle,) = found(replace(scope, prices=replace(scope.prices, resources={})))
    assert idle.price.dollars is None


def test_machines_that_vertex_ai_chooses_or_shares_have_no_price_of_their_own(
    scope: Scope, deploy: Deploy, there: GoogleCloud
):
    deploy(100)
    (endpoint,) = there.vertex.serving.endpoints.values()
    endpoint.deployed_models[0].automatic_resources = v1.AutomaticResources(min_replica_count=1)
    (idle,) = found(scope)
    assert idle.price.unknown == "Vertex AI chooses the machines of automatic resources"
    endpoint.deployed_models[0].shared_resources = "projects/demo/locations/us-central1/deploymentResourcePools/p"
    assert found(scope) == []


def test_a_model_that_has_scaled_to_zero_costs_nothing(scope: Scope, deploy: Deploy, there: GoogleCloud):
    deploy(100)
    (endpoint,) = there.vertex.serving.endpoints.values()
    endpoint.deployed_models[0].dedicated_resources.min_replica_count = 0  # by v1beta1, of somebody else
    assert found(replace(scope, whole=True)) == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ListEndpoints"])
def test_an_outage_of_a_moment_is_lived_through(method: str, scope: Scope, deploy: Deploy, there: GoogleCloud):
    deploy(100)
    there.vertex.script.faults.append(Fault(method, grpc.StatusCode.UNAVAILABLE, "connection reset"))
    assert len(found(scope)) == 1
