"""Compile the graph to the PipelineJob of Vertex AI Pipelines and the files to upload before; without credentials."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig
from tfx.orchestration.pipeline import Pipeline

from pipeline import filesystem
from pipeline.costs.rates import Rates
from pipeline.data import image_dataset
from pipeline.data.files import Files
from pipeline.data.location import find_files
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.graph import create_pipeline
from pipeline.settings.config import Data, PipelineConfig
from pipeline.settings.target import Target
from pipeline.vertex import FIRST_OF_RESOLVER, JOB, LAST_OF_RESOLVER, UPLOADS
from pipeline.vertex.jobs.require_gpus import on_gpus
from pipeline.vertex.pipelines import report_task
from pipeline.vertex.pipelines.worker_pools import assign_machines

BYTES_AT_ONCE = 1 << 20
# TFX names its own, whatever the driver of the component is, and none for BigQuery.
EXAMPLE_GEN_DRIVER = ["python", "-m", "pipeline.components.example_gen_driver"]
POLICIES = {"fast": "PIPELINE_FAILURE_POLICY_FAIL_FAST", "slow": "PIPELINE_FAILURE_POLICY_FAIL_SLOW"}


def compile(config: PipelineConfig, target: Target, out: Path, rates: Rates | None = None) -> Path:
    """Write the PipelineJob of the config's graph, and the list of files to upload before it can run.

    Args:
        config: WHAT. Data on this machine gets an address below a remote ``target.pipeline_root``, by its content.
        target: WHERE, with ``target.vertex``. The user's code and the schema are written to ``target.staging``.
        out: Folder for ``pipeline_job.json`` and ``uploads.json``, which holds {file here: address}.
        rates: What the parts of the run cost an hour, for the bill at its end; None: it will have none.

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
    assign_machines(pipeline, config, target.vertex)
    runner = KubeflowV2DagRunner(KubeflowV2DagRunnerConfig(default_image=target.vertex.image))
    job = runner.run(pipeline, write_out=False)
    _complete(job["pipelineSpec"], pipeline)
    reading = job["pipelineSpec"]["deploymentSpec"]["executors"]["ExampleGen_executor"]["container"]
    if config.data.query_source:
        # The driver passes over arguments that are for the executor.
        reading["lifecycle"] = {"preCacheCheck": {"command": EXAMPLE_GEN_DRIVER, "args": reading["args"]}}
    elif config.data.images:
        reading["lifecycle"]["preCacheCheck"]["command"] = EXAMPLE_GEN_DRIVER
    report_task.add_to(job["pipelineSpec"], config, target.vertex, rates)
    job["runtimeConfig"]["failurePolicy"] = POLICIES[target.vertex.failure_policy]
    return write_compiled(out, job, uploads | staged_uploads(target))


def staged_uploads(target: Target) -> dict[str, str]:
    """Return {file here: address} of the target's staging folder; empty where there is none."""
    if not target.staging:
        return {}
    staged = sorted(path for path in target.files.rglob("*") if path.is_file())
    return {str(path.absolute()): target.address(path) for path in staged}


def write_compiled(out: Path, job: Mapping[str, Any], uploads: Mapping[str, str]) -> Path:
    """Write a job and the list of files to upload before it; return the path of the job."""
    for name, content in ((UPLOADS, uploads), (JOB, job)):
        filesystem.write(out / name, json.dumps(content, indent=2, sort_keys=True) + "\n")
    return out / JOB


def _complete(spec: dict[str, Any], pipeline: Pipeline) -> None:
    """Add what TFX 1.21 leaves out of the spec."""
    tasks = spec["root"]["dag"]["tasks"]
    executors = spec["deploymentSpec"]["executors"]
    for component in pipeline.components:
        # A resolver of the latest blessed model waits for nothing, so its result would depend on when it runs.
        first = tasks.get(f"{component.id}{FIRST_OF_RESOLVER}")
        upstream = sorted(node.id for node in component.upstream_nodes)
        if first is not None and upstream:
            first["dependentTasks"] = upstream
        # The machine of a FileBasedExampleGen is forgotten.
        if isinstance(component, BaseComponent) and component.platform_config:
            container = executors[f"{component.id}_executor"]["container"]
            container.setdefault("resources", json_format.MessageToDict(component.platform_config))
            container["command"] = on_gpus(container["command"], component.platform_config.accelerator.type)
    # Without an earlier model the first run has to go on, and a required input "must be able to resolve to an artifact
    # at runtime" (ComponentInputsSpec.ArtifactSpec of pipeline_spec.proto).
    for task in tasks.values():
        definitions = spec["components"][task["componentRef"]["name"]].get("inputDefinitions", {})
        for key, source in task.get("inputs", {}).get("artifacts", {}).items():
            if source["taskOutputArtifact"]["producerTask"].endswith((FIRST_OF_RESOLVER, LAST_OF_RESOLVER)):
                definitions["artifacts"][key]["isOptional"] = True


def _with_remote_data(config: PipelineConfig, target: Target) -> tuple[PipelineConfig, dict[str, str]]:
    """Return the config with local data at an address named by its content, and the files to upload there."""
    data = config.data
    if data.query_source or is_remote(data.path):
        return config, {}
    source = find_files(data)
    folder = Path(source.folder)
    files = {*source.all, *_images_in_tables(source, data)}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(Path(file).relative_to(folder).as_posix().encode())
        with open(file, "rb") as stream:
            while block := stream.read(BYTES_AT_ONCE):
                digest.update(block)
    address = f"{target.pipeline_root}/_data/{digest.hexdigest()[:16]}"
    uploads = {str(Path(file).absolute()): f"{address}/{Path(file).relative_to(folder).as_posix()}" for file in files}
    path = f"{address}/{Path(data.path).name}" if Path(data.path).is_file() else address
    return replace(config, data=replace(data, path=path)), uploads


def _images_in_tables(source: Files, data: Data) -> Iterator[str]:
    """Yield the image files that tables name; those that are not there are bad rows.

    Raises:
        UserError: there is a bad row, and none is allowed.
    """
    for row, path, file in image_dataset.in_tables(source, data.images) if data.images else ():
        if file and Path(file).is_file():
            yield file
        elif not data.max_bad_rows:
            found = f"there is no file {file}" if file else f"{path!r} leads out of the folder of the table"
            raise UserError(
                f"{row}: {found if path else 'no path of an image'}; expected the path of an image below "
                f"{source.folder}, from where they are uploaded; correct it, or allow a share of bad rows with "
                "data.max_bad_rows"
            )
