"""A new version that does something wrong never stays: everything is put back, and the task says why."""

import os
import re
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.endpoint import Canary
from pipeline.vertex.endpoints import canary as canary_module
from pipeline.vertex.endpoints.canary import CanaryFailed, judged, split
from pipeline.vertex.endpoints.endpoint import HOLDER, UNTIL, EndpointTaken
from pipeline.vertex.endpoints.observation import Observed, p95
from tests.fakes.checks import InvalidArgument
from tests.fakes.google_cloud import GoogleCloud
from tests.fakes.script import Fault
from tests.vertex.serving import ENDPOINT, INSTANCES, QUICK, Pushes, answer

# Each pushes at least once, with all that belongs to it: together half a minute.
pytestmark = pytest.mark.slow


def slowly(**canary) -> object:
    return replace(ENDPOINT, canary=replace(QUICK, **canary))


def fails(instance: dict) -> dict:
    raise ConnectionError("out of memory")


def refuses(instance: dict) -> dict:
    raise InvalidArgument("unknown feature distance")


@pytest.fixture
def pushed_once(pushes: Pushes) -> Pushes:
    pushes.push(1)
    return pushes


def as_before(there: GoogleCloud) -> None:
    """Version 1 alone, with its aliases, and nobody holding the endpoint."""
    serving = there.vertex.serving
    assert serving.traffic() == {"1": 100}
    assert serving.deployed() == ["1"]
    assert serving.aliases()["1"] == {"default", "live"}
    (endpoint,) = serving.endpoints.values()
    assert dict(endpoint.labels) == {}


def state_of_version_2(there: GoogleCloud) -> str:
    return there.vertex.serving.models["projects/demo/locations/us-central1/models/flights@2"].labels["state"]


def test_a_version_that_answers_otherwise_than_in_the_model_check_is_put_back(pushed_once: Pushes, there: GoogleCloud):
    there.vertex.serving.answers["2"] = lambda one: {**answer(one), "probability": 0.5}
    with pytest.raises(
        CanaryFailed, match=r"version 2 does not take over: the smoke test failed, .* probability of row"
    ):
        pushed_once.push(2)
    as_before(there)
    assert {"1": 90, "2": 10} in there.vertex.serving.splits
    assert {"1": 50, "2": 50} not in there.vertex.serving.splits
    assert state_of_version_2(there) == "canary-failed"


def test_a_version_that_fails_is_put_back_with_its_error(pushed_once: Pushes, there: GoogleCloud):
    there.vertex.serving.answers["2"] = fails
    with pytest.raises(CanaryFailed, match="the smoke test failed on row .*out of memory.* 100 % to flights-1"):
        pushed_once.push(2)
    as_before(there)


def test_the_first_version_that_is_wrong_leaves_the_endpoint_without_traffic(pushes: Pushes, there: GoogleCloud):
    there.vertex.serving.answers["1"] = fails
    with pytest.raises(CanaryFailed, match="The traffic is as it was before: no traffic"):
        pushes.push(1)
    assert there.vertex.serving.traffic() == {}
    assert there.vertex.serving.deployed() == []


def test_errors_of_the_users_put_a_version_back_though_our_rows_are_answered(pushed_once: Pushes, there: GoogleCloud):
    there.vertex.serving.of_others = {"1": [(200, 5)] * 900, "2": [(200, 5)] * 80 + [(500, 5)] * 20}
    with pytest.raises(CanaryFailed, match=r"at 10 % of the traffic, of all requests, 20 of 1\d\d failed"):
        pushed_once.push(2)
    as_before(there)


def test_mistakes_of_the_callers_that_fail_with_either_version_do_not_count(pushed_once: Pushes, there: GoogleCloud):
    requests = [(200, 5.0)] * 9000 + [(400, 5.0)] * 1000
    there.vertex.serving.of_others = {"1": requests, "2": requests}
    pushed_once.push(2)
    assert there.vertex.serving.traffic() == {"2": 100}


def test_a_version_that_is_slower_than_allowed_is_put_back(pushed_once: Pushes, there: GoogleCloud):
    there.vertex.serving.of_others = {"1": [(200, 20)] * 900, "2": [(200, 90)] * 100}
    pushed_once.rows = []  # without probes, whose latency is that of this machine
    with pytest.raises(CanaryFailed, match="the 95th percentile of the latency is 90 ms, at most 50 ms"):
        pushed_once.push(2, slowly(max_latency_ms=50))
    as_before(there)
    with pytest.raises(CanaryFailed, match=r"is 90 ms, 4.5 times that of the version before, at most 2 times"):
        pushed_once.push(2, slowly(max_latency_ratio=2))
    as_before(there)


def test_a_version_that_answers_our_own_rows_slowly_is_put_back_though_nobody_else_asks(
    pushed_once: Pushes, there: GoogleCloud, monkeypatch
):
    def slow(instance: dict) -> dict:
        time.sleep(0.1)
        return answer(instance)

    there.vertex.serving.answers["2"] = slow
    monkeypatch.setattr(canary_module, "SECONDS_BETWEEN_LOOKS", 0.1)
    started = time.monotonic()
    with pytest.raises(CanaryFailed, match="of our rows, the 95th percentile of the latency is") as failed:
        # The step lasts until the version has answered enough rows to be judged.
        pushed_once.push(2, slowly(max_latency_ms=50, steps=(50,), minutes=60))
    (milliseconds,) = re.findall(r"latency is (\S+) ms, at most 50 ms", str(failed.value))
    assert 100 <= float(milliseconds.replace(",", "")) <= 1000 * (time.monotonic() - started)
    as_before(there)


def test_a_version_that_has_all_the_traffic_is_left_as_it_is(pushed_once: Pushes, there: GoogleCloud):
    splits = list(there.vertex.serving.splits)
    pushed_once.push(1, run="run-2")
    assert there.vertex.serving.splits == splits
    as_before(there)


def test_what_fails_before_the_time_of_its_step_is_over_is_put_back_at_once(
    pushed_once, there: GoogleCloud, monkeypatch
):
    monkeypatch.setattr(canary_module, "SECONDS_BETWEEN_LOOKS", 0.2)
    there.vertex.serving.of_others = {"1": [(200, 5)] * 900, "2": [(200, 5)] * 80 + [(500, 5)] * 21}
    with pytest.raises(CanaryFailed, match=r"at 10 % of the traffic, of all requests, 21 of 1\d\d failed"):
        pushed_once.push(2, slowly(minutes=60, probe_seconds=0.05))  # longer than a test may take
    as_before(there)


def test_while_a_step_lasts_what_users_see_is_looked_at_now_and_then(pushed_once, there: GoogleCloud, monkeypatch):
    looks, now = [], [0.0]
    clock = SimpleNamespace(
        time=time.time, monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(canary_module, "time", clock)
    seen = canary_module.monitored
    monkeypatch.setattr(canary_module, "monitored", lambda *given: looks.append(now[0]) or seen(*given))
    pushed_once.push(2, slowly(steps=(50,), minutes=1.75, probe_seconds=2))
    # Before it is deployed, about every half minute of the step, and at its end.
    assert looks == [0, 32, 64, 96, 105]


def test_what_cannot_be_watched_is_not_deployed(pushed_once: Pushes, there: GoogleCloud):
    there.rest.project.monitored = False
    with pytest.raises(UserError, match=r"cannot be read .* needs the role roles/monitoring.viewer"):
        pushed_once.push(2)
    as_before(there)
    assert there.vertex.count("DeployModel") == 1


def test_rows_that_the_version_before_refuses_do_not_count_against_the_new_one(pushed_once: Pushes, there: GoogleCloud):
    there.vertex.serving.answers["1"] = refuses
    pushed_once.push(2)
    assert there.vertex.serving.traffic() == {"2": 100}


def test_a_row_that_the_new_version_never_answers_ends_the_smoke_test(pushed_once: Pushes, there: GoogleCloud):
    def all_but_the_last(instance: dict) -> dict:
        return refuses(instance) if instance == INSTANCES[-1] else answer(instance)

    there.vertex.serving.answers |= {"1": refuses, "2": all_but_the_last}
    asked = there.vertex.count("Predict")
    with pytest.raises(CanaryFailed, match="the smoke test failed, it has answered only 11 of 12 rows"):
        pushed_once.push(2)
    # One row to see that version 1 refuses, then ten times as often as a share of 10 % makes likely.
    assert there.vertex.count("Predict") - asked == 1 + 10 * 12 * 10
    as_before(there)


def test_without_steps_the_new_version_gets_all_the_traffic_and_the_smoke_test(pushed_once: Pushes, there: GoogleCloud):
    pushed_once.push(2, slowly(steps=()))
    assert there.vertex.serving.splits[1:] == [{"2": 100}]


def test_the_version_before_stays_for_the_grace_period_and_not_longer(
    pushed_once: Pushes, there: GoogleCloud, monkeypatch
):
    grace, looks = 1.2, []

    def sleep(seconds: float) -> None:
        if seconds == grace:
            (endpoint,) = there.vertex.serving.endpoints.values()
            labels = dict(endpoint.labels)
            due = [int(at) for name, at in labels.items() if name.startswith("undeploy-after-")]
            looks.append((there.vertex.serving.traffic(), HOLDER in labels, there.vertex.serving.deployed(), due))
            ends.append(time.time() + grace)
        time.sleep(seconds)

    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(canary_module, "time", clock)
    ends = [time.time() + grace]
    pushed_once.push(2, slowly(grace_minutes=grace / 60))
    ((traffic, is_held, deployed, (due,)),) = looks
    assert (traffic, is_held, deployed) == ({"2": 100}, False, ["1", "2"])
    assert int(ends[0]) <= due <= ends[1] + 1
    assert there.vertex.serving.deployed() == ["2"]


def test_a_version_whose_push_was_cut_off_in_the_grace_period_goes_with_the_next_push(pushed_once, there: GoogleCloud):
    pushed_once.push(2)
    (endpoint,) = there.vertex.serving.endpoints.values()
    endpoint.deployed_models.append(v1.DeployedModel(id="9", model="x", model_version_id="0"))
    endpoint.labels["undeploy-after-9"] = str(int(time.time()) - 1)
    pushed_once.push(3)
    assert there.vertex.serving.deployed() == ["3"]


def test_of_two_pushes_at_once_the_second_changes_nothing_and_says_who_is_first(pushed_once, there: GoogleCloud):
    hold(there, "run-7", time.time() + 600)
    with pytest.raises(EndpointTaken, match=r"another push, of run-7, changes the endpoint .* until \d\d:\d\d UTC"):
        pushed_once.push(2)
    assert there.vertex.serving.traffic() == {"1": 100}
    assert there.vertex.serving.deployed() == ["1"]


def test_what_a_push_left_that_was_killed_is_put_back_before_the_next_one(pushed_once: Pushes, there: GoogleCloud):
    serving = there.vertex.serving
    (endpoint,) = serving.endpoints.values()
    (first,) = endpoint.deployed_models
    endpoint.deployed_models.append(v1.DeployedModel(id="9", model="x", model_version_id="0"))
    endpoint.traffic_split = {first.id: 90, "9": 10}
    hold(there, "killed", time.time() - 1, first.id)
    pushed_once.push(2)
    assert serving.splits[1] == {"1": 100}
    assert serving.traffic() == {"2": 100}
    assert serving.deployed() == ["2"]


def test_two_that_write_at_the_same_moment_do_not_overwrite_each_other(pushed_once: Pushes, there: GoogleCloud):
    there.vertex.script.faults.append(Fault("UpdateEndpoint", grpc.StatusCode.ABORTED, "etag", times=3))
    pushed_once.push(2)
    assert there.vertex.serving.traffic() == {"2": 100}


def test_a_task_that_is_ended_from_outside_puts_the_traffic_back(
    pushed_once: Pushes, there: GoogleCloud, sigterm_is_caught
):
    def end_us() -> None:
        wait_until(lambda: there.vertex.serving.traffic() == {"1": 90, "2": 10})
        os.kill(os.getpid(), signal.SIGTERM)

    with in_a_thread(threading.Thread(target=end_us)), pytest.raises(CanaryFailed, match="was ended from outside"):
        pushed_once.push(2, slowly(minutes=60))
    as_before(there)


def test_a_push_stops_when_a_rollback_has_taken_the_endpoint_over(pushed_once: Pushes, there: GoogleCloud, monkeypatch):
    monkeypatch.setattr(canary_module, "SECONDS_BETWEEN_LOOKS", 0.1)

    def take_over() -> None:
        wait_until(lambda: there.vertex.serving.traffic() == {"1": 90, "2": 10})
        hold(there, "a-rollback", time.time() + 600)

    with (
        in_a_thread(threading.Thread(target=take_over)),
        pytest.raises(EndpointTaken, match="the push was ended by a-rollback"),
    ):
        pushed_once.push(2, slowly(minutes=60))  # until it looks
    assert there.vertex.serving.traffic() == {"1": 90, "2": 10}  # what is to be done now is the rollback's


def test_traffic_that_cannot_be_put_back_is_said_with_the_command_that_does(pushed_once: Pushes, there: GoogleCloud):
    there.vertex.serving.answers["2"] = fails
    refused = Fault("UpdateEndpoint", grpc.StatusCode.PERMISSION_DENIED, "no longer allowed", times=99, after=2)
    there.vertex.script.faults.append(refused)
    with pytest.raises(UserError, match=r"could not be put back \(no longer allowed\).*vertex_runner.py rollback"):
        pushed_once.push(2)


def test_the_traffic_of_the_others_keeps_its_proportions():
    assert split({"a": 100}, "new", 10) == {"a": 90, "new": 10}
    assert split({"a": 60, "b": 40}, "new", 50) == {"a": 30, "b": 20, "new": 50}
    assert sum(split({"a": 34, "b": 33, "c": 33}, "new", 7).values()) == 100


@pytest.mark.parametrize(
    ("mine", "before", "problem"),
    [
        (Observed(0, 0, None), Observed(9, 0, 5), None),
        (Observed(100, 1, 10), Observed(900, 0, 10), None),
        (Observed(100, 2, 10), Observed(0, 0, None), "2 of 100 failed (2.0 %), 0.0 % with the version before"),
        (
            Observed(100, 30, 10),
            Observed(900, 90, 10),
            "30 of 100 failed (30.0 %), 10.0 % with the version before, at most 1 % more",
        ),
        (Observed(100, 5, 10), Observed(900, 45, 10), None),
        (Observed(100, 0, 16), Observed(900, 0, 10), "1.6 times"),
        (Observed(3, 0, 16), Observed(900, 0, 10), None),
    ],
)
def test_limits_count_against_the_version_before(mine: Observed, before: Observed, problem: str | None):
    said = judged(mine, before, Canary())
    assert (said is None) if problem is None else (problem in str(said))


def test_the_95th_percentile_is_a_value_that_was_measured():
    assert p95([]) is None
    assert p95([7.0]) == 7
    assert p95([float(number) for number in range(100)]) == 94


def hold(there: GoogleCloud, run: str, until: float, deployed: str = "") -> None:
    """Lets another push hold the endpoint, which found all the traffic at a deployed model."""
    (endpoint,) = there.vertex.serving.endpoints.values()
    before = deployed or endpoint.deployed_models[0].id
    endpoint.labels = {HOLDER: run, UNTIL: str(int(until)), f"push-before-{before}": "100"}
    endpoint.etag = f"etag-{run}"


def wait_until(condition, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


class in_a_thread:
    """Runs a thread beside the block, and waits for it."""

    def __init__(self, thread: threading.Thread):
        self.thread = thread

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.thread.join()
