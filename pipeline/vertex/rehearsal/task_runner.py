"""Run a PipelineJob compiled for Vertex AI on this machine, task by task, as Vertex AI would.

Each container is a process of ``local_containers``. Tasks pass on what Vertex AI passes on: ExecutorInput and
executor_output.json, by the spec.
"""

import datetime
import graphlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tfx.dsl.io import fileio

from pipeline import filesystem
from pipeline.errors import UserError
from pipeline.runs.run_graph import NOT_FOUND
from pipeline.runs.step import Step, StepFailed
from pipeline.settings.target import IN_PROCESS, Target, Vertex
from pipeline.vertex import (
    ALL_NODES,
    FIRST_OF_RESOLVER,
    JOB_NAME,
    LAST_OF_RESOLVER,
    REPORT,
    REPORT_TASK,
    RUN_IN_IMAGE,
    tasks_of_spec,
)
from pipeline.vertex.pipelines.report_task import as_tfx
from pipeline.vertex.rehearsal.local_containers import LocalContainers
from pipeline.vertex.rehearsal.local_metadata import Artifact, LocalMetadata

Outputs = dict[str, list[Artifact]]
State = Literal["ran", "cached", "looked up"]
# Vertex AI's words for how a task ended.
TASK_STATES: dict[State, str] = {"ran": "SUCCEEDED", "cached": "SKIPPED", "looked up": "SUCCEEDED"}


def target_for(output: Path, name: str, vertex: Vertex) -> Target:
    """Return the target of a rehearsal: Vertex AI, with folders on this machine in place of the bucket."""
    return Target(
        pipeline_root=str(output / "artifacts"),
        push_to=str(output / "serving" / name),
        metadata=None,
        beam_args=IN_PROCESS,
        vertex=vertex,
    )


def run(
    job: Mapping[str, Any],
    run_id: str,
    folder: Path,
    module: Path,
    on_start: Callable[[str], None],
    on_end: Callable[[Step], None],
) -> dict[str, Step]:
    """Run every task of a PipelineJob in the order of its spec and return the steps; a resolver's two tasks are one.

    Logs go to ``folder/logs/<run_id>/``. After a failed task (StepFailed) the job's failure policy decides what runs.
    """
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as scratch:
        return _Rehearsal(job, run_id, folder, module, Path(scratch)).run(on_start, on_end)


class _Rehearsal:
    """One run of one job."""

    def __init__(self, job: Mapping[str, Any], run_id: str, folder: Path, module: Path, scratch: Path):
        spec = job["pipelineSpec"]
        self._job = job
        self._started = _now()
        # How the tasks ended, in Vertex AI's form (PipelineTaskDetail).
        self._details: list[dict[str, Any]] = []
        self._tasks = tasks_of_spec(spec)
        self._fails_fast = job["runtimeConfig"].get("failurePolicy") == "PIPELINE_FAILURE_POLICY_FAIL_FAST"
        self._components = spec["components"]
        self._executors = spec["deploymentSpec"]["executors"]
        # <root>/<project number>/<job>/<task>_<number>/<output>, as on Vertex AI
        self._name = f"{spec['pipelineInfo']['name']}-{run_id}"
        self._root = f"{job['runtimeConfig']['gcsOutputDirectory']}/0/{self._name}"
        self._logs = folder / "logs" / run_id
        self._logs.mkdir(parents=True, exist_ok=True)
        self._containers = LocalContainers(scratch, self._logs, module)
        self._metadata = LocalMetadata(folder / "metadata.json")
        self._outputs: dict[str, Outputs] = {}

    def run(self, on_start: Callable[[str], None], on_end: Callable[[Step], None]) -> dict[str, Step]:
        steps, failure = {}, None
        upstream = {name: _upstream(task) for name, task in self._tasks.items() if name not in (REPORT_TASK, ALL_NODES)}
        for task in graphlib.TopologicalSorter(upstream).static_order():
            if failure and (self._fails_fast or not upstream[task] <= self._outputs.keys()):
                continue
            name = task.removesuffix(LAST_OF_RESOLVER)
            is_shown = not task.endswith(FIRST_OF_RESOLVER)
            if is_shown:
                on_start(name)
            try:
                step = self._run_step(task, name)
            except StepFailed as error:
                failure = failure or error
                continue
            if is_shown:
                steps[name] = step
                on_end(step)
        if failure:
            if not self._fails_fast:
                self._report()
            raise failure
        if REPORT_TASK in self._tasks:
            on_start(REPORT_TASK)
            started = time.monotonic()
            if not self._report():
                raise StepFailed(REPORT_TASK, time.monotonic() - started) from UserError(
                    f"it always ends well on Vertex AI, and did not here; its log {self._logs / REPORT_TASK}.log"
                )
            steps[REPORT_TASK] = Step(REPORT_TASK, "ran", time.monotonic() - started, {}, None)
            on_end(steps[REPORT_TASK])
        return steps

    def _run_step(self, task: str, name: str) -> Step:
        started, start_time = time.monotonic(), _now()
        detail: dict[str, Any] = {"taskName": task, "state": "FAILED", "startTime": start_time, "outputs": {}}
        self._details.append(detail)
        try:
            state, outputs = self._run_task(task)
            detail["state"], self._outputs[task] = TASK_STATES[state], outputs
            detail["outputs"] = {
                key: {"artifacts": [{field: artifact[field] for field in ("name", "uri", "metadata")}]}
                for key, artifacts in outputs.items()
                for artifact in artifacts
            }
        except UserError as error:
            detail["error"] = {"code": 13, "message": str(error)}
            raise StepFailed(name, time.monotonic() - started) from error
        finally:
            detail["endTime"] = _now()
        times = [self._metadata.created(artifact) for artifacts in outputs.values() for artifact in artifacts]
        made = datetime.datetime.fromtimestamp(max(times)) if times else None
        return Step(name, state, time.monotonic() - started, as_tfx(outputs), made)

    def _report(self) -> bool:
        if REPORT_TASK not in self._tasks:
            return True
        component = self._components[REPORT_TASK]
        folder = f"{self._root}/{REPORT_TASK}_{len(self._outputs) + 1}"
        outputs = {key: [self._metadata.new(f"{folder}/{key}")] for key in component["outputDefinitions"]["artifacts"]}
        job = {
            **self._job,
            "name": f"rehearsal/{self._name}",
            "createTime": self._started,
            "jobDetail": {"taskDetails": self._details},
        }
        job_file = self._logs / "job.json"
        filesystem.write(job_file, json.dumps(job))
        container = self._executors[component["executorLabel"]]["container"]
        executor_input = {"outputs": _in_spec(outputs, folder)}
        try:
            self._containers.run(REPORT_TASK, container, executor_input, {JOB_NAME: str(job_file)})
        except UserError:
            return False
        return True

    def _run_task(self, name: str) -> tuple[State, Outputs]:
        task = self._tasks[name]
        component = self._components[task["componentRef"]["name"]]
        if "executorLabel" not in component:
            raise UserError(f"the task {name} is a pipeline itself, which cannot be rehearsed")
        executor = self._executors[component["executorLabel"]]
        sources = {key: source["taskOutputArtifact"] for key, source in _inputs(task, "artifacts").items()}
        inputs = {
            key: self._outputs[source["producerTask"]].get(source["outputArtifactKey"], [])
            for key, source in sources.items()
        }
        if "condition" in task.get("triggerPolicy", {}):
            raise UserError(f"the task {name} runs under a condition, which cannot be rehearsed")
        if "importer" in executor:
            return "looked up", self._import(executor["importer"], component)
        if "resolver" in executor:
            queries = executor["resolver"]["outputArtifactQueries"]
            outputs = {key: self._resolve(query["filter"], inputs) for key, query in queries.items()}
            if name in NOT_FOUND and not any(outputs.values()):
                raise UserError(NOT_FOUND[name])
            return "looked up", outputs
        definitions = component.get("inputDefinitions", {}).get("artifacts", {})
        for key in inputs:
            if not inputs[key] and not definitions.get(key, {}).get("isOptional"):
                raise UserError(f"the input {key} was not found, and the spec does not mark it isOptional")
        return self._run_container(name, task, component, executor["container"], inputs)

    def _import(self, importer: Mapping[str, Any], component: Mapping[str, Any]) -> Outputs:
        (output,) = component["outputDefinitions"]["artifacts"]
        uri = importer["artifactUri"]["constantValue"]["stringValue"]
        schema = importer["typeSchema"]["instanceSchema"]
        if not fileio.exists(uri):
            raise UserError(f"there is nothing at {uri}, which is to be imported")
        artifact = self._metadata.imported(uri, schema) or self._metadata.new(uri, schema, importer.get("metadata"))
        self._metadata.add({output: [artifact]})
        return {output: [artifact]}

    def _resolve(self, query: str, inputs: Outputs) -> list[Artifact]:
        """Return the newest artifact that a resolver's query finds, if any.

        It may refer to the metadata of inputs: {{$.inputs.artifacts['a'].metadata['b']}}.
        """
        reference = r"\{\{\$\.inputs\.artifacts\['(\w+)'\]\.metadata\['(\w+)'\]\}\}"
        try:
            query = re.sub(reference, lambda match: str(inputs[match[1]][0]["metadata"][match[2]]), query)
        except IndexError:  # the input was not found
            return []
        artifact = self._metadata.latest(query)
        return [artifact] if artifact else []

    def _run_container(
        self,
        name: str,
        task: Mapping[str, Any],
        component: Mapping[str, Any],
        container: Mapping[str, Any],
        inputs: Outputs,
    ) -> tuple[State, Outputs]:
        folder = f"{self._root}/{name}_{len(self._outputs) + 1}"
        definitions = component.get("outputDefinitions", {}).get("artifacts", {})
        schemas = {key: definition["artifactType"]["instanceSchema"] for key, definition in definitions.items()}
        outputs = {key: [self._metadata.new(f"{folder}/{key}", schema)] for key, schema in schemas.items()}
        output_file = f"{folder}/executor_output.json"
        try:
            parameters = {
                key: value["runtimeValue"]["constantValue"] for key, value in _inputs(task, "parameters").items()
            }
        except KeyError as error:
            raise UserError(f"a parameter of {name} is not constant, which the rehearsal needs") from error
        executor_input: dict[str, Any] = {
            "inputs": {
                "parameters": parameters,
                "artifacts": {key: {"artifacts": artifacts} for key, artifacts in inputs.items()},
            },
            "outputs": _in_spec(outputs, folder),
        }
        driver = container.get("lifecycle", {}).get("preCacheCheck")
        if driver:
            # It finds out what the data is, so that other data is another key of the cache.
            self._containers.run(f"{name}-driver", driver, executor_input)
            driver_output = json.loads(filesystem.read_text(output_file))
            executor_input["inputs"]["parameterValues"] = driver_output.get("parameterValues", {})
            _update(outputs, driver_output)

        key = _cache_key(container, schemas, executor_input["inputs"])
        if task.get("cachingOptions", {}).get("enableCache"):
            cached = self._metadata.cached(key)
            if cached is not None:
                return "cached", cached
        if not filesystem.is_remote(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._containers.run(name, container, executor_input)
        if filesystem.exists(output_file):
            _update(outputs, json.loads(filesystem.read_text(output_file)))
        self._metadata.add(outputs, key)
        return "ran", outputs


def report_of(folder: Path, run_id: str) -> Path | None:
    """Return the report of a rehearsal; None if it could not be written."""
    return next(folder.glob(f"artifacts/0/*-{run_id}/{REPORT_TASK}_*/{REPORT}.html"), None)


def not_rehearsed(vertex: Vertex) -> Iterator[str]:
    """Yield what a run on Vertex AI has that a rehearsal has not, a phrase each."""
    machines = vertex.machines
    yield "permissions, quotas and networks"
    in_image = RUN_IN_IMAGE in os.environ
    image = "the bases of the image (these are stand-ins)" if in_image else "the image (these are the packages here)"
    yield f"{image} and the bucket (these are folders here)"
    yield "machine types, memory and accelerators"
    yield "Dataflow, if the data steps run there (here they ran in their tasks)"
    if vertex.endpoint:
        name = vertex.endpoint.name
        yield f"the registry and the endpoint {name}: nothing was deployed, the model was pushed to a folder"
    jobs = [job for job in (machines.training, machines.tuning) if job]
    if any(job.reduction_servers for job in jobs):
        yield "Reduction Servers"
    if any(job.spot for job in jobs):
        yield "spot machines that are taken away"
    if machines.search_with == "vizier" and machines.tuning:
        yield "Vizier's choice of values (these were random), and its early stopping"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


def _inputs(task: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return dict(task.get("inputs", {}).get(kind, {}))


def _upstream(task: Mapping[str, Any]) -> set[str]:
    producers = {source["taskOutputArtifact"]["producerTask"] for source in _inputs(task, "artifacts").values()}
    return {*task.get("dependentTasks", ()), *producers}


def _in_spec(outputs: Outputs, folder: str) -> dict[str, Any]:
    """Return the outputs of a task in the form of an ExecutorInput."""
    artifacts = {key: {"artifacts": artifacts} for key, artifacts in outputs.items()}
    return {"artifacts": artifacts, "outputFile": f"{folder}/executor_output.json"}


def _update(outputs: Outputs, output: Mapping[str, Any]) -> None:
    """Add what a process has written about its artifacts to executor_output.json."""
    for key, value in output.get("artifacts", {}).items():
        (changed,), (artifact,) = value["artifacts"], outputs[key]
        artifact["uri"] = changed.get("uri", artifact["uri"])
        artifact["metadata"] = {**artifact["metadata"], **changed.get("metadata", {})}


def _cache_key(container: Mapping[str, Any], schemas: Mapping[str, str], inputs: Mapping[str, Any]) -> str:
    """Return a digest of what decides the outputs: container, parameters, input artifacts by name, kinds of outputs.

    cloud.google.com/vertex-ai/docs/pipelines/configure-caching
    """
    content = {
        "container": {key: container.get(key) for key in ("image", "command", "args")},
        "outputs": schemas,
        "parameters": [inputs["parameters"], inputs.get("parameterValues")],
        "artifacts": {
            key: [artifact["name"] for artifact in value["artifacts"]] for key, value in inputs["artifacts"].items()
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
