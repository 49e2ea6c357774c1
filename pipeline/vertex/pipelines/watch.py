"""Wait for a job, with a line for every task, through outages of the network; its outcome and its cost."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format

from pipeline.costs.estimate import Bill, Rates, bill_of
from pipeline.runs.watched_jobs import WatchedJob
from pipeline.settings import checks
from pipeline.vertex import ALL_NODES, FIRST_OF_RESOLVER, REPORT, REPORT_TASK, node_of, training_page
from pipeline.vertex.cloud import ENDED_STATES, SECONDS, Cloud, LostContact, explaining, poll
from pipeline.vertex.pipelines.submit import console_url

_Task = v1.PipelineTaskDetail.State
# Words for the states of a task.
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
# A task that failed or was ended has had its machine as well; one that was cached has not.
PAID_FOR = (_Task.SUCCEEDED, _Task.FAILED, _Task.CANCELLED)
RATES_FLAG = "--rates"  # of the report's task


class TaskLine(NamedTuple):
    """State of a task, as the terminal shows it."""

    name: str
    state: str  # a value of STATES
    seconds: float  # from its start to its end; 0 while it runs
    detail: str  # why it failed and where its log is


def watch(
    name: str,
    cloud: Cloud,
    show: Callable[[TaskLine], None],
    note: Callable[[str], None],
    seconds: float = 10.0,
    patience: float = 900.0,
) -> v1.PipelineJob:
    """Wait until a job has ended and return it.

    ``show`` receives the line of a task when it starts and when it ends. ``poll`` explains ``note`` and ``patience``.
    """
    client = cloud.client(v1.PipelineServiceClient)
    shown: dict[str, str] = {}
    try:
        with explaining(f"looking at {name}"):
            for job in poll(lambda: client.get_pipeline_job(name=name, timeout=SECONDS), seconds, patience, note):
                for line in lines_of(job):
                    if shown.get(line.name) != line.state:
                        shown[line.name] = line.state
                        show(line)
                if job.state in ENDED_STATES:
                    break
    except LostContact as error:
        raise LostContact(f"{error}; take it up again with python vertex_runner.py watch {name}") from error
    return job


def state_of(job: v1.PipelineJob) -> str:
    """Return "succeeded", "failed" or "cancelled" for a job that has ended."""
    return str(job.state.name.removeprefix("PIPELINE_STATE_").lower())


def lines_of(job: v1.PipelineJob) -> Iterator[TaskLine]:
    """Yield the tasks that run or have ended, in the order in which they started."""
    for task in tasks_of(job):
        if task.state not in STATES:
            continue
        state = STATES[task.state]
        if task.task_name.endswith(FIRST_OF_RESOLVER) and state != "failed":
            continue  # the second half of the resolver stands for both
        detail = f"{task.error.message}{_log_of(task)}" if state == "failed" else ""
        yield TaskLine(node_of(task.task_name), state, seconds_of(task) if state in DONE else 0.0, detail)


def tasks_of(job: v1.PipelineJob) -> list[v1.PipelineTaskDetail]:
    """Return the tasks in the order in which they started, without those that stand for all of them."""
    groups = (job.name.rpartition("/")[2], ALL_NODES)  # the whole pipeline is a task with the job's id
    tasks = [task for task in job.job_detail.task_details if task.task_name not in groups]
    return sorted(tasks, key=lambda task: (_seconds(task.start_time), task.task_id))


def seconds_of(task: v1.PipelineTaskDetail) -> float:
    """Return the seconds from a task's start to its end; 0 if it has not ended."""
    return max(0.0, _seconds(task.end_time) - _seconds(task.start_time)) if task.end_time else 0.0


def failure_of(name: str, job: v1.PipelineJob) -> str:
    """Return the lines for a job that has ended without success."""
    return (
        f"the job {state_of(job)}: {job.error.message or 'no reason given'}\n  job  {name}\n  page {console_url(name)}"
    )


def bill_of_job(job: v1.PipelineJob) -> Bill | None:
    """Return what the tasks that have ended have cost; None: no rates were compiled into the job."""
    spec = json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec)
    report = spec.get("deploymentSpec", {}).get("executors", {}).get(f"{REPORT_TASK}_executor", {})
    words = report.get("container", {}).get("args", [])
    if RATES_FLAG not in words:
        return None
    seconds = {node_of(task.task_name): seconds_of(task) for task in tasks_of(job) if task.state in PAID_FOR}
    return bill_of(checks.from_json(Rates, words[words.index(RATES_FLAG) + 1]), seconds)


def watched(name: str, job: v1.PipelineJob, bill: Bill) -> WatchedJob:
    """Return a job that has ended, as it is kept with the runs of this machine."""
    started = job.start_time or job.create_time
    seconds = (job.end_time - started).total_seconds() if job.end_time and started else 0.0
    return WatchedJob(name, state_of(job), f"{started:%Y-%m-%dT%H:%M:%S}" if started else "", seconds, bill)


def _artifacts(job: v1.PipelineJob, task: str, output: str) -> list[v1.Artifact]:
    return [
        artifact
        for detail in job.job_detail.task_details
        if detail.task_name == task and output in detail.outputs
        for artifact in detail.outputs[output].artifacts
    ]


def pushed_to(job: v1.PipelineJob) -> str | None:
    """Return where a job has pushed its model, in words; None: it has pushed none."""
    for artifact in _artifacts(job, "Pusher", "pushed_model"):
        if artifact.metadata and artifact.metadata.get("pushed"):
            folder = str(artifact.metadata.get("pushed_destination") or artifact.uri)
            endpoint, version = artifact.metadata.get("endpoint"), artifact.metadata.get("model_version")
            return f"{folder}\ndeployed {version} to {endpoint}" if endpoint else folder
    return None


def page_of(job: v1.PipelineJob) -> str | None:
    """Return the address of the report for the browser of somebody who may read the bucket."""
    uris = [str(artifact.uri) for artifact in _artifacts(job, REPORT_TASK, REPORT)]
    return uris[0].replace("gs://", "https://storage.cloud.google.com/", 1) if uris else None


def _log_of(task: v1.PipelineTaskDetail) -> str:
    container = task.executor_detail.container_detail
    job = container.main_job or container.pre_caching_check_job
    return f"; log: {training_page(job)}" if job else ""


def _seconds(moment: Any) -> float:
    return float(moment.timestamp()) if moment else 0.0
