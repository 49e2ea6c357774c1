"""The last task of a run on Vertex AI, however the others ended: report, metrics for Experiments, and the webhook.

No component of the graph: it asks Vertex AI what became of the job, so that it knows of the failed tasks too. It never
fails, for a run is none the worse for want of a report. In a rehearsal the job is read from a file.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import datetime
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from tfx import types
from tfx.dsl.io import fileio

from pipeline.evaluation.verdict import FAILED, whole_outcome
from pipeline.report import page
from pipeline.report.run import FinishedRun
from pipeline.runs import record, webhook
from pipeline.runs.results import Results, outcome_of
from pipeline.runs.run_graph import Step
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target
from pipeline.vertex import ENDING, FIRST_OF_RESOLVER, JOB_NAME, REPORT, node_of
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines import plain_tasks
from pipeline.vertex.pipelines.artifacts import as_tfx
from pipeline.vertex.pipelines.watch import seconds_of, tasks_of
from pipeline.vertex.settings import endpoints

logger = logging.getLogger("pipeline.vertex")

_State = v1.PipelineTaskDetail.State
# Kinds of artifacts that Google Cloud's console shows by itself: a page, and numbers that Experiments collect.
OUTPUTS = {REPORT: "system.HTML", "metrics": "system.Metrics"}


@dataclasses.dataclass(frozen=True)
class Came:
    """What a job has come to.

    Attributes:
        steps: Those that ended well, in the order in which they started.
        failed: The first that did not, and its seconds.
        reason: Why.
    """

    steps: list[Step]
    failed: tuple[str, float] | None
    reason: str


def main() -> int:
    """Runs the task; returns 0."""
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser(prog="python -m pipeline.vertex.pipelines.ending", description=__doc__)
    parser.add_argument("--job", required=True, help="resource name of the PipelineJob, or a file with it")
    parser.add_argument("--config", required=True, help="the pipeline's config as JSON")
    parser.add_argument("--executor-input", required=True, help="where the outputs belong, as JSON")
    parser.add_argument("--webhook-url", help="whom to tell")
    parser.add_argument("--webhook-secret", help="version of a secret in Secret Manager to sign with")
    arguments = parser.parse_args()
    try:
        end(arguments)
    except Exception:
        logger.exception("The run has no report.")
    return 0


def end(arguments: argparse.Namespace) -> None:
    """Writes and tells what the job has come to; what cannot be done is logged."""
    job, cloud = _job(arguments.job)
    config, settings = plain_tasks.config_from_json(arguments.config)
    came = came_to(job)
    results, code = None, FAILED
    if came.failed:
        outcome: dict[str, Any] = {"failed": [f"{came.failed[0]}: {came.reason}"]}
    else:
        results = outcome_of({step.name: step for step in came.steps})
        code, outcome = results.exit_code, results.outcome
    outputs = json.loads(arguments.executor_input)["outputs"]
    run = job.name.rpartition("/")[2]
    told: dict[str, Any] = {}

    def tell_of(output: str, more: Mapping[str, Any]) -> None:
        told[output] = {"artifacts": [{**outputs["artifacts"][output]["artifacts"][0], **more}]}

    def report() -> None:
        started = job.create_time.astimezone().replace(tzinfo=None) if job.create_time else datetime.datetime.now()
        command = ["python", "vertex_runner.py", "--watch", job.name]
        kept = record.make(run, command, config, started, code, outcome, came.steps, came.failed)
        kept = dataclasses.replace(kept, config=settings)
        with tempfile.TemporaryDirectory() as folder:
            written = page.write(FinishedRun(kept, config, came.steps, came.failed, results, Path(folder) / run))
            address = f"{outputs['artifacts'][REPORT]['artifacts'][0]['uri']}.html"
            _write(address, written.read_text(encoding="utf-8"))
        tell_of(REPORT, {"uri": address})

    def metrics() -> None:
        tell_of("metrics", {"metadata": numbers(came, results, config)})

    def tell() -> None:
        if not arguments.webhook_url:
            return
        assert cloud
        secret = cloud.ask("secretmanager", f"v1/{arguments.webhook_secret}:access")["payload"]["data"]
        variables = {
            webhook.URL_VARIABLE: arguments.webhook_url,
            webhook.SECRET_VARIABLE: base64.b64decode(secret).decode().strip(),
        }
        receiver = webhook.read(variables)
        problem = receiver and receiver.tell(config.name, run, whole_outcome(run, code, outcome))
        logger.info("The webhook was %s", f"not told: {problem}" if problem else "told.")

    doing: dict[str, Callable[[], None]] = {"webhook": tell, "metrics": metrics, "report": report}
    for what, do in doing.items():
        try:
            do()
        except Exception:  # the others are done all the same
            logger.exception("There was an error with the %s.", what)
    _write(outputs["outputFile"], json.dumps({"artifacts": told}))


def came_to(job: v1.PipelineJob) -> Came:
    """What became of each task, but for this one."""
    spec = json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec)
    tasks = spec["root"]["dag"]["tasks"]
    steps, failed, reason = [], None, ""
    for task in tasks_of(job):
        if task.task_name == ENDING:
            continue
        name, seconds = node_of(task.task_name), seconds_of(task)
        if task.state in (_State.FAILED, _State.CANCELLED) and failed is None:
            failed, reason = (name, seconds), task.error.message or task.state.name.lower()
        if task.state not in (_State.SUCCEEDED, _State.SKIPPED) or task.task_name.endswith(FIRST_OF_RESOLVER):
            continue
        component = spec["components"][tasks[task.task_name]["componentRef"]["name"]]
        executor = spec["deploymentSpec"]["executors"][component["executorLabel"]]
        ran: Literal["ran", "cached"] = "ran" if task.state == _State.SUCCEEDED else "cached"
        made = [one.create_time for several in task.outputs.values() for one in several.artifacts if one.create_time]
        steps.append(
            Step(
                name=name,
                state=ran if "container" in executor else "looked up",
                seconds=seconds,
                outputs=_artifacts(task, component.get("outputDefinitions", {}).get("artifacts", {})),
                made=max(made).astimezone().replace(tzinfo=None) if made else None,
            )
        )
    if failed is None and not any(step.name == "Verdict" for step in steps):
        reason = "the job was cancelled before it had a verdict"
        failed = ("Pipeline", 0.0)
    return Came(steps, failed, reason)


def numbers(came: Came, results: Results | None, config: PipelineConfig) -> dict[str, float]:
    """What a table of runs should show: verdict, metrics, and what the training was set to, by hand or by search."""
    found: dict[str, Any] = {}
    if results:
        found = {"blessed": results.blessed, "pushed": bool(results.pushed_to), **results.metrics["overall"]}
    found |= {f"parameter_{name}": value for name, value in dataclasses.asdict(config.training).items()}
    for step in came.steps:
        for artifact in step.outputs.get("best_hyperparameters", ()):
            with fileio.open(f"{artifact.uri}/best_hyperparameters.txt") as file:
                chosen = json.loads(file.read())["values"]
            found |= {f"parameter_{name}": value for name, value in chosen.items()}
    finite = {name: value for name, value in found.items() if isinstance(value, (int, float)) and math.isfinite(value)}
    return {name: float(value) for name, value in finite.items()}


def add_to(spec: dict[str, Any], config: PipelineConfig, target: Target) -> None:
    """Adds the task to a compiled pipeline, after all others and whatever became of them."""
    assert target.vertex
    tasks = spec["root"]["dag"]["tasks"]
    arguments = ["--job", JOB_NAME, "--config", plain_tasks.config_to_json(config), "--executor-input", "{{$}}"]
    if target.vertex.webhook_url:
        arguments += ["--webhook-url", target.vertex.webhook_url]
        arguments += ["--webhook-secret", str(target.vertex.webhook_secret)]
    container = plain_tasks.container_of(target.vertex, ENDING, "pipeline.vertex.pipelines.ending", arguments)
    spec["deploymentSpec"]["executors"][f"{ENDING}_executor"] = {"container": container}
    outputs = {
        name: {"artifactType": {"schemaTitle": kind, "schemaVersion": "0.0.1"}} for name, kind in OUTPUTS.items()
    }
    spec["components"][ENDING] = {
        "executorLabel": f"{ENDING}_executor",
        "outputDefinitions": {"artifacts": outputs},
    }
    tasks[ENDING] = {
        "taskInfo": {"name": ENDING},
        "componentRef": {"name": ENDING},
        "dependentTasks": sorted(tasks),
        # What KFP's ignore_upstream_failure and exit handlers are compiled to.
        "triggerPolicy": {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"},
    }


def _job(name: str) -> tuple[v1.PipelineJob, Cloud | None]:
    if not name.startswith("projects/"):
        return v1.PipelineJob.from_json(Path(name).read_text(encoding="utf-8")), None
    _, project, _, region, *_ = name.split("/")
    cloud = Cloud.connect(project, region, endpoints(os.environ))
    return cloud.client(v1.PipelineServiceClient).get_pipeline_job(name=name), cloud


def _artifacts(task: v1.PipelineTaskDetail, kinds: Mapping[str, Any]) -> dict[str, list[types.Artifact]]:
    """The artifacts of a task as TFX's; ``kinds`` is what the spec says of its outputs."""
    return as_tfx(
        {
            key: [
                {
                    "name": one.name,
                    "uri": one.uri,
                    "type": kinds[key]["artifactType"],
                    "metadata": json_format.MessageToDict(v1.Artifact.pb(one).metadata),
                }
                for one in several.artifacts
            ]
            for key, several in task.outputs.items()
            if "instanceSchema" in kinds.get(key, {}).get("artifactType", {})
        }
    )


def _write(address: str, text: str) -> None:
    fileio.makedirs(os.path.dirname(address))
    with fileio.open(address, "w") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
