"""Schedules: Vertex AI starts the compiled job at the times of a cron line, one run at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.target import Vertex
from pipeline.vertex import JOB, UPLOADS
from pipeline.vertex.cloud import AGAIN, Cloud
from pipeline.vertex.pipelines.submit import job_of, upload

Change = Literal["pause", "resume", "delete"]
SECONDS_TO_DELETE = 300.0


@dataclass(frozen=True)
class Scheduled:
    """A schedule as it is to be shown.

    Attributes:
        name: "projects/P/locations/R/schedules/ID".
        pipeline: Name of the pipeline that it starts.
        cron: When.
        state: "active", "paused" or "completed".
        next_run: Of the next run, as text; "" for none.
        runs: How many it has started.
    """

    name: str
    pipeline: str
    cron: str
    state: str
    next_run: str
    runs: int

    def __str__(self) -> str:
        then = f", next {self.next_run}" if self.next_run and self.state == "active" else ""
        return f"{self.pipeline}  {self.state}  {self.cron!r}, {self.runs} runs so far{then}\n  {self.name}"


def create(
    folder: Path, vertex: Vertex, name: str, cron: str, cloud: Cloud, said: Callable[[str], None]
) -> tuple[Scheduled, bool]:
    """Makes the schedule of a pipeline, or changes the one that is there to this job and these times.

    Args:
        folder: What ``pipeline.vertex.pipelines.compile`` wrote.
        vertex: As whom and how the runs run.
        name: Of the pipeline, which is that of its one schedule.
        cron: When, as Vertex AI takes it: cloud.google.com/vertex-ai/docs/pipelines/schedule-pipeline-run
        cloud: Where.
        said: Told what is uploaded.

    Returns:
        The schedule, and whether it was there before.

    Raises:
        UserError: there are several schedules of that name.
        GoogleAPICallError: Google Cloud refuses.
    """
    upload(json.loads((folder / UPLOADS).read_text(encoding="utf-8")), cloud, said)
    job, _ = job_of(json.loads((folder / JOB).read_text(encoding="utf-8")), vertex)
    wanted = v1.Schedule(
        display_name=name,
        cron=cron,
        create_pipeline_job_request=v1.CreatePipelineJobRequest(parent=cloud.parent, pipeline_job=job),
        # A run that takes longer than the time between two is not joined by a second one, which would push as well.
        max_concurrent_run_count=1,
    )
    client = cloud.client(v1.ScheduleServiceClient)
    there = [one for one in _all(cloud) if one.display_name == name]
    if len(there) > 1:
        raise UserError(
            f"{len(there)} schedules are called {name}; delete all but one: {', '.join(s.name for s in there)}"
        )
    if there:
        wanted.name = there[0].name
        paths = ["cron", "create_pipeline_job_request", "max_concurrent_run_count"]
        made = client.update_schedule(schedule=wanted, update_mask={"paths": paths}, retry=AGAIN)
    else:
        made = client.create_schedule(parent=cloud.parent, schedule=wanted)
    return _shown(made), bool(there)


def found(cloud: Cloud) -> list[Scheduled]:
    """All schedules of the project in the region."""
    return [_shown(one) for one in _all(cloud)]


def change(which: str, how: Change, cloud: Cloud) -> Scheduled | None:
    """Pauses, resumes or deletes a schedule.

    Args:
        which: Name of the pipeline, or the schedule's resource name or id.
        how: What to do.
        cloud: Where.

    Returns:
        The schedule as it is then; None: it is gone.

    Raises:
        UserError: there is none of that name, or several.
    """
    client = cloud.client(v1.ScheduleServiceClient)
    several = found(cloud)
    fitting = [one for one in several if which in (one.pipeline, one.name, one.name.rpartition("/")[2])]
    if len(fitting) != 1:
        names = ", ".join(sorted(one.pipeline for one in several)) or "none"
        remedy = "give its whole name, as --schedules shows it" if fitting else f"there are: {names}"
        raise UserError(f"{len(fitting) or 'no'} schedules are called {which}; {remedy}")
    (one,) = fitting
    if how == "delete":
        client.delete_schedule(name=one.name).result(timeout=SECONDS_TO_DELETE)
        return None
    if how == "pause":
        client.pause_schedule(name=one.name, retry=AGAIN)
    elif one.state != "active":
        # What was missed meanwhile is not made up for: the newest data is what there is to train on.
        client.resume_schedule(request=v1.ResumeScheduleRequest(name=one.name, catch_up=False), retry=AGAIN)
    return _shown(client.get_schedule(name=one.name, retry=AGAIN))


def start_now(name: str, cloud: Cloud) -> str:
    """Starts what a schedule starts, at once; returns the job's resource name.

    Raises:
        UserError: there is no such schedule.
    """
    there = [one for one in _all(cloud) if one.display_name == name]
    if not there:
        raise UserError(
            f"there is no schedule {name}, whose job would be started; make one with vertex_runner.py --schedule CRON"
        )
    job = there[0].create_pipeline_job_request.pipeline_job
    job_id = f"{job.pipeline_spec['pipelineInfo']['name']}-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}"
    made = cloud.client(v1.PipelineServiceClient).create_pipeline_job(
        parent=cloud.parent, pipeline_job=job, pipeline_job_id=job_id, retry=AGAIN
    )
    return str(made.name)


def _all(cloud: Cloud) -> list[v1.Schedule]:
    return list(cloud.client(v1.ScheduleServiceClient).list_schedules(parent=cloud.parent, retry=AGAIN))


def _shown(one: v1.Schedule) -> Scheduled:
    return Scheduled(
        name=one.name,
        pipeline=one.display_name,
        cron=one.cron,
        state=one.state.name.lower(),
        next_run=one.next_run_time.strftime("%Y-%m-%d %H:%M UTC") if one.next_run_time else "",
        runs=one.started_run_count,
    )
