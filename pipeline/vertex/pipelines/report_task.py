"""End a run on Vertex AI: report, metrics for Experiments, and the webhook, however the tasks ended.

It is no component of the graph: it reads the job from Vertex AI, so that it knows the failed tasks too, and in a
rehearsal from a file. It never fails, because a run is complete without a report.

Vertex AI starts nothing more in a job that is cancelled, nor after a failed task with the failure policy "fast": then
whoever waits for the job does what this task would have done, with ``report_here``.
"""

import argparse
import base64
import dataclasses
import datetime
import json
import logging
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx import types
from tfx.orchestration.kubeflow.v2.container.kubeflow_v2_entrypoint_utils import parse_raw_artifact_dict

from pipeline import filesystem
from pipeline.components.artifacts import read_hyperparameters
from pipeline.costs.estimate import to_dict
from pipeline.errors import UserError
from pipeline.quality.verdict import FAILED, whole_outcome
from pipeline.report import page
from pipeline.report.finished_run import FinishedRun
from pipeline.runs import record, webhook
from pipeline.runs.results import Results, outcome_of, refusals_of
from pipeline.runs.step import Step
from pipeline.settings import checks
from pipeline.settings.config import PipelineConfig
from pipeline.vertex import FIRST_OF_RESOLVER, JOB_NAME, REPORT, REPORT_TASK, node_of, tasks_of_spec
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines.watch import RATES_FLAG, bill_of_job, seconds_of, tasks_of

logger = logging.getLogger("pipeline.vertex")

_State = v1.PipelineTaskDetail.State
# Kinds of artifacts that Google Cloud's console shows by itself: a page, and metrics that Experiments collect.
OUTPUTS = {REPORT: "system.HTML", "metrics": "system.Metrics"}


class StepOutcomes(NamedTuple):
    """Outcomes of the steps of a job."""

    steps: list[Step]  # those that succeeded, in the order in which they started
    failed: tuple[str, float] | None  # the first that did not, and its seconds
    reason: str  # why it failed


def main() -> int:
    """Run the task; return 0."""
    logging.basicConfig(level=logging.INFO)
    arguments = _parser().parse_args()
    try:
        report_run(*_job(arguments.job), arguments)
    except Exception:
        logger.exception("The run has no report.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.vertex.pipelines.report_task", description=__doc__)
    parser.add_argument("--job", required=True, help="resource name of the PipelineJob, or a file with it")
    parser.add_argument("--config", required=True, help="the pipeline's config as JSON")
    parser.add_argument("--executor-input", required=True, help="where the outputs belong, as JSON")
    parser.add_argument(
        "--webhook-url", help="version of a secret in Secret Manager with the address that receives the outcome"
    )
    parser.add_argument("--webhook-secret", help="the same, to sign with")
    parser.add_argument(RATES_FLAG, help="what the parts of the run cost an hour, as JSON")
    return parser


def report_here(job: v1.PipelineJob, cloud: Cloud, folder: Path, note: Callable[[str], None]) -> None:
    """Do on this machine what the task did not do in a job that has ended; nothing if it did, or the job has none."""
    spec = json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec)
    ended = [task.state for task in job.job_detail.task_details if task.task_name == REPORT_TASK]
    if REPORT_TASK not in tasks_of_spec(spec) or _State.SUCCEEDED in ended:
        return
    outputs = {key: {"artifacts": [{"uri": str(folder / key)}]} for key in OUTPUTS}
    executor_input = {"outputs": {"artifacts": outputs, "outputFile": str(folder / "executor_output.json")}}
    values = {JOB_NAME: job.name, "{{$}}": json.dumps(executor_input)}
    words = spec["deploymentSpec"]["executors"][f"{REPORT_TASK}_executor"]["container"]["args"]
    arguments = _parser().parse_args([values.get(word, word) for word in words])
    problems = report_run(job, cloud, arguments)
    note(f"no report: {problems['report']}" if "report" in problems else f"report {folder / REPORT}.html")
    if arguments.webhook_url:
        note(f"the webhook was not notified: {problems['webhook']}" if "webhook" in problems else "webhook notified")


def report_run(job: v1.PipelineJob, cloud: Cloud | None, arguments: argparse.Namespace) -> dict[str, str]:
    """Write the report and the metrics of the job, and send its outcome; return what could not be done, and why."""
    config = checks.from_json(PipelineConfig, arguments.config)
    outcomes = step_outcomes(job)
    results, code = None, FAILED
    if outcomes.failed:
        step = outcomes.failed[0]
        reasons = [*refusals_of(outcomes.steps), f"{step}: {outcomes.reason}"]
        outcome: dict[str, Any] = {"failed": reasons, "failed_step": step}
    else:
        results = outcome_of({step.name: step for step in outcomes.steps})
        code, outcome = results.exit_code, results.outcome
    outputs = json.loads(arguments.executor_input)["outputs"]
    artifacts = {key: value["artifacts"][0] for key, value in outputs["artifacts"].items()}
    changed: dict[str, Any] = {}
    run = job.name.rpartition("/")[2]

    def report() -> None:
        started = job.create_time.astimezone().replace(tzinfo=None) if job.create_time else datetime.datetime.now()
        command = ["python", "vertex_runner.py", "watch", job.name]
        kept = record.make(run, command, config, started, code, outcome, outcomes.steps, outcomes.failed)
        bill = bill_of_job(job)
        kept = dataclasses.replace(kept, cost=to_dict(bill) if bill else {})
        with tempfile.TemporaryDirectory() as folder:
            page_here = page.write(
                FinishedRun(config, outcomes.steps, Path(folder) / run, kept, outcomes.failed, results)
            )
            address = f"{artifacts[REPORT]['uri']}.html"
            filesystem.write(address, page_here.read_bytes())
        changed[REPORT] = {"artifacts": [{**artifacts[REPORT], "uri": address}]}

    def metrics() -> None:
        metadata = numbers(outcomes, results, config)
        changed["metrics"] = {"artifacts": [{**artifacts["metrics"], "metadata": metadata}]}

    def notify() -> None:
        if not arguments.webhook_url:
            return
        assert cloud
        versions = {webhook.URL_VARIABLE: arguments.webhook_url, webhook.SECRET_VARIABLE: arguments.webhook_secret}
        variables = {
            name: base64.b64decode(cloud.request("secretmanager", f"v1/{version}:access")["payload"]["data"])
            .decode()
            .strip()
            for name, version in versions.items()
        }
        receiver = webhook.read(variables)
        problem = receiver and receiver.tell(config.name, run, whole_outcome(run, code, outcome))
        if problem:
            raise UserError(problem)

    actions: dict[str, Callable[[], None]] = {"webhook": notify, "metrics": metrics, "report": report}
    problems = {}
    for name, act in actions.items():
        try:
            act()
        except Exception as error:  # the others are done all the same
            logger.exception("There was an error with the %s.", name)
            problems[name] = str(error)
    filesystem.write(outputs["outputFile"], json.dumps({"artifacts": changed}))
    return problems


def step_outcomes(job: v1.PipelineJob) -> StepOutcomes:
    """Return how each task but this one ended."""
    spec = json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec)
    tasks = tasks_of_spec(spec)
    steps, failed, reason = [], None, ""
    for task in tasks_of(job):
        if task.task_name == REPORT_TASK:
            continue
        name, seconds = node_of(task.task_name), seconds_of(task)
        if task.state in (_State.FAILED, _State.CANCELLED) and failed is None:
            failed, reason = (name, seconds), task.error.message or task.state.name.lower()
        if task.state not in (_State.SUCCEEDED, _State.SKIPPED) or task.task_name.endswith(FIRST_OF_RESOLVER):
            continue
        component = spec["components"][tasks[task.task_name]["componentRef"]["name"]]
        executor = spec["deploymentSpec"]["executors"][component["executorLabel"]]
        ran: Literal["ran", "cached"] = "ran" if task.state == _State.SUCCEEDED else "cached"
        artifacts = [artifact for output in task.outputs.values() for artifact in output.artifacts]
        times = [artifact.create_time for artifact in artifacts if artifact.create_time]
        steps.append(
            Step(
                name=name,
                state=ran if "container" in executor else "looked up",
                seconds=seconds,
                outputs=_artifacts(task, component.get("outputDefinitions", {}).get("artifacts", {})),
                made=max(times).astimezone().replace(tzinfo=None) if times else None,
            )
        )
    if failed is None and not any(step.name == "Verdict" for step in steps):
        reason = job.error.message or "the job was cancelled before it had a verdict"
        failed = ("Pipeline", 0.0)
    return StepOutcomes(steps, failed, reason)


def numbers(outcomes: StepOutcomes, results: Results | None, config: PipelineConfig) -> dict[str, float]:
    """Return what a table of runs should show: verdict, metrics, and parameters of the training, set or searched."""
    values: dict[str, Any] = {}
    if results:
        values = {"blessed": results.blessed, "pushed": bool(results.pushed_to), **results.metrics["overall"]}
    values |= {f"parameter_{name}": value for name, value in dataclasses.asdict(config.training).items()}
    for step in outcomes.steps:
        for artifact in step.outputs.get("best_hyperparameters", ()):
            found = read_hyperparameters(artifact.uri)
            values |= {f"parameter_{name}": value for name, value in found.items()}
    finite = {name: value for name, value in values.items() if isinstance(value, (int, float)) and math.isfinite(value)}
    return {name: float(value) for name, value in finite.items()}


def _job(name: str) -> tuple[v1.PipelineJob, Cloud | None]:
    if not name.startswith("projects/"):
        return v1.PipelineJob.from_json(Path(name).read_text(encoding="utf-8")), None
    cloud = Cloud.connect_to(name)
    return cloud.client(v1.PipelineServiceClient).get_pipeline_job(name=name), cloud


def _artifacts(task: v1.PipelineTaskDetail, kinds: Mapping[str, Any]) -> dict[str, list[types.Artifact]]:
    """Return the artifacts of a task as TFX's; ``kinds`` are the spec's definitions of its outputs."""
    return as_tfx(
        {
            key: [
                {
                    "name": artifact.name,
                    "uri": artifact.uri,
                    "type": kinds[key]["artifactType"],
                    "metadata": json_format.MessageToDict(v1.Artifact.pb(artifact).metadata),
                }
                for artifact in output.artifacts
            ]
            for key, output in task.outputs.items()
            if "instanceSchema" in kinds.get(key, {}).get("artifactType", {})
        }
    )


def as_tfx(outputs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[types.Artifact]]:
    """Return the artifacts of a task by output; each is a RuntimeArtifact as JSON."""
    messages = {
        key: json_format.ParseDict({"artifacts": list(artifacts)}, pipeline_spec_pb2.ArtifactList())
        for key, artifacts in outputs.items()
    }
    return {key: list(artifacts) for key, artifacts in parse_raw_artifact_dict(messages).items()}


if __name__ == "__main__":
    sys.exit(main())
