"""The graph → the PipelineJob that Vertex AI Pipelines runs, and the files to upload before it; without credentials."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig
from tfx.orchestration.pipeline import Pipeline

from pipeline import filesystem
from pipeline.data.location import find_files
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.graph import create_pipeline
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target
from pipeline.vertex import ENDING, FIRST_OF_RESOLVER, JOB, UPLOADS, node_of
from pipeline.vertex.pipelines import ending
from pipeline.vertex.pipelines.worker_pools import place

BYTES_AT_ONCE = 1 << 20


def compile(config: PipelineConfig, target: Target, out: Path) -> Path:
    """Writes the PipelineJob of the config's graph, and which files go where before it can run.

    Args:
        config: WHAT. Data on this machine gets an address below a remote ``target.pipeline_root``, by its content.
        target: WHERE, with ``target.vertex``. The user's code and the schema are written to ``target.staging``.
        out: Folder for ``pipeline_job.json`` and ``uploads.json``, which holds {file here: address}.

    Returns:
        The path of the PipelineJob.

    Raises:
        UserError: the module file or a setting is not usable, or there is no such data.
    """
    if target.vertex is None:
        raise UserError("the target is this machine; expected one with vertex settings")
    uploads: dict[str, str] = {}
    if is_remote(target.pipeline_root):
        config, uploads = _with_remote_data(config, target)
    pipeline = create_pipeline(config, target)
    place(pipeline, config, target.vertex)
    runner = KubeflowV2DagRunner(KubeflowV2DagRunnerConfig(default_image=target.vertex.image))
    job = runner.run(pipeline, write_out=False)
    _complete(job["pipelineSpec"], pipeline)
    ending.add_to(job["pipelineSpec"], config, target)

    return write_compiled(out, job, uploads | staged_uploads(target))


def staged_uploads(target: Target) -> dict[str, str]:
    """What lies in the target's staging folder here, and where it belongs; nothing where there is no such folder."""
    if not target.staging:
        return {}
    staged = sorted(path for path in target.files.rglob("*") if path.is_file())
    return {str(path.absolute()): target.address(path) for path in staged}


def write_compiled(out: Path, job: Mapping[str, Any], uploads: Mapping[str, str]) -> Path:
    """Writes a job and what to upload before it; returns the path of the job."""
    out.mkdir(parents=True, exist_ok=True)
    _write(out / UPLOADS, uploads)
    return _write(out / JOB, job)


def graph_of(spec: Mapping[str, Any]) -> dict[str, set[str]]:
    """What each node of a compiled pipeline waits for; the two tasks of a resolver are its one node.

    The task that ends a run is none.

    Args:
        spec: ``pipelineSpec`` of a PipelineJob.
    """
    graph: dict[str, set[str]] = {}
    for name, task in spec["root"]["dag"]["tasks"].items():
        if name == ENDING:
            continue
        node = node_of(name)
        inputs = task.get("inputs", {}).get("artifacts", {}).values()
        before = {*task.get("dependentTasks", []), *(one["taskOutputArtifact"]["producerTask"] for one in inputs)}
        graph.setdefault(node, set()).update({node_of(one) for one in before} - {node})
    return graph


def _complete(spec: dict[str, Any], pipeline: Pipeline) -> None:
    """Adds what TFX 1.21 leaves out of the spec."""
    tasks = spec["root"]["dag"]["tasks"]
    executors = spec["deploymentSpec"]["executors"]
    for component in pipeline.components:
        # A resolver of the latest blessed model waits for nothing, so what it finds would depend on when it runs.
        first = tasks.get(f"{component.id}{FIRST_OF_RESOLVER}")
        upstream = sorted(node.id for node in component.upstream_nodes)
        if first is not None and upstream:
            first["dependentTasks"] = upstream
        # The machine of a FileBasedExampleGen is forgotten.
        if isinstance(component, BaseComponent) and component.platform_config:
            container = executors[f"{component.id}_executor"]["container"]
            container.setdefault("resources", json_format.MessageToDict(component.platform_config))


def _with_remote_data(config: PipelineConfig, target: Target) -> tuple[PipelineConfig, dict[str, str]]:
    """The config with data of this machine at an address named by its content; and the files to upload there."""
    data = config.data
    if data.query_source or is_remote(data.path):
        return config, {}
    found = find_files(data)
    folder = Path(found.folder)
    digest = hashlib.sha256()
    for file in sorted(set(found.found.all)):
        digest.update(Path(file).relative_to(folder).as_posix().encode())
        with open(file, "rb") as stream:
            while block := stream.read(BYTES_AT_ONCE):
                digest.update(block)
    address = f"{target.pipeline_root}/_data/{digest.hexdigest()[:16]}"
    uploads = {
        str(Path(file).absolute()): f"{address}/{Path(file).relative_to(folder).as_posix()}" for file in found.found.all
    }
    path = f"{address}/{Path(data.path).name}" if Path(data.path).is_file() else address
    return replace(config, data=replace(data, path=path)), uploads


def _write(path: Path, content: Mapping[str, Any]) -> Path:
    """Writes JSON, there whole or not at all."""
    filesystem.write(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
    return path
