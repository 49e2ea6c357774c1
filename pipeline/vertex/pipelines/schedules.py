"""Schedules: Vertex AI starts the compiled job at the times of a cron line, one run at a time."""

import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Literal

from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import RETRY, Cloud
from pipeline.vertex.pipelines.submit import create_job, job_of, upload

Change = Literal["pause", "resume", "delete"]
SECONDS_TO_DELETE = 300.0


def create(
    folder: Path, vertex: Vertex, name: str, cron: str, cloud: Cloud, note: Callable[[str], None]
) -> v1.Schedule:
    """Create the one schedule of a pipeline, or change it to the job compiled to ``folder`` and these times.

    ``cron`` is as Vertex AI takes it: cloud.google.com/vertex-ai/docs/pipelines/schedule-pipeline-run
    """
    upload(folder, cloud, note)
    job, _ = job_of(folder, vertex)
    schedule = v1.Schedule(
        display_name=name,
        cron=cron,
        create_pipeline_job_request=v1.CreatePipelineJobRequest(parent=cloud.parent, pipeline_job=job),
        # A run that takes longer than the time between two is not joined by a second one, which would push as well.
        # The first number only limits how many are being started, the second how many have not ended.
        max_concurrent_run_count=1,
        max_concurrent_active_run_count=1,
    )
    client = cloud.client(v1.ScheduleServiceClient)
    existing = [schedule for schedule in list_schedules(cloud) if schedule.display_name == name]
    if len(existing) > 1:
        names = ", ".join(schedule.name for schedule in existing)
        raise UserError(f"{len(existing)} schedules are called {name}; delete all but one: {names}")
    if existing:
        schedule.name = existing[0].name
        paths = [
            "cron",
            "create_pipeline_job_request",
            "max_concurrent_run_count",
            "max_concurrent_active_run_count",
        ]
        schedule = client.update_schedule(schedule=schedule, update_mask={"paths": paths}, retry=RETRY)
    else:
        schedule = client.create_schedule(parent=cloud.parent, schedule=schedule)
    note(f"{'changed' if existing else 'created'} the schedule\n{described(schedule)}")
    return schedule


def list_schedules(cloud: Cloud) -> list[v1.Schedule]:
    """Return all schedules of the project in the region."""
    return list(cloud.client(v1.ScheduleServiceClient).list_schedules(parent=cloud.parent, retry=RETRY))


def described(schedule: v1.Schedule) -> str:
    """Return the lines of a schedule for the terminal."""
    state = schedule.state.name.lower()
    start = f"{schedule.next_run_time:%Y-%m-%d %H:%M UTC}" if schedule.next_run_time and state == "active" else ""
    runs = f"{schedule.started_run_count} runs so far{f', next {start}' if start else ''}"
    return f"{schedule.display_name}  {state}  {schedule.cron!r}, {runs}\n  {schedule.name}"


def change(name: str, change: Change, cloud: Cloud) -> v1.Schedule | None:
    """Pause, resume or delete a schedule, given by its pipeline, resource name or id; return it unless deleted."""
    client = cloud.client(v1.ScheduleServiceClient)
    schedules = list_schedules(cloud)
    # A resource name may have the project's id where Vertex AI's answers have its number.
    matching = [s for s in schedules if name == s.display_name or name.rpartition("/")[2] == s.name.rpartition("/")[2]]
    if len(matching) != 1:
        names = ", ".join(sorted(schedule.display_name for schedule in schedules)) or "none"
        remedy = "give its resource name, as the command schedules shows it" if matching else f"there are: {names}"
        raise UserError(f"{len(matching) or 'no'} schedules are called {name}; {remedy}")
    (schedule,) = matching
    if change == "delete":
        try:
            client.delete_schedule(name=schedule.name).result(timeout=SECONDS_TO_DELETE)
        except futures.TimeoutError as error:
            raise UserError(
                f"{schedule.name} is not deleted after {SECONDS_TO_DELETE:.0f} s; list the schedules later"
            ) from error
        return None
    if change == "pause":
        client.pause_schedule(name=schedule.name, retry=RETRY)
    elif schedule.state != v1.Schedule.State.ACTIVE:
        # What was missed meanwhile is not made up for: the newest data is what there is to train on.
        client.resume_schedule(request=v1.ResumeScheduleRequest(name=schedule.name, catch_up=False), retry=RETRY)
    return client.get_schedule(name=schedule.name, retry=RETRY)


def start_now(name: str, cloud: Cloud) -> str:
    """Start the job of a schedule now; return its resource name."""
    request = next((s.create_pipeline_job_request for s in list_schedules(cloud) if s.display_name == name), None)
    if request is None:
        raise UserError(
            f"there is no schedule {name}, whose job would be started; create one with "
            "python vertex_runner.py schedule CRON"
        )
    job = request.pipeline_job
    job_id = f"{job.pipeline_spec['pipelineInfo']['name']}-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}"
    return create_job(job, job_id, cloud).name
