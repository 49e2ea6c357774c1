"""The way back: one command, whatever state a push has left."""

import time

import pytest

from pipeline.errors import UserError
from pipeline.vertex.endpoints import canary
from pipeline.vertex.endpoints.endpoint import HOLDER, UNTIL, ServingEndpoint
from pipeline.vertex.endpoints.registry import Registry
from tests.fakes.google_cloud import GoogleCloud
from tests.vertex.serving import ENDPOINT, Pushes

pytestmark = pytest.mark.slow


@pytest.fixture
def serving(cloud) -> ServingEndpoint:
    return ServingEndpoint(cloud, ENDPOINT)


@pytest.fixture
def entry(cloud) -> Registry:
    return Registry(cloud, "flights")


def roll_back(serving: ServingEndpoint, entry: Registry, *wanted: str) -> list[str]:
    said: list[str] = []
    canary.carry_out(serving, entry, canary.plan(serving, entry, *wanted), said.append)
    return said


def test_a_plan_says_what_would_be_done_and_changes_nothing(pushes: Pushes, there: GoogleCloud, serving, entry):
    pushes.push(1)
    pushes.push(2)
    calls = len(there.vertex.calls)
    found = canary.plan(serving, entry)
    assert found.now == "100 % to flights-2"
    assert found.steps == [
        "deploy version 1, which takes some minutes",
        "give version 1 all the traffic, and the aliases live and default",
        "undeploy version 2, which is labelled rolled-back",
    ]
    assert all(".Get" in call or ".List" in call for call in there.vertex.calls[calls:])


def test_the_version_before_comes_back_though_it_was_undeployed(pushes: Pushes, there: GoogleCloud, serving, entry):
    pushes.push(1)
    pushes.push(2)
    said = roll_back(serving, entry)
    assert said == ["now: 100 % to flights-1", "undeployed version 2"]
    fake = there.vertex.serving
    assert fake.traffic() == {"1": 100}
    assert fake.deployed() == ["1"]
    assert fake.aliases() == {"1": {"default", "live"}, "2": set()}
    assert fake.models[f"{entry.name}@2"].labels["state"] == "rolled-back"
    with pytest.raises(UserError, match="no version before this one is known .* versions: 1, 2; .*rollback NUMBER"):
        roll_back(serving, entry)


def test_while_the_version_before_is_deployed_nothing_has_to_be(pushes: Pushes, there: GoogleCloud, serving, entry):
    pushes.push(1)
    (endpoint,) = there.vertex.serving.endpoints.values()
    (first,) = endpoint.deployed_models
    pushes.push(2)
    # As in the grace period.
    endpoint.deployed_models.append(first)
    endpoint.labels[f"undeploy-after-{first.id}"] = str(int(time.time()) + 600)
    deployed = there.vertex.count("DeployModel")
    roll_back(serving, entry)
    assert there.vertex.count("DeployModel") == deployed
    assert there.vertex.serving.traffic() == {"1": 100}
    assert dict(endpoint.labels) == {}


def test_any_version_comes_back_by_its_number(pushes: Pushes, there: GoogleCloud, serving, entry):
    for number in (1, 2, 3):
        pushes.push(number)
    roll_back(serving, entry, "1")
    assert there.vertex.serving.traffic() == {"1": 100}
    assert there.vertex.serving.aliases() == {"1": {"default", "live"}, "2": set(), "3": set()}
    with pytest.raises(UserError, match="there is no version 9 in .*, versions: 1, 2, 3"):
        roll_back(serving, entry, "9")
    with pytest.raises(UserError, match="version 1 has all the traffic of .* already"):
        roll_back(serving, entry, "1")


def test_a_model_that_was_rolled_back_is_not_deployed_again_by_the_next_run(pushes: Pushes, there, serving, entry):
    pushes.push(1)
    pushes.push(2)
    roll_back(serving, entry)
    with pytest.raises(UserError, match="version 2 of .* is this model, and was rolled back"):
        pushes.push(2)
    pushes.push(3)
    assert there.vertex.serving.traffic() == {"3": 100}


def test_a_push_that_has_not_ended_is_ended_and_the_traffic_put_back(pushes: Pushes, there, serving, entry):
    pushes.push(1)
    pushes.push(2)
    (endpoint,) = there.vertex.serving.endpoints.values()
    roll_back(serving, entry, "1")
    ServingEndpoint.deploy(serving, entry.versions()[1])
    first, second = (one.id for one in endpoint.deployed_models)
    endpoint.traffic_split = {first: 90, second: 10}
    endpoint.labels = {HOLDER: "run-2", UNTIL: str(int(time.time()) + 600), f"push-before-{first}": "100"}
    found = canary.plan(serving, entry)
    assert found.now == "90 % to flights-1, 10 % to flights-2"
    assert found.steps == [
        "end the push of run-2",
        "put the traffic back: 100 % to flights-1",
        "undeploy version 2, which is labelled rolled-back",
    ]
    assert roll_back(serving, entry) == ["now: 100 % to flights-1", "undeployed version 2"]
    assert there.vertex.serving.deployed() == ["1"]
    assert dict(endpoint.labels) == {}


def test_there_is_no_way_back_from_the_first_version(pushes: Pushes, serving, entry):
    with pytest.raises(UserError, match="there is no endpoint"):
        roll_back(serving, entry)
    pushes.push(1)
    with pytest.raises(UserError, match="no version before this one is known"):
        roll_back(serving, entry)
