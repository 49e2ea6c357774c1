"""Turn the table of machines into resources of tasks, jobs with their worker pools, and the Pusher that deploys.

A job is written as Vertex AI's REST documentation writes it (CustomJob), into the settings of the component whose task
starts it; ``pipeline.vertex.jobs.launch`` adds what is known only then.
"""

from dataclasses import replace
from typing import Any

from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.orchestration.pipeline import Pipeline
from tfx.utils import json_utils, name_utils

from pipeline.settings.checks import ConfigError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.machines import Job
from pipeline.settings.target import Vertex
from pipeline.vertex.endpoints import pusher
from pipeline.vertex.jobs import launch, vizier
from pipeline.vertex.jobs.replicas import TrainerReplica, TunerReplica

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
    if job.tpu_topology:
        machine["tpuTopology"] = job.tpu_topology
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
