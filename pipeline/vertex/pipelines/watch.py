"""Waits for a job, with a line for every task, through outages of the network; and says how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex import ENDING, FIRST_OF_RESOLVER, REPORT, node_of
from pipeline.vertex.cloud import ENDED, PASSING, SECONDS, Cloud, explained
from pipeline.vertex.pipelines.submit import console_url

_Task = v1.PipelineTaskDetail.State
# What our lines call the states of a task.
STATES = {
    _Task.RUNNING: "running",
    _Task.SUCCEEDED: "ran",
    _Task.SKIPPED: "cached",
    _Task.FAILED: "failed",
    _Task.CANCELLING: "cancelled",
    _Task.CANCELLED: "cancelled",
    _Task.NOT_TRIGGERED: "not run",
}
DONE = frozenset({"ran", "cached", "failed", "cancelled", "not run"})


class LostContact(UserError):
    """Vertex AI did not answer for too long; the job may well go on."""


@dataclass(frozen=True)
class TaskLine:
    """What there is to say about a task now.

    Attributes:
        name: Of the task.
        state: A value of ``STATES``.
        seconds: From its start to its end; 0 while it runs.
        detail: Why it failed and where its log is.
    """

    name: str
    state: str
    seconds: float
    detail: str


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        state: "succeeded", "failed" or "cancelled".
        pushed_to: Where the model was pushed, and deployed to if it was; None: it was not.
        message: What Vertex AI says to it.
        page: Address of the run's report; None: there is none.
    """

    state: str
    pushed_to: str | None
    message: str
    page: str | None = None


def full_name(job: str, cloud: Cloud) -> str:
    """The resource name of a job that is given by its id or its name."""
    return job if job.startswith("projects/") else f"{cloud.parent}/pipelineJobs/{job}"


def watch(
    name: str,
    cloud: Cloud,
    told: Callable[[TaskLine], None],
    noted: Callable[[str], None],
    poll: float = 10.0,
    patience: float = 900.0,
) -> Ended:
    """Waits until a job has ended.

    Args:
        name: Of the job, see ``full_name``.
        cloud: Where it runs.
        told: Told the line of a task when it starts and when it ends.
        noted: Told when Vertex AI stops answering, and when it answers again.
        poll: Seconds between two looks.
        patience: Seconds without an answer after which waiting is given up; the job itself goes on.

    Raises:
        LostContact: no answer for ``patience`` seconds.
        UserError: there is no such job, or it may not be read.
    """
    client = cloud.client(v1.PipelineServiceClient)
    seen: dict[str, str] = {}
    answered, out = time.monotonic(), False
    while True:
        try:
            job = client.get_pipeline_job(name=name, timeout=SECONDS)
        except PASSING as error:
            silent = time.monotonic() - answered
            if silent > patience:
                raise LostContact(
                    f"no answer from Vertex AI for {silent:,.0f} s ({_first_line(error)}). The job goes on; take it up "
                    f"again with python vertex_runner.py --watch {name}"
                ) from error
            if not out:
                noted(f"no answer from Vertex AI ({_first_line(error)}); the job goes on, trying again")
                out = True
            # Not slower than asked for, and soon enough to keep to a short patience.
            time.sleep(min(poll, max(0.05, patience / 10)))
            continue
        except (exceptions.GoogleAPICallError, GoogleAuthError) as error:
            raise explained(error, f"looking at {name}") from error
        if out:
            noted("Vertex AI answers again")
            out = False
        answered = time.monotonic()
        for line in lines_of(job):
            if seen.get(line.name) != line.state:
                seen[line.name] = line.state
                told(line)
        if job.state in ENDED:
            return Ended(
                state=job.state.name.removeprefix("PIPELINE_STATE_").lower(),
                pushed_to=_pushed_to(job),
                message=job.error.message,
                page=_page(job),
            )
        time.sleep(poll)


def lines_of(job: v1.PipelineJob) -> Iterator[TaskLine]:
    """The tasks that run or have ended, in the order in which they started."""
    for task in tasks_of(job):
        if task.state not in STATES:
            continue
        state = STATES[task.state]
        if task.task_name.endswith(FIRST_OF_RESOLVER) and state != "failed":
            continue  # the second half of the resolver stands for both
        detail = ""
        if state == "failed":
            detail = f"{task.error.message}{_log_of(task)}"
        yield TaskLine(node_of(task.task_name), state, seconds_of(task) if state in DONE else 0.0, detail)


def tasks_of(job: v1.PipelineJob) -> list[v1.PipelineTaskDetail]:
    """The tasks in the order in which they started; the whole pipeline is among them too, under the job's name."""
    name = job.name.rpartition("/")[2]
    tasks = [one for one in job.job_detail.task_details if one.task_name != name]
    return sorted(tasks, key=lambda one: (_seconds(one.start_time), one.task_id))


def seconds_of(task: v1.PipelineTaskDetail) -> float:
    """From its start to its end; 0 of one that has not ended."""
    return max(0.0, _seconds(task.end_time) - _seconds(task.start_time)) if task.end_time else 0.0


def report(name: str, ended: Ended) -> str:
    """One line for a job that has ended without success."""
    return f"the job {ended.state}: {ended.message or 'no reason given'}\n  job  {name}\n  page {console_url(name)}"


def _pushed_to(job: v1.PipelineJob) -> str | None:
    for task in job.job_detail.task_details:
        if task.task_name == "Pusher" and "pushed_model" in task.outputs:
            for artifact in task.outputs["pushed_model"].artifacts:
                if artifact.metadata and artifact.metadata.get("pushed"):
                    folder = str(artifact.metadata.get("pushed_destination") or artifact.uri)
                    endpoint = artifact.metadata.get("endpoint")
                    version = artifact.metadata.get("model_version")
                    return f"{folder}\ndeployed {version} to {endpoint}" if endpoint else folder
    return None


def _page(job: v1.PipelineJob) -> str | None:
    """The report, where a browser of somebody who may read the bucket shows it."""
    for task in job.job_detail.task_details:
        if task.task_name == ENDING and REPORT in task.outputs:
            uri = task.outputs[REPORT].artifacts[0].uri
            return str(uri).replace("gs://", "https://storage.cloud.google.com/", 1)
    return None


def _log_of(task: v1.PipelineTaskDetail) -> str:
    """Where the log of a task's container is."""
    container = task.executor_detail.container_detail
    job = container.main_job or container.pre_caching_check_job
    if not job:
        return ""
    _, project, _, region, _, number = job.split("/")
    return f"; log: https://console.cloud.google.com/ai/platform/locations/{region}/training/{number}?project={project}"


def _seconds(moment: Any) -> float:
    return float(moment.timestamp()) if moment else 0.0


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
