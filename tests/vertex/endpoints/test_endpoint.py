"""One endpoint and many who change it: whatever happens at the same moment, one push holds it and nothing is lost."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex.endpoints import endpoint as endpoints
from pipeline.vertex.endpoints import observation
from pipeline.vertex.endpoints.endpoint import EndpointTaken, ServingEndpoint, deployed_id, push_of
from pipeline.vertex.endpoints.registry import Registry, Version
from tests.fakes.google_cloud import NUMBER, GoogleCloud
from tests.fakes.script import Fault
from tests.vertex.serving import ENDPOINT, answer

CONTAINER = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")


def version_of(cloud, number: int = 1) -> Version:
    folder = f"gs://demo-bucket/flights/serving/{number}"
    return Registry(cloud, "flights").add(f"gs://m/{number}", folder, CONTAINER, {}, "", None)


@pytest.fixture
def serving(cloud, there: GoogleCloud) -> ServingEndpoint:
    """An endpoint that is there, without models."""
    serving = ServingEndpoint(cloud, ENDPOINT)
    serving.create({}, None)
    return serving


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """Runs all at the same moment; returns what each returned or raised."""
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], Any]) -> Any:
        start.wait()
        try:
            return action()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


@pytest.mark.slow
@pytest.mark.parametrize("code", [grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION])
def test_of_two_pushes_that_take_the_endpoint_at_the_same_moment_one_gets_it(serving, cloud, there: GoogleCloud, code):
    there.vertex.serving.etag_code = code
    for number in range(10):
        runs = [f"run-{number}-{one}" for one in "ab"]
        both = [ServingEndpoint(cloud, ENDPOINT) for _ in runs]
        takes = [functools.partial(one.take, run, 600, lambda _: False) for one, run in zip(both, runs, strict=True)]
        got = at_once(*takes)
        assert sorted(type(one).__name__ for one in got) == ["EndpointTaken", "dict"], got
        winner = 0 if isinstance(got[0], dict) else 1
        held = push_of(serving.read())
        assert held is not None
        assert held.holder == runs[winner]
        with pytest.raises(EndpointTaken, match=f"was ended by {runs[winner]}"):
            both[1 - winner].set_traffic(runs[1 - winner], {})
        both[winner].give_back(runs[winner])


@pytest.mark.slow
def test_a_change_whose_answer_is_lost_is_not_taken_for_somebody_elses(serving, cloud, there: GoogleCloud):
    key = serving.deploy(version_of(cloud))
    lost = Fault("UpdateEndpoint", grpc.StatusCode.UNAVAILABLE, "connection reset", once_done=True)
    there.vertex.script.faults.append(lost)
    assert serving.take("run-1", 600, lambda _: False) == {}
    there.vertex.script.faults.append(replace(lost, times=1))
    serving.set_traffic("run-1", {key: 100})
    assert there.vertex.serving.traffic() == {"1": 100}


def test_a_change_of_the_traffic_by_somebody_else_in_between_is_read_again(serving, cloud, there: GoogleCloud):
    first, second = (serving.deploy(version_of(cloud, number)) for number in (1, 2))
    serving.take("run-1", 600, lambda _: False)
    (endpoint,) = there.vertex.serving.endpoints.values()
    stale = serving.read()
    serving.set_traffic("run-1", {first: 100})
    with pytest.raises(exceptions.Aborted):
        cloud.client(v1.EndpointServiceClient).update_endpoint(
            endpoint=v1.Endpoint(name=stale.name, etag=stale.etag, traffic_split={second: 100}),
            update_mask={"paths": ["traffic_split"]},
        )
    assert dict(endpoint.traffic_split) == {first: 100}


@pytest.mark.slow
def test_two_pushes_that_create_the_endpoint_at_the_same_moment_create_one(cloud, there: GoogleCloud):
    there.vertex.script.operations_pend = 4
    both = [ServingEndpoint(cloud, ENDPOINT) for _ in range(2)]
    assert at_once(*(functools.partial(one.create, {}, None) for one in both)) == [None, None]
    assert len(there.vertex.serving.endpoints) == 1
    assert both[0].read().name == both[1].read().name


@pytest.mark.slow
def test_two_first_pushes_at_the_same_moment_are_two_versions_of_one_entry(cloud, there: GoogleCloud):
    there.vertex.script.operations_pend = 4
    got = at_once(*(functools.partial(version_of, cloud, number) for number in (1, 2)))
    assert sorted(one.id for one in got) == ["1", "2"], got
    assert [one.id for one in Registry(cloud, "flights").versions()] == ["1", "2"]


@pytest.mark.slow
def test_a_version_is_deployed_when_another_change_of_the_endpoint_has_ended(serving, cloud, there: GoogleCloud):
    first = version_of(cloud)
    there.vertex.script.operations_pend = 3
    client = cloud.client(v1.EndpointServiceClient)
    resources = v1.DedicatedResources(machine_spec=v1.MachineSpec(machine_type="n2-standard-4"), min_replica_count=1)
    client.deploy_model(
        endpoint=serving.name, deployed_model=v1.DeployedModel(model=first.name, dedicated_resources=resources)
    )
    serving.deploy(version_of(cloud, 2))
    assert there.vertex.serving.deployed() == ["1", "2"]


def test_a_version_that_does_not_start_is_an_error_with_vertex_ais_reason(serving, cloud, there: GoogleCloud):
    there.vertex.script.failing_operations["DeployModel"] = "Model server exited unexpectedly"
    with pytest.raises(exceptions.GoogleAPICallError, match="Model server exited unexpectedly"):
        serving.deploy(version_of(cloud))
    assert there.vertex.serving.deployed() == []


def test_a_version_that_takes_too_long_is_one_message_with_its_operation(serving, cloud, there, monkeypatch):
    version = version_of(cloud)
    there.vertex.script.operations_pend = 100
    monkeypatch.setattr(endpoints, "SECONDS_TO_DEPLOY", 0.1)
    with pytest.raises(UserError, match=rf"projects/{NUMBER}/.*/operations/\d+ has not ended within 0 minutes"):
        serving.deploy(version)


@pytest.mark.parametrize("version_in_name", [True, False])
def test_a_deployed_version_is_found_by_its_project_number_with_and_without_its_version(
    version_in_name: bool, serving, cloud, there: GoogleCloud
):
    there.vertex.serving.version_in_name = version_in_name
    first, second = version_of(cloud, 1), version_of(cloud, 2)
    key = serving.deploy(second)
    endpoint = serving.read()
    assert endpoint.name.startswith(f"projects/{NUMBER}/")
    assert (deployed_id(endpoint, first), deployed_id(endpoint, second)) == (None, key)
    assert serving.deploy(second) == key
    assert there.vertex.count("DeployModel") == 1


def test_an_endpoint_with_a_dedicated_address_is_asked_there(cloud, there: GoogleCloud):
    client = cloud.client(v1.EndpointServiceClient)
    new = v1.Endpoint(display_name="dedicated", dedicated_endpoint_enabled=True)
    made = client.create_endpoint(parent=cloud.parent, endpoint=new, endpoint_id="late-flights").result()
    serving = ServingEndpoint(cloud, ENDPOINT)
    assert serving.address == made.dedicated_endpoint_dns
    assert str(serving.address).startswith("https://late-flights.us-central1-")
    own = ServingEndpoint(cloud, replace(ENDPOINT, address="https://late.example.com"))
    assert own.address == "https://late.example.com"


def test_other_endpoints_are_asked_at_the_regions_address(serving, cloud, there: GoogleCloud):
    there.vertex.serving.answers["1"] = answer
    key = serving.deploy(version_of(cloud))
    serving.take("run-1", 600, lambda _: False)
    with pytest.raises(exceptions.FailedPrecondition, match="doesn't have traffic_split"):
        observation.predict(serving, {"distance": 100.0})
    serving.set_traffic("run-1", {key: 100})
    assert observation.predict(serving, {"distance": 100.0}).deployed == key
