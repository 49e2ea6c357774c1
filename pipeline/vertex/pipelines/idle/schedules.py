"""Schedules whose runs never push a model."""

import itertools
from collections.abc import Iterator, Sequence

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format

from pipeline.vertex import tasks_of_spec
from pipeline.vertex.cloud import ENDED_STATES, RETRY
from pipeline.vertex.pipelines.bills import bill_of_job
from pipeline.vertex.pipelines.idle.finding import Idle, Price, Scope, last_part
from pipeline.vertex.pipelines.schedules import list_schedules
from pipeline.vertex.pipelines.submit import SUBMISSION
from pipeline.vertex.pipelines.watch import pushed_to

# Runs in a row without a push; one model that is not good enough is what gates are for.
RUNS = 3
DAYS_A_MONTH = 365 / 12
SHORTEST = 1 / 1440  # days between two runs: a cron line has minutes


def look(scope: Scope) -> Iterator[Idle]:
    """Yield the active schedules whose last runs ended without a push, of pipelines that push.

    Raises:
        GoogleAPICallError: schedules or jobs may not be listed.
    """
    client = scope.cloud.client(v1.PipelineServiceClient)
    for schedule in list_schedules(scope.cloud):
        ours = scope.whole or schedule.display_name == scope.pipeline
        if not ours or schedule.state != v1.Schedule.State.ACTIVE or not _pushes(schedule):
            continue
        jobs = [client.get_pipeline_job(name=job.name, retry=RETRY) for job in _last_runs(schedule, client, scope)]
        if len(jobs) < RUNS or any(map(pushed_to, jobs)):
            continue
        states = ", ".join(f"{job.create_time:%Y-%m-%d} {_outcome(job)}" for job in jobs)
        yield Idle(
            f"schedule {schedule.display_name}",
            f"its last {RUNS} runs pushed nothing: {states}",
            _price(jobs),
            scope.runner("pause", last_part(schedule.name)),
        )


def _pushes(schedule: v1.Schedule) -> bool:
    job = schedule.create_pipeline_job_request.pipeline_job
    spec = json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec)
    return "root" in spec and "Pusher" in tasks_of_spec(spec)


def _last_runs(schedule: v1.Schedule, client: v1.PipelineServiceClient, scope: Scope) -> list[v1.PipelineJob]:
    """Return the last runs of what the schedule starts now that have ended, the newest first."""
    label = schedule.create_pipeline_job_request.pipeline_job.labels.get(SUBMISSION)
    request = v1.ListPipelineJobsRequest(
        parent=scope.cloud.parent, filter=f'labels.{SUBMISSION}="{label}"' if label else "", order_by="create_time desc"
    )
    runs = (
        job
        for job in client.list_pipeline_jobs(request, retry=RETRY)
        if last_part(job.schedule_name) == last_part(schedule.name) and job.state in ENDED_STATES
    )
    return list(itertools.islice(runs, RUNS))


def _outcome(job: v1.PipelineJob) -> str:
    succeeded = job.state == v1.PipelineState.PIPELINE_STATE_SUCCEEDED
    return "not blessed" if succeeded else job.state.name.removeprefix("PIPELINE_STATE_").lower()


def _price(jobs: Sequence[v1.PipelineJob]) -> Price:
    """Return what runs that cost as much as these, and come as often, cost a month; ``jobs`` are the newest first."""
    bills = [bill for job in jobs if (bill := bill_of_job(job))]
    if len(bills) < len(jobs):
        return Price(None, "no rates were compiled into the runs of the schedule; make it again for those to come")
    days = (jobs[0].create_time - jobs[-1].create_time).total_seconds() / 86_400
    a_month = (len(jobs) - 1) * DAYS_A_MONTH / max(days, SHORTEST)
    return Price(a_month * sum(bill.total for bill in bills) / len(bills))
