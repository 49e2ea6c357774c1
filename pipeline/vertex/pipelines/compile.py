"""Compile the graph to the PipelineJob of Vertex AI Pipelines and the files to upload before; without credentials."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig
from tfx.orchestration.pipeline import Pipeline
from tfx.utils import json_utils, name_utils

from pipeline import filesystem
from pipeline.costs.estimate import Rates
from pipeline.data import image_dataset
from pipeline.data.files import Files
from pipeline.data.location import find_files
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.graph import create_pipeline
from pipeline.settings import checks
from pipeline.settings.checks import ConfigError
from pipeline.settings.config import Data, PipelineConfig
from pipeline.settings.machines import TOPOLOGIES, Job
from pipeline.settings.repository import in_repository
from pipeline.settings.target import Target, Vertex
from pipeline.vertex import ALL_NODES, FIRST_OF_RESOLVER, JOB, JOB_NAME, LAST_OF_RESOLVER, REPORT_TASK, UPLOADS
from pipeline.vertex.endpoints import pusher
from pipeline.vertex.jobs import launch, vizier
from pipeline.vertex.jobs.launch import TrainerReplica, TunerReplica
from pipeline.vertex.jobs.require_gpus import on_gpus
from pipeline.vertex.pipelines.report_task import OUTPUTS
from pipeline.vertex.pipelines.watch import RATES_FLAG

# TFX names its own driver, regardless of the component's, and none for BigQuery.
EXAMPLE_GEN_DRIVER = ["python", "-m", "pipeline.components.example_gen_driver"]
POLICIES = {"fast": "PIPELINE_FAILURE_POLICY_FAIL_FAST", "slow": "PIPELINE_FAILURE_POLICY_FAIL_SLOW"}


def compile(config: PipelineConfig, target: Target, out: Path, rates: Rates | None = None) -> Path:
    """Write the PipelineJob of the config's graph and the list of files to upload before it; return the job's path.

    Data on this machine gets an address below a remote ``target.pipeline_root``, by its content. ``rates`` are for the
    bill at the end of the run.
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
        # The driver ignores arguments for the executor.
        reading["lifecycle"] = {"preCacheCheck": {"command": EXAMPLE_GEN_DRIVER, "args": reading["args"]}}
    elif config.data.images:
        reading["lifecycle"]["preCacheCheck"]["command"] = EXAMPLE_GEN_DRIVER
    _add_report(job["pipelineSpec"], config, target.vertex, rates)
    job["runtimeConfig"]["failurePolicy"] = POLICIES[target.vertex.failure_policy]
    return write_compiled(out, job, uploads | staged_uploads(target))


def staged_uploads(target: Target) -> dict[str, str]:
    """Return {file here: address} of the target's staging folder, if it has one."""
    if not target.staging:
        return {}
    staged = sorted(path for path in target.files.rglob("*") if path.is_file())
    return {str(path.absolute()): target.address(path) for path in staged}


def write_compiled(out: Path, job: Mapping[str, Any], uploads: Mapping[str, str]) -> Path:
    """Write a job and the list of files to upload before it; return the path of the job."""
    for name, content in ((UPLOADS, uploads), (JOB, job)):
        filesystem.write(out / name, json.dumps(content, indent=2, sort_keys=True) + "\n")
    return out / JOB


def _add_report(spec: dict[str, Any], config: PipelineConfig, vertex: Vertex, rates: Rates | None) -> None:
    """Add the exit handler ``report_task``, in the form of kfp's ExitHandler and TFX's exit_handler.

    All other tasks go into one task, which ends in any case. An exit handler that waited for each of them would not be
    triggered after a failure: what depends on the failed task never ends.
    """
    spec["components"][ALL_NODES] = {"dag": spec["root"]["dag"]}
    spec["root"]["dag"] = {"tasks": {ALL_NODES: {"taskInfo": {"name": ALL_NODES}, "componentRef": {"name": ALL_NODES}}}}
    arguments = ["--job", JOB_NAME, "--config", config_to_json(config), "--executor-input", "{{$}}"]
    if rates:
        arguments += [RATES_FLAG, checks.to_json(rates)]
    if vertex.webhook_url:
        arguments += ["--webhook-url", vertex.webhook_url, "--webhook-secret", str(vertex.webhook_secret)]
    module = "pipeline.vertex.pipelines.report_task"
    task = add_task(spec, REPORT_TASK, module, arguments, vertex, OUTPUTS)
    task |= {"dependentTasks": [ALL_NODES], "triggerPolicy": {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}}


def add_task(
    spec: dict[str, Any],
    name: str,
    module: str,
    arguments: list[str],
    vertex: Vertex,
    outputs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Add a task to a pipeline spec and return it: a module of ours with its arguments, on the machine of ``name``.

    The config is among the arguments as text, for its file is not in the image. ``outputs`` holds the kind of artifact
    by output, such as "system.HTML".
    """
    machine = vertex.machines.task(name)
    container = {
        "image": vertex.image,
        "command": ["python", "-m", module],
        "args": arguments,
        "resources": {"cpuLimit": machine.cpu, "memoryLimit": machine.memory_gib},
    }
    spec["deploymentSpec"]["executors"][f"{name}_executor"] = {"container": container}
    spec["components"][name] = {"executorLabel": f"{name}_executor"}
    if outputs:
        kinds = {
            key: {"artifactType": {"schemaTitle": kind, "schemaVersion": "0.0.1"}} for key, kind in outputs.items()
        }
        spec["components"][name]["outputDefinitions"] = {"artifacts": kinds}
    task: dict[str, Any] = {"taskInfo": {"name": name}, "componentRef": {"name": name}}
    spec["root"]["dag"]["tasks"][name] = task
    return task


def config_to_json(config: PipelineConfig) -> str:
    """Return the config as JSON, independent of the local path of the repository."""
    portable = replace(
        config,
        module=in_repository(config.module),
        schema=config.schema and in_repository(config.schema),
        data=replace(config.data, prepare=None),
    )
    return checks.to_json(portable)


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
        # TFX drops the machine of a FileBasedExampleGen.
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
        digest.update(f"{Path(file).relative_to(folder).as_posix()} {filesystem.digest(file)}\n".encode())
    address = f"{target.pipeline_root}/_data/{digest.hexdigest()[:16]}"
    uploads = {str(Path(file).absolute()): f"{address}/{Path(file).relative_to(folder).as_posix()}" for file in files}
    path = f"{address}/{Path(data.path).name}" if Path(data.path).is_file() else address
    return replace(config, data=replace(data, path=path)), uploads


def _images_in_tables(source: Files, data: Data) -> Iterator[str]:
    """Yield the image files that tables name; those that are not there are bad rows."""
    for row, path, file in image_dataset.in_tables(source, data.images):
        if file and Path(file).is_file():
            yield file
        elif not data.max_bad_rows:
            found = f"there is no file {file}" if file else f"{path!r} leads out of the folder of the table"
            raise UserError(
                f"{row}: {found if path else 'no path of an image'}; expected the path of an image below "
                f"{source.folder}, from where they are uploaded; correct it, or allow a share of bad rows with "
                "data.max_bad_rows"
            )


# cloud.google.com/vertex-ai/docs/training/distributed-training#reduce_training_time_with_reduction_server
REDUCTION_SERVER_IMAGE = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"

_ResourceSpec = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec


def assign_machines(pipeline: Pipeline, config: PipelineConfig, vertex: Vertex) -> None:
    """Give every task its machine, the Trainer and the Tuner their jobs, and the Pusher its endpoint."""
    machines = vertex.machines
    components = {node.id: node for node in pipeline.components if isinstance(node, BaseComponent)}
    machines.check_strategy(config.training.strategy)
    for name, component in components.items():
        row = machines.task(name)
        resources = _ResourceSpec(cpu_limit=row.cpu, memory_limit=row.memory_gib)
        if row.accelerator:
            resources.accelerator.type = row.accelerator
            resources.accelerator.count = row.accelerators
        component.with_platform_config(resources)
    if machines.training:
        _run_as_job(components["Trainer"], TrainerReplica, machines.training, vertex)
    if machines.tuning and "Tuner" in components:
        if machines.search_with == "vizier":
            # A trial reports in /var/hypertune, where only root may write (GoogleCloudPlatform/cloudml-hypertune#6).
            as_root = replace(vertex, image=vertex.image_as_root)
            _run_as_job(components["Tuner"], None, machines.tuning, as_root)
        else:
            _run_as_job(components["Tuner"], TunerReplica, machines.tuning, vertex)
    if vertex.endpoint:
        setting = pusher.setting_for(vertex, vertex.endpoint, config.name)
        _replace_executor(components["Pusher"], pusher.EndpointPusherExecutor, pusher.SETTING, setting)


def worker_pools(job: Job, image: str) -> list[dict[str, Any]]:
    """Return the pools of a job: chief, other replicas, Reduction Servers. The latter keep their own command."""
    machine: dict[str, Any] = {"machineType": job.machine_type}
    if job.accelerator:
        machine |= {"acceleratorType": job.accelerator, "acceleratorCount": job.accelerators}
    if job.machine_type in TOPOLOGIES:
        machine["tpuTopology"] = TOPOLOGIES[job.machine_type]
    container: dict[str, Any] = {"imageUri": image}
    if job.tpu:
        # pipeline.training looks for it; "local" is the TPU of this host.
        container["env"] = [{"name": "TPU_NAME", "value": "local"}]

    def pool(replicas: int, machine: dict[str, Any], container: dict[str, Any]) -> dict[str, Any]:
        return {
            "machineSpec": dict(machine),
            "replicaCount": replicas,
            "diskSpec": {"bootDiskType": job.boot_disk_type, "bootDiskSizeGb": job.boot_disk_gib},
            "containerSpec": dict(container),
        }

    pools = [pool(1, machine, container)]
    if job.replicas > 1:
        pools.append(pool(job.replicas - 1, machine, container))
    if job.reduction_servers:
        reduction = {"machineType": job.reduction_machine_type}
        pools.append(pool(job.reduction_servers, reduction, {"imageUri": REDUCTION_SERVER_IMAGE}))
    return pools


def custom_job(job: Job, vertex: Vertex, name: str) -> dict[str, Any]:
    """Return a CustomJob without its command and folder."""
    spec: dict[str, Any] = {
        "workerPoolSpecs": worker_pools(job, vertex.image),
        "scheduling": {
            "timeout": f"{round(job.timeout_hours * 3600)}s",
            "restartJobOnWorkerRestart": job.restart,
            "disableRetries": not job.restart,
            **({"strategy": "SPOT"} if job.spot else {}),
        },
    }
    for key, value in (("serviceAccount", vertex.service_account), ("network", vertex.network)):
        if value:
            spec[key] = value
    if job.tensorboard:
        if not vertex.service_account:
            raise ConfigError("tensorboard needs a service account that may write to it; give --service-account")
        spec["tensorboard"] = job.tensorboard
    return {
        "displayName": name,
        "jobSpec": spec,
        **({"labels": dict(vertex.labels)} if vertex.labels else {}),
        **({"encryptionSpec": {"kmsKeyName": vertex.encryption_key}} if vertex.encryption_key else {}),
    }


def _run_as_job(component: BaseComponent, replica: type[BaseExecutor] | None, job: Job, vertex: Vertex) -> None:
    """Let a component's task start a job with an executor in each replica, or a search by Vizier, and wait for it."""
    setting = {
        "executor": replica and name_utils.get_full_name(replica),
        "parent": f"projects/{vertex.project}/locations/{vertex.region}",
        "replicas": job.replicas,
        "job": custom_job(job, vertex, component.id.lower()),
    }
    executor = launch.JobExecutor if replica else vizier.VizierJobExecutor
    _replace_executor(component, executor, launch.SETTING, setting)


def _replace_executor(
    component: BaseComponent, executor: type[BaseExecutor], name: str, setting: dict[str, Any]
) -> None:
    settings = json_utils.loads(component.exec_properties["custom_config"])
    component.exec_properties["custom_config"] = json_utils.dumps({**settings, name: setting})
    component.executor_spec = executor_spec.ExecutorClassSpec(executor)
