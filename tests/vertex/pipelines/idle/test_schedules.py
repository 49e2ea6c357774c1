"""Schedules whose last runs pushed nothing are found, and only those."""

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1 as v1
from google.protobuf import struct_pb2

from pipeline.costs.rates import Rate, Rates, to_json
from pipeline.vertex.pipelines import bills
from pipeline.vertex.pipelines import schedules as service
from pipeline.vertex.pipelines.idle import schedules
from pipeline.vertex.pipelines.idle.finding import Scope
from tests.fakes.google_cloud import GoogleCloud
from tests.vertex.pipelines.idle.conftest import ago

CRON = "0 3 * * 1"


@pytest.fixture
def schedule(compiled: Path, vertex, cloud) -> Callable[[str], v1.Schedule]:
    """Create the schedule of a pipeline."""
    return lambda name: service.create(compiled, vertex, name, CRON, cloud, lambda _: None)


def run(schedule: v1.Schedule, there: GoogleCloud, days: float, state: str = "SUCCEEDED", pushed: bool = False) -> None:
    """Let the schedule have started a run that has ended, whose Trainer took half an hour."""
    job = there.vertex.run_schedule(schedule.name)
    assert job is not None
    job.state, job.create_time = v1.PipelineState[f"PIPELINE_STATE_{state}"], ago(days)
    metadata = struct_pb2.Struct()
    metadata.update({"pushed": int(pushed), "pushed_destination": "gs://b/1"})
    outputs = {"pushed_model": v1.PipelineTaskDetail.ArtifactList(artifacts=[v1.Artifact(metadata=metadata)])}
    job.job_detail.task_details.append(v1.PipelineTaskDetail(task_name="Pusher", outputs=outputs, state="SUCCEEDED"))
    started = ago(days)
    times = {"start_time": started, "end_time": started + datetime.timedelta(hours=0.5)}
    job.job_detail.task_details.append(v1.PipelineTaskDetail(task_name="Trainer", state="SUCCEEDED", **times))


def test_three_runs_without_a_push_are_found_with_the_command_that_pauses(
    scope: Scope, schedule: Callable[[str], v1.Schedule], there: GoogleCloud
):
    created = schedule("flights")
    run(created, there, 22, pushed=True)
    for days, state in ((21, "FAILED"), (14, "SUCCEEDED"), (7, "SUCCEEDED")):
        run(created, there, days, state)
    (idle,) = schedules.look(scope)
    dates = [f"{ago(days):%Y-%m-%d}" for days in (7, 14, 21)]
    assert idle.what == "schedule flights"
    assert idle.why == (
        f"its last 3 runs pushed nothing: {dates[0]} not blessed, {dates[1]} not blessed, {dates[2]} failed"
    )
    number = created.name.rpartition("/")[2]
    assert idle.command == f"python vertex_runner.py pause {number} --project demo --region us-central1"


def test_the_price_is_that_of_the_runs_as_often_as_they_come(
    scope: Scope, compiled: Path, schedule: Callable[[str], v1.Schedule], there: GoogleCloud
):
    file = compiled / "pipeline_job.json"
    job = json.loads(file.read_text())
    rates = Rates((Rate("Trainer", "task", "n1-standard-4", 4.0),), 0.03, (), (), "2026-09-08")
    arguments = job["pipelineSpec"]["deploymentSpec"]["executors"]["Report_executor"]["container"]["args"]
    arguments += [bills.FLAG, to_json(rates)]
    file.write_text(json.dumps(job))
    created = schedule("flights")
    for days in (21, 14, 7):
        run(created, there, days)
    (idle,) = schedules.look(scope)
    assert idle.price.dollars == pytest.approx((0.5 * 4 + 0.03) * 365 / 12 / 7)


def test_runs_without_rates_have_no_price(scope: Scope, schedule: Callable[[str], v1.Schedule], there: GoogleCloud):
    created = schedule("flights")
    for days in (21, 14, 7):
        run(created, there, days)
    (idle,) = schedules.look(scope)
    assert (idle.price.dollars, idle.price.unknown[:36]) == (None, "no rates were compiled into the runs")


@pytest.mark.slow
@pytest.mark.parametrize("pushed", [0, 1, 2])
def test_one_push_among_the_last_three_is_enough(
    pushed: int, scope: Scope, schedule: Callable[[str], v1.Schedule], there: GoogleCloud
):
    created = schedule("flights")
    for number in range(3):
        run(created, there, 21 - 7 * number, pushed=number == pushed)
    assert list(schedules.look(scope)) == []


def test_before_three_runs_nothing_is_said(scope: Scope, schedule: Callable[[str], v1.Schedule], there: GoogleCloud):
    created = schedule("flights")
    assert list(schedules.look(scope)) == []
    for days in (14, 7):
        run(created, there, days)
    assert list(schedules.look(scope)) == []


def test_a_paused_schedule_costs_nothing(
    scope: Scope, schedule: Callable[[str], v1.Schedule], cloud, there: GoogleCloud
):
    created = schedule("flights")
    for days in (21, 14, 7):
        run(created, there, days)
    service.change("flights", "pause", cloud)
    assert list(schedules.look(scope)) == []


def test_another_pipelines_schedule_is_looked_at_with_all_only(
    scope: Scope, schedule: Callable[[str], v1.Schedule], there: GoogleCloud
):
    created = schedule("taxi")
    for days in (21, 14, 7):
        run(created, there, days)
    assert list(schedules.look(scope)) == []
    assert [idle.what for idle in schedules.look(replace(scope, whole=True))] == ["schedule taxi"]


def test_a_schedule_that_pushes_nothing_by_design_is_left_alone(
    scope: Scope, schedule: Callable[[str], v1.Schedule], there: GoogleCloud
):
    created = schedule("flights")
    for days in (21, 14, 7):
        run(created, there, days)
    for tasks in _dags(there.vertex.schedules[created.name]):
        if "Pusher" in tasks:
            del tasks["Pusher"]
    assert list(schedules.look(scope)) == []


def _dags(kept: v1.Schedule) -> Iterator[struct_pb2.Struct]:
    """The tasks of each DAG in the schedule's job."""
    spec = v1.Schedule.pb(kept).create_pipeline_job_request.pipeline_job.pipeline_spec
    for part in (spec["root"], *spec["components"].values()):
        if "dag" in part:
            yield part["dag"]["tasks"]
