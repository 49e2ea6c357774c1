"""Refuse what Vertex AI refuses: the checks of a request that its documentation names."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

IMAGE = re.compile(r"[^/\s]+/\S*[^/\s][:@]\S+")
# Which accelerator a family of machines takes, and how many: https://cloud.google.com/vertex-ai/docs/training/configure-compute
ACCELERATORS = {
    "n1": {
        "NVIDIA_TESLA_T4": (1, 2, 4),
        "NVIDIA_TESLA_V100": (1, 2, 4, 8),
        "NVIDIA_TESLA_P100": (1, 2, 4),
        "NVIDIA_TESLA_P4": (1, 2, 4),
    },
    "a2-highgpu": {"NVIDIA_TESLA_A100": (1, 2, 4, 8)},
    "a2-megagpu": {"NVIDIA_TESLA_A100": (16,)},
    "a2-ultragpu": {"NVIDIA_A100_80GB": (1, 2, 4, 8)},
    "a3-highgpu": {"NVIDIA_H100_80GB": (1, 2, 4, 8)},
    "a3-megagpu": {"NVIDIA_H100_MEGA_80GB": (8,)},
    "a3-ultragpu": {"NVIDIA_H200_141GB": (8,)},
    "a4-highgpu": {"NVIDIA_B200": (8,)},
    "g2-standard": {"NVIDIA_L4": (1, 2, 4, 8)},
}
NEEDS_ACCELERATOR = ("a2", "a3", "a4", "g2")
MACHINE = re.compile(r"(n1|n2|n2d|e2|c2|c2d|c3|m1|a2|a3|g2|a4|ct5lp|ct6e|cloud-tpu)(-[a-z0-9]+)*")


class InvalidArgument(Exception):
    """The request is refused; the message says which field."""


def require(condition: Any, message: str) -> None:
    """Refuses the request unless the condition holds."""
    if not condition:
        raise InvalidArgument(message)


def check_pipeline_job(job: v1.PipelineJob) -> None:
    """Checks a PipelineJob: its spec parses, every reference resolves, tasks do not wait for each other in a ring."""
    as_dict = json_format.MessageToDict(v1.PipelineJob.pb(job).pipeline_spec)
    require(as_dict, "pipeline_job.pipeline_spec is required")
    try:
        spec = json_format.ParseDict(as_dict, pipeline_spec_pb2.PipelineSpec())
        deployment = json_format.MessageToDict(spec.deployment_spec)
        executors = json_format.ParseDict(deployment, pipeline_spec_pb2.PipelineDeploymentConfig()).executors
    except json_format.ParseError as error:
        raise InvalidArgument(f"pipeline_job.pipeline_spec does not parse: {error}") from error
    require(
        spec.schema_version in ("2.0.0", "2.1.0"), f"pipeline_spec.schema_version {spec.schema_version!r} is unknown"
    )
    require(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,127}", spec.pipeline_info.name), f"bad name {spec.pipeline_info.name!r}")
    root = job.runtime_config.gcs_output_directory
    require(root.startswith("gs://"), f"runtime_config.gcs_output_directory must be a gs:// address, got {root!r}")
    given = set(job.runtime_config.parameter_values) | set(job.runtime_config.parameters)
    wanted = set(spec.root.input_definitions.parameters)
    require(given <= wanted, f"unknown runtime parameters {sorted(given - wanted)}")
    check_labels(job.labels)

    dags = dict(dags_of(spec, "root"))
    require(dags["root"], "pipeline_spec.root.dag has no tasks")
    for where, tasks in dags.items():
        for name, task in tasks.items():
            _check_task(name, task, tasks, spec, executors)
        graph = {name: upstream_of(task) for name, task in tasks.items()}
        require(len(in_order(graph)) == len(tasks), f"pipeline_spec, {where}: tasks wait for each other in a ring")


def dags_of(
    spec: pipeline_spec_pb2.PipelineSpec, name: str, dag: pipeline_spec_pb2.DagSpec | None = None
) -> Iterator[tuple[str, Mapping[str, pipeline_spec_pb2.PipelineTaskSpec]]]:
    """The tasks of the root, called ``name``, and of every task whose component is a DAG, the outer DAG first."""
    tasks = (dag or spec.root.dag).tasks
    yield name, tasks
    for inner, task in tasks.items():
        component = spec.components.get(task.component_ref.name, None)
        if component is not None and component.WhichOneof("implementation") == "dag":
            yield from dags_of(spec, inner, component.dag)


def upstream_of(task: pipeline_spec_pb2.PipelineTaskSpec) -> set[str]:
    """Return what a task waits for."""
    sources = task.inputs.artifacts.values()
    return {*task.dependent_tasks, *(source.task_output_artifact.producer_task for source in sources)}


def _check_task(
    name: str,
    task: pipeline_spec_pb2.PipelineTaskSpec,
    tasks: Mapping[str, pipeline_spec_pb2.PipelineTaskSpec],
    spec: pipeline_spec_pb2.PipelineSpec,
    executors: Mapping[str, Any],
) -> None:
    require(task.component_ref.name in spec.components, f"task {name}: no component {task.component_ref.name!r}")
    component = spec.components[task.component_ref.name]
    is_dag = component.WhichOneof("implementation") == "dag"
    require(is_dag or component.executor_label in executors, f"task {name}: no executor {component.executor_label!r}")
    for before in task.dependent_tasks:
        require(before in tasks, f"task {name} waits for {before!r}, which is not there")
    for key, source in task.inputs.artifacts.items():
        producer, output = source.task_output_artifact.producer_task, source.task_output_artifact.output_artifact_key
        require(producer in tasks, f"task {name}, input {key}: no task {producer!r}")
        outputs = spec.components[tasks[producer].component_ref.name].output_definitions.artifacts
        require(output in outputs, f"task {name}, input {key}: {producer} has no output {output!r}")
        require(key in component.input_definitions.artifacts, f"task {name}: component takes no input {key!r}")
    for key in task.inputs.parameters:
        require(key in component.input_definitions.parameters, f"task {name}: component takes no parameter {key!r}")
    if not is_dag:
        _check_executor(name, executors[component.executor_label])


def in_order(graph: Mapping[str, set[str]]) -> list[str]:
    """The tasks, each after those it waits for; those in a ring are left out."""
    order: list[str] = []
    while ready := sorted(name for name, before in graph.items() if name not in order and before <= set(order)):
        order += ready
    return order


def check_labels(labels: Mapping[str, str]) -> None:
    """Checks labels as all of Google Cloud does."""
    require(len(labels) <= 64, f"at most 64 labels, got {len(labels)}")
    for key, value in labels.items():
        require(re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key), f"bad label key {key!r}")
        require(re.fullmatch(r"[a-z0-9_-]{0,63}", value), f"bad label value {value!r}")


def check_custom_job(job: v1.CustomJob) -> None:
    """Checks a CustomJob."""
    require(job.display_name, "custom_job.display_name is required")
    check_labels(job.labels)
    check_job_spec(job.job_spec, "job_spec")


def check_job_spec(spec: v1.CustomJobSpec, where: str) -> None:
    """Checks worker pools as https://cloud.google.com/vertex-ai/docs/training/distributed-training describes them."""
    pools = spec.worker_pool_specs
    require(pools, f"{where}.worker_pool_specs is required")
    require(len(pools) <= 4, f"{where}: at most 4 worker pools, got {len(pools)}")
    for number, pool in enumerate(pools):
        at = f"{where}.worker_pool_specs[{number}]"
        if number and not pool.replica_count and not pool.machine_spec.machine_type:
            continue  # a pool that is left out, in front of one that is not
        _check_pool(pool, at)
    require(pools[0].replica_count == 1, f"{where}.worker_pool_specs[0].replica_count must be 1: it is the chief")
    directory = spec.base_output_directory.output_uri_prefix
    require(not directory or directory.startswith("gs://"), f"{where}.base_output_directory must be gs://")
    if spec.tensorboard:
        require(spec.service_account, f"{where}.service_account is required with tensorboard")
        require(directory, f"{where}.base_output_directory is required with tensorboard")
    if spec.scheduling.strategy == v1.Scheduling.Strategy.SPOT:
        require(not spec.persistent_resource_id, f"{where}: spot machines exclude a persistent resource")


def check_tuning_job(job: v1.HyperparameterTuningJob) -> None:
    """Checks a HyperparameterTuningJob."""
    require(job.display_name, "display_name is required")
    require(job.study_spec.metrics, "study_spec.metrics is required")
    require(job.study_spec.parameters, "study_spec.parameters is required")
    require(job.max_trial_count > 0, "max_trial_count must be above 0")
    require(0 < job.parallel_trial_count <= job.max_trial_count, "parallel_trial_count must be 1 to max_trial_count")
    names = [parameter.parameter_id for parameter in job.study_spec.parameters]
    require(len(set(names)) == len(names), f"study_spec.parameters: a name twice: {names}")
    for parameter in job.study_spec.parameters:
        _check_parameter(parameter)
    check_labels(job.labels)
    check_job_spec(job.trial_job_spec, "trial_job_spec")


def _check_executor(name: str, executor: Any) -> None:
    kind = executor.WhichOneof("spec")
    require(kind in ("container", "importer", "resolver"), f"task {name}: executor {kind!r}")
    if kind == "container":
        require(IMAGE.fullmatch(executor.container.image), f"task {name}: bad image {executor.container.image!r}")
        resources = executor.container.resources
        require(resources.cpu_limit >= 0 and resources.memory_limit >= 0, f"task {name}: negative resources")
        if resources.accelerator.type:
            _check_accelerator_name(resources.accelerator.type, f"task {name}")


def _check_pool(pool: v1.WorkerPoolSpec, at: str) -> None:
    machine = pool.machine_spec
    require(MACHINE.fullmatch(machine.machine_type), f"{at}.machine_spec.machine_type {machine.machine_type!r} unknown")
    require(pool.replica_count > 0, f"{at}.replica_count must be above 0")
    has_container, has_package = bool(pool.container_spec.image_uri), bool(pool.python_package_spec.python_module)
    require(has_container != has_package, f"{at}: exactly one of container_spec and python_package_spec is required")
    if has_container:
        require(IMAGE.fullmatch(pool.container_spec.image_uri), f"{at}: bad image {pool.container_spec.image_uri!r}")
    if pool.disk_spec.boot_disk_size_gb:
        size = pool.disk_spec.boot_disk_size_gb
        require(100 <= size <= 64_000, f"{at}.disk_spec.boot_disk_size_gb must be 100 to 64000, got {size}")
        kinds = ("pd-ssd", "pd-standard", "hyperdisk-balanced", "")
        require(
            pool.disk_spec.boot_disk_type in kinds, f"{at}.disk_spec.boot_disk_type {pool.disk_spec.boot_disk_type!r}"
        )
    check_accelerator(machine, at)


def check_accelerator(machine: v1.MachineSpec, at: str) -> None:
    """Checks the accelerators of a machine."""
    count = machine.accelerator_count
    if machine.accelerator_type:
        accelerator = v1.AcceleratorType(machine.accelerator_type).name
        if accelerator.startswith("TPU"):
            return
        family = next((key for key in ACCELERATORS if machine.machine_type.startswith(key)), None)
        allowed = ACCELERATORS.get(family or "", {})
        require(accelerator in allowed, f"{at}: {machine.machine_type} takes no {accelerator}")
        require(count in allowed[accelerator], f"{at}: {machine.machine_type} takes no {count} {accelerator}")
    else:
        require(not count, f"{at}.machine_spec.accelerator_count without accelerator_type")
        require(
            not machine.machine_type.startswith(NEEDS_ACCELERATOR), f"{at}: {machine.machine_type} has accelerators"
        )


def _check_accelerator_name(name: str, at: str) -> None:
    known = {one.name for one in v1.AcceleratorType}
    # A task of a pipeline takes both NVIDIA_L4 and nvidia-l4.
    require(name.upper().replace("-", "_") in known, f"{at}: accelerator {name!r} is unknown, expected one of {known}")


def _check_parameter(parameter: Any) -> None:
    at = f"study_spec.parameters[{parameter.parameter_id!r}]"
    require(re.fullmatch(r"[A-Za-z_][\w.-]*", parameter.parameter_id), f"{at}: bad name")
    kind = v1.StudySpec.ParameterSpec.pb(parameter).WhichOneof("parameter_value_spec")
    if kind in ("double_value_spec", "integer_value_spec"):
        values = getattr(parameter, kind)
        require(values.min_value <= values.max_value, f"{at}: min_value is above max_value")
        log = v1.StudySpec.ParameterSpec.ScaleType.UNIT_LOG_SCALE
        require(parameter.scale_type != log or values.min_value > 0, f"{at}: a log scale starts above 0")
    elif kind == "discrete_value_spec":
        values = list(parameter.discrete_value_spec.values)
        require(values and values == sorted(values), f"{at}: discrete values must be given in increasing order")
    else:
        require(kind == "categorical_value_spec", f"{at}: no values")
        require(parameter.categorical_value_spec.values, f"{at}: no values")
