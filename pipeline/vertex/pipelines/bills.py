"""Reckon what a job of Vertex AI Pipelines has cost: its tasks' own times, at the rates that were compiled into it."""

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format

from pipeline.costs.bill import Bill, bill_of
from pipeline.costs.rates import Rates
from pipeline.runs.watched_jobs import WatchedJob
from pipeline.settings import checks
from pipeline.vertex import REPORT_TASK, node_of
from pipeline.vertex.pipelines.watch import seconds_of, tasks_of

FLAG = "--rates"  # of the report's task, with the rates
_State = v1.PipelineTaskDetail.State
# A task that failed or was ended has had its machine as well; one that was cached has not.
PAID_FOR = (_State.SUCCEEDED, _State.FAILED, _State.CANCELLED)


def bill_of_job(job: v1.PipelineJob) -> Bill | None:
    """Return what the tasks that have ended have cost; None: no rates were compiled into the job."""
    spec = json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec)
    report = spec.get("deploymentSpec", {}).get("executors", {}).get(f"{REPORT_TASK}_executor", {})
    words = report.get("container", {}).get("args", [])
    if FLAG not in words:
        return None
    paid_for = (task for task in tasks_of(job) if task.state in PAID_FOR)
    rates = checks.from_json(Rates, words[words.index(FLAG) + 1])
    return bill_of(rates, {node_of(task.task_name): seconds_of(task) for task in paid_for})


def watched(name: str, state: str, job: v1.PipelineJob, bill: Bill) -> WatchedJob:
    """Return a job that has ended, as it is kept beside the runs of this machine."""
    started = job.start_time or job.create_time
    seconds = (job.end_time - started).total_seconds() if job.end_time and started else 0.0
    return WatchedJob(name, state, f"{started:%Y-%m-%dT%H:%M:%S}" if started else "", seconds, bill)
