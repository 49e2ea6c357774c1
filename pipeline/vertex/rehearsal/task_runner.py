"""Runs a PipelineJob compiled for Vertex AI on this machine, task by task, as Vertex AI would.

What there is a container is here a fresh process: with the container's command, in an empty folder, with an environment
that has nothing of this shell's, and with the packages that are in the image and no other code. What goes between the
tasks is what Vertex AI hands over: ExecutorInput and executor_output.json, by the spec.
"""

from __future__ import annotations

import datetime
import graphlib
import hashlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import UserError
from pipeline.runs.run_graph import NOT_FOUND, Step, StepFailed
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Machines
from pipeline.settings.target import IN_PROCESS, Target, Vertex
from pipeline.vertex import ENDING, FIRST_OF_RESOLVER, JOB_NAME, LAST_OF_RESOLVER, REPORT
from pipeline.vertex.pipelines.artifacts import FIELDS, as_tfx
from pipeline.vertex.rehearsal.conditions import holds
from pipeline.vertex.rehearsal.local_containers import LocalContainers
from pipeline.vertex.rehearsal.local_metadata import Artifact, LocalMetadata


def target_for(output: Path, name: str, machines: Machines, endpoint: Endpoint | None = None) -> Target:
    """The target of a rehearsal: compiled for Vertex AI, with folders on this machine in place of the bucket."""
    vertex = Vertex(
        project="rehearsal",
        region=endpoint.name.split("/")[3] if endpoint and endpoint.is_resource_name else "us-central1",
        bucket="rehearsal",
        image="rehearsal/pipeline:this",
        machines=machines,
        service_account="rehearsal@rehearsal.iam.gserviceaccount.com",
        endpoint=endpoint,
    )
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
    """Runs every task of a PipelineJob in the order of its spec.

    Args:
        job: The PipelineJob, as compiled.
        run_id: Name of the run; the logs go to ``folder/logs/<run_id>/``.
        folder: Holds the metadata and logs.
        module: The user's module file, for messages.
        on_start: Told the name of a step before it starts.
        on_end: Told how it ended.

    Returns:
        The steps by name; the two tasks of a resolver are one step.

    Raises:
        StepFailed: a task failed; nothing after it has run.
    """
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as scratch:
        return _Rehearsal(job, run_id, folder, module, Path(scratch)).run(on_start, on_end)


class _Rehearsal:
    """One run of one job."""

    def __init__(self, job: Mapping[str, Any], run_id: str, folder: Path, module: Path, scratch: Path):
        spec = job["pipelineSpec"]
        self._job = job
        self._started = _now()
        # What became of the tasks, as Vertex AI tells it (PipelineTaskDetail).
        self._details: list[dict[str, Any]] = []
        self._tasks: dict[str, Any] = spec["root"]["dag"]["tasks"]
        self._components = spec["components"]
        self._executors = spec["deploymentSpec"]["executors"]
        # <root>/<project number>/<job>/<task>_<number>/<output>, as on Vertex AI
        self._root = Path(job["runtimeConfig"]["gcsOutputDirectory"]) / "0" / f"{spec['pipelineInfo']['name']}-{run_id}"
        self._logs = folder / "logs" / run_id
        self._logs.mkdir(parents=True, exist_ok=True)
        self._containers = LocalContainers(scratch, self._logs, module)
        self._metadata = LocalMetadata(folder / "vertex_metadata.json")
        self._outputs: dict[str, dict[str, list[Artifact]]] = {}

    def run(self, on_start: Callable[[str], None], on_end: Callable[[Step], None]) -> dict[str, Step]:
        steps = {}
        try:
            for name, step in self._run_tasks(on_start, on_end):
                steps[name] = step
        except StepFailed:
            self._end()
            raise
        if ENDING in self._tasks:
            on_start(ENDING)
            started = time.monotonic()
            if not self._end():
                raise StepFailed(ENDING, time.monotonic() - started) from UserError(
                    f"it always ends well on Vertex AI, and did not here; its log {self._logs / ENDING}.log"
                )
            steps[ENDING] = Step(ENDING, "ran", time.monotonic() - started, {}, None)
            on_end(steps[ENDING])
        return steps

    def _run_tasks(self, on_start: Callable[[str], None], on_end: Callable[[Step], None]) -> Iterator[tuple[str, Step]]:
        for name in self._in_order():
            step_name = name.removesuffix(LAST_OF_RESOLVER)
            is_shown = not name.endswith(FIRST_OF_RESOLVER)
            if is_shown:
                on_start(step_name)
            started, at = time.monotonic(), _now()
            try:
                state, outputs = self._run_task(name)
            except UserError as error:
                self._details.append(_detail(name, "FAILED", at, {}, str(error)))
                raise StepFailed(step_name, time.monotonic() - started) from error
            self._outputs[name] = outputs
            self._details.append(_detail(name, TASK_STATES[state], at, outputs))
            if is_shown:
                made = [self._metadata.made(one["name"]) for several in outputs.values() for one in several]
                step = Step(
                    name=step_name,
                    state=state,
                    seconds=time.monotonic() - started,
                    outputs=as_tfx(outputs),
                    made=datetime.datetime.fromtimestamp(max(made)) if made else None,
                )
                on_end(step)
                yield step_name, step

    def _end(self) -> bool:
        """Runs the task that Vertex AI runs whatever became of the others, with the job as it would tell of it."""
        if ENDING not in self._tasks:
            return True
        component = self._components[ENDING]
        folder = self._root / f"{ENDING}_{len(self._outputs) + 1}"
        outputs = {
            key: {"artifacts": [{"name": self._metadata.new_name(), "uri": str(folder / key), "metadata": {}}]}
            for key in component["outputDefinitions"]["artifacts"]
        }
        folder.mkdir(parents=True, exist_ok=True)
        job = {
            **self._job,
            "name": f"rehearsal/{self._root.name}",
            "createTime": self._started,
            "jobDetail": {"taskDetails": self._details},
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        executor_input = {"outputs": {"artifacts": outputs, "outputFile": str(folder / "executor_output.json")}}
        container = self._executors[component["executorLabel"]]["container"]
        try:
            self._containers.run(ENDING, container, executor_input, {JOB_NAME: str(folder / "job.json")})
        except UserError:
            return False
        return True

    def _in_order(self) -> list[str]:
        waits_for = {name: self._before(task) for name, task in self._tasks.items() if name != ENDING}
        return list(graphlib.TopologicalSorter(waits_for).static_order())

    @staticmethod
    def _before(task: Mapping[str, Any]) -> set[str]:
        """The tasks that a task waits for."""
        producers = {one["taskOutputArtifact"]["producerTask"] for one in _inputs(task, "artifacts").values()}
        return {*task.get("dependentTasks", ()), *producers}

    def _run_task(
        self, name: str
    ) -> tuple[Literal["ran", "cached", "looked up", "skipped"], dict[str, list[Artifact]]]:
        task = self._tasks[name]
        component = self._components[task["componentRef"]["name"]]
        if "executorLabel" not in component:
            raise UserError(f"the task {name} is a pipeline of its own, which cannot be rehearsed")
        executor = self._executors[component["executorLabel"]]
        producers = {key: one["taskOutputArtifact"] for key, one in _inputs(task, "artifacts").items()}
        skipped = any(self._outputs[one] is SKIPPED for one in self._before(task))
        inputs = {
            key: self._outputs[one["producerTask"]].get(one["outputArtifactKey"], []) for key, one in producers.items()
        }
        condition = task.get("triggerPolicy", {}).get("condition")
        if skipped or (condition and not holds(condition, inputs)):
            return "skipped", SKIPPED
        if "importer" in executor:
            return "looked up", self._imported(executor["importer"], component)
        if "resolver" in executor:
            found = self._resolved(executor["resolver"], inputs)
            if name in NOT_FOUND and not any(found.values()):
                raise UserError(NOT_FOUND[name])
            return "looked up", found
        return self._run_container(name, task, component, executor["container"], inputs)

    def _imported(self, importer: Mapping[str, Any], component: Mapping[str, Any]) -> dict[str, list[Artifact]]:
        (output,) = component["outputDefinitions"]["artifacts"]
        uri = importer["artifactUri"]["constantValue"]["stringValue"]
        schema = importer["typeSchema"]["instanceSchema"]
        if not Path(uri).exists():
            raise UserError(f"there is nothing at {uri}, which is to be imported")
        known = None if importer.get("reimport") else self._metadata.imported(uri, schema)
        artifact = known or {
            "name": self._metadata.new_name(),
            "uri": uri,
            "type": {"instanceSchema": schema},
            "metadata": importer.get("metadata", {}),
        }
        self._metadata.add({output: [artifact]})
        return {output: [artifact]}

    def _resolved(self, resolver: Mapping[str, Any], inputs: Mapping[str, list[Artifact]]) -> dict[str, list[Artifact]]:
        outputs: dict[str, list[Artifact]] = {}
        for key, query in resolver["outputArtifactQueries"].items():
            try:
                found = self._metadata.latest(_filled_in(query["filter"], inputs))
            except IndexError:  # it asks for something of an input that is not there
                found = None
            outputs[key] = [found] if found else []
        return outputs

    def _run_container(
        self,
        name: str,
        task: Mapping[str, Any],
        component: Mapping[str, Any],
        container: Mapping[str, Any],
        inputs: Mapping[str, list[Artifact]],
    ) -> tuple[Literal["ran", "cached"], dict[str, list[Artifact]]]:
        folder = self._root / f"{name}_{len(self._outputs) + 1}"
        schemas = {
            key: one["artifactType"]["instanceSchema"]
            for key, one in component.get("outputDefinitions", {}).get("artifacts", {}).items()
        }
        outputs: dict[str, list[Artifact]] = {
            key: [
                {
                    "name": self._metadata.new_name(),
                    "uri": str(folder / key),
                    "type": {"instanceSchema": schema},
                    "metadata": {},
                }
            ]
            for key, schema in schemas.items()
        }
        output_file = folder / "executor_output.json"
        executor_input: dict[str, Any] = {
            "inputs": {
                "parameters": {key: _constant(key, name, one) for key, one in _inputs(task, "parameters").items()},
                "artifacts": {key: {"artifacts": _given(several)} for key, several in inputs.items()},
            },
            "outputs": {
                "artifacts": {key: {"artifacts": several} for key, several in outputs.items()},
                "outputFile": str(output_file),
            },
        }
        driver = container.get("lifecycle", {}).get("preCacheCheck")
        if driver:
            # It finds out what the data is, so that other data is another key of the cache.
            self._containers.run(f"{name}-driver", driver, executor_input)
            said = json.loads(output_file.read_text(encoding="utf-8"))
            executor_input["inputs"]["parameterValues"] = said.get("parameterValues", {})
            _take_over(outputs, said)

        key = _cache_key(container, schemas, executor_input["inputs"])
        if task.get("cachingOptions", {}).get("enableCache"):
            cached = self._metadata.cached(key)
            if cached is not None:
                return "cached", cached
        for several in outputs.values():
            Path(several[0]["uri"]).parent.mkdir(parents=True, exist_ok=True)
        self._containers.run(name, container, executor_input)
        if output_file.exists():
            _take_over(outputs, json.loads(output_file.read_text(encoding="utf-8")))
        self._metadata.add(outputs, key)
        return "ran", outputs


# What a task has that has not run.
SKIPPED: dict[str, list[Artifact]] = {}
# What Vertex AI calls how a task ended.
TASK_STATES = {"ran": "SUCCEEDED", "cached": "SKIPPED", "looked up": "SUCCEEDED", "skipped": "NOT_TRIGGERED"}


def report_of(folder: Path, run_id: str) -> Path | None:
    """The page of a rehearsal; None if it could not be written."""
    return next(folder.glob(f"artifacts/0/*-{run_id}/{ENDING}_*/{REPORT}.html"), None)


def not_rehearsed(machines: Machines, endpoint: Endpoint | None = None) -> Iterator[str]:
    """What a run on Vertex AI has that this rehearsal had not, a phrase each."""
    yield "permissions, quotas and networks"
    yield "the image (these are the packages of this environment) and the bucket (these are folders here)"
    yield "machine types, memory and accelerators"
    yield "Dataflow, if the data steps run there (here they ran in their tasks)"
    if endpoint:
        yield f"the registry and the endpoint {endpoint.name}: nothing was deployed, the model was pushed to a folder"
    jobs = [job for job in (machines.training, machines.tuning) if job]
    if any(job.reduction_servers for job in jobs):
        yield "Reduction Servers"
    if any(job.spot for job in jobs):
        yield "spot machines that are taken away"
    if machines.search_with == "vizier" and machines.tuning:
        yield "Vizier's choice of values (these were random)"


def _detail(
    task: str, state: str, started: str, outputs: Mapping[str, list[Artifact]], message: str = ""
) -> dict[str, Any]:
    told = {
        key: {"artifacts": [{name: one[name] for name in ("name", "uri", "metadata")} for one in several]}
        for key, several in outputs.items()
    }
    detail = {"taskName": task, "state": state, "startTime": started, "endTime": _now(), "outputs": told}
    return {**detail, "error": {"code": 13, "message": message}} if message else detail


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def _inputs(task: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = task.get("inputs", {}).get(kind, {})
    return found


def _given(artifacts: list[Artifact]) -> list[Artifact]:
    return [{key: one[key] for key in FIELDS} for one in artifacts]


def _constant(key: str, task: str, parameter: Mapping[str, Any]) -> Any:
    try:
        return parameter["runtimeValue"]["constantValue"]
    except KeyError as error:
        raise UserError(f"the parameter {key} of {task} is no constant, which the rehearsal needs") from error


def _take_over(outputs: dict[str, list[Artifact]], said: Mapping[str, Any]) -> None:
    """Takes over what a process says of its artifacts."""
    for key, one in said.get("artifacts", {}).items():
        (told,) = one["artifacts"]
        (artifact,) = outputs[key]
        artifact["uri"] = told.get("uri", artifact["uri"])
        artifact["metadata"] = {**artifact["metadata"], **told.get("metadata", {})}


def _cache_key(container: Mapping[str, Any], schemas: Mapping[str, str], inputs: Mapping[str, Any]) -> str:
    """What decides about the outputs: container, parameters, input artifacts by name, and kinds of outputs.

    cloud.google.com/vertex-ai/docs/pipelines/configure-caching
    """
    decides = {
        "container": {key: container.get(key) for key in ("image", "command", "args")},
        "outputs": schemas,
        "parameters": [inputs["parameters"], inputs.get("parameterValues")],
        "artifacts": {
            key: [artifact["name"] for artifact in one["artifacts"]] for key, one in inputs["artifacts"].items()
        },
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _filled_in(query: str, inputs: Mapping[str, list[Artifact]]) -> str:
    """A query with {{$.inputs.artifacts['a'].metadata['b']}} replaced; IndexError if there is no such artifact."""
    return re.sub(
        r"\{\{\$\.inputs\.artifacts\['(\w+)'\]\.metadata\['(\w+)'\]\}\}",
        lambda match: str(inputs[match[1]][0]["metadata"][match[2]]),
        query,
    )
