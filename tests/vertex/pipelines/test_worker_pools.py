"""One setting → worker pools and resources, as Vertex AI takes them; and strategies that do not fit them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1
from tfx.utils import json_utils

from pipeline.settings.checks import ConfigError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.machines import Job, Machines, Resources
from pipeline.settings.target import Vertex
from pipeline.vertex.jobs import launch, require_gpus
from pipeline.vertex.pipelines import compile as compiling
from pipeline.vertex.pipelines.compile import compile
from pipeline.vertex.rehearsal import task_runner
from tests.fakes import jobs

VERTEX = Vertex(
    project="demo",
    region="us-central1",
    bucket="demo-bucket",
    image="us-docker.pkg.dev/demo/p/i:1",
    service_account="tasks@demo.iam.gserviceaccount.com",
    network="projects/123/global/networks/net",
    encryption_key="projects/demo/locations/us-central1/keyRings/r/cryptoKeys/k",
    labels={"team": "flights"},
)
L4 = Job("g2-standard-8", "NVIDIA_L4", 1)
TUNING = Machines(tuning=Job(replicas=2))
TPU = Job("ct5lp-hightpu-4t")


def custom_job(job: Job, command: list[str] | None = None) -> aiplatform_v1.CustomJob:
    """The job as the real client reads it, accepted by the checks of the service."""
    described = compiling.custom_job(job, VERTEX, "trainer")
    launch.with_command(described["jobSpec"], command or ["python"], "gs://demo-bucket/job")
    read = aiplatform_v1.CustomJob.from_json(json.dumps(described))
    jobs.check_custom_job(read, "projects/demo/locations/us-central1")
    return read


def test_chief_workers_and_reduction_servers_each_have_a_pool_and_the_last_keep_their_command():
    job = replace(L4, replicas=4, reduction_servers=3)
    chief, workers, reduction = custom_job(job, ["python", "-m", "trainer"]).job_spec.worker_pool_specs
    assert [pool.replica_count for pool in (chief, workers, reduction)] == [1, 3, 3]
    assert list(chief.container_spec.command) == list(workers.container_spec.command)
    assert list(chief.container_spec.command) == [*require_gpus.PREFIX, "python", "-m", "trainer"]
    assert not reduction.container_spec.command
    assert reduction.container_spec.image_uri.endswith("/training/reductionserver:latest")
    assert not reduction.machine_spec.accelerator_count
    assert workers.machine_spec.accelerator_type.name == "NVIDIA_L4"


def test_replicas_without_gpus_and_on_tpus_run_their_command_as_it_is():
    for job in (Job(), TPU):
        (pool,) = custom_job(job, ["python", "-m", "trainer"]).job_spec.worker_pool_specs
        assert list(pool.container_spec.command) == ["python", "-m", "trainer"]


def test_spot_machines_disk_tensorboard_and_timeout_reach_the_job():
    board = "projects/1/locations/us-central1/tensorboards/2"
    read = custom_job(replace(L4, spot=True, boot_disk_gib=200, tensorboard=board, timeout_hours=1.5))
    spec = read.job_spec
    assert spec.scheduling.strategy.name == "SPOT"
    assert spec.scheduling.restart_job_on_worker_restart
    assert spec.scheduling.timeout.total_seconds() == 5400
    assert spec.worker_pool_specs[0].disk_spec.boot_disk_size_gb == 200
    assert spec.tensorboard == board
    assert spec.base_output_directory.output_uri_prefix == "gs://demo-bucket/job"
    assert (spec.service_account, spec.network) == (VERTEX.service_account, VERTEX.network)
    assert read.encryption_spec.kms_key_name == VERTEX.encryption_key
    assert dict(read.labels) == {"team": "flights"}


def test_a_job_that_must_not_restart_says_so():
    scheduling = custom_job(Job(restart=False)).job_spec.scheduling
    assert scheduling.disable_retries
    assert not scheduling.restart_job_on_worker_restart


def test_a_tpu_host_says_to_the_training_that_it_has_one():
    (pool,) = custom_job(TPU).job_spec.worker_pool_specs
    assert pool.machine_spec.tpu_topology == "2x2"
    assert [(one.name, one.value) for one in pool.container_spec.env] == [("TPU_NAME", "local")]


def test_a_tensorboard_without_a_service_account_is_refused():
    job = Job(tensorboard="projects/1/locations/us-central1/tensorboards/2")
    with pytest.raises(ConfigError, match=r"tensorboard needs a service account"):
        compiling.custom_job(job, replace(VERTEX, service_account=None), "trainer")


@pytest.mark.parametrize(
    ("strategy", "machines", "message"),
    [
        ("multi_worker", Machines(), r'"multi_worker" and the Trainer\'s task is one process; give it training=Job'),
        ("multi_worker", Machines(training=Job()), r"replicas=1\) is one process"),
        ("one_device", Machines(training=Job(replicas=2)), r"has 2 processes, which would each train a model of their"),
        ("mirrored", Machines(training=Job(replicas=2)), r"'mirrored' and .* has 2 processes"),
        ("tpu", Machines(training=Job()), r"'tpu' and .* has no TPU; take a TPU host"),
        ("mirrored", Machines(training=TPU), r'\'mirrored\' and .* has a TPU; take "auto" or "tpu"'),
        (
            "one_device",
            Machines({"Trainer": Resources(8, 32, "NVIDIA_L4", 2)}),
            r"has 2 accelerators, of which all but",
        ),
    ],
)
def test_a_strategy_that_does_not_fit_the_machines_is_refused(strategy, machines, message):
    with pytest.raises(ConfigError, match=message):
        machines.check_strategy(strategy)


@pytest.mark.parametrize(
    ("strategy", "machines"),
    [
        ("auto", Machines()),
        ("auto", Machines(training=Job(replicas=2))),
        ("multi_worker", Machines(training=replace(L4, replicas=2, reduction_servers=1))),
        ("auto", Machines(training=TPU)),
        ("tpu", Machines(training=TPU)),
        ("one_device", Machines({"Trainer": Resources(8, 32, "NVIDIA_L4", 1)})),
        ("mirrored", Machines({"Trainer": Resources(8, 32, "NVIDIA_L4", 4)})),
    ],
)
def test_a_strategy_that_fits_is_taken(strategy, machines):
    machines.check_strategy(strategy)


def spec_of(config: PipelineConfig, machines: Machines, folder: Path) -> dict[str, Any]:
    target = task_runner.target_for(folder, "flights", replace(VERTEX, machines=machines))
    spec: dict[str, Any] = json.loads(compile(config, target, folder).read_text())["pipelineSpec"]
    return spec


def setting_of(spec: dict[str, Any], task: str) -> dict[str, Any]:
    """The job that a task starts, among its settings."""
    parameters = spec["components"]["tfx-dag"]["dag"]["tasks"][task]["inputs"]["parameters"]
    settings = json_utils.loads(parameters["custom_config"]["runtimeValue"]["constantValue"]["stringValue"])
    setting: dict[str, Any] = settings[launch.SETTING]
    return setting


def pools_of(spec: dict[str, Any], task: str) -> list[dict[str, Any]]:
    """The worker pools of that job."""
    pools: list[dict[str, Any]] = setting_of(spec, task)["job"]["jobSpec"]["workerPoolSpecs"]
    return pools


# TFX calls what protobuf deprecates, in a way that names our line.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiled_job_has_every_tasks_resources_and_the_jobs_of_trainer_and_tuner(config, tmp_path):
    table = Machines(
        {"Transform": Resources(16, 64), "Evaluator": Resources(4, 16, "NVIDIA_TESLA_T4", 2)},
        training=Job(replicas=2),
        tuning=Job(replicas=3),
        search_with="vizier",
    )
    spec = spec_of(config, table, tmp_path)
    executors = spec["deploymentSpec"]["executors"]
    containers = {name: one["container"] for name, one in executors.items() if "container" in one}
    assert all(one["resources"]["memoryLimit"] for one in containers.values())
    assert containers["Transform_executor"]["resources"] == {"cpuLimit": 16.0, "memoryLimit": 64.0}
    accelerator = containers["Evaluator_executor"]["resources"]["accelerator"]
    assert accelerator == {"type": "NVIDIA_TESLA_T4", "count": "2"}
    assert containers["Trainer_executor"]["args"][1] == "pipeline.vertex.jobs.launch.JobExecutor"
    assert setting_of(spec, "Trainer")["executor"] == "pipeline.vertex.jobs.launch.TrainerReplica"
    assert containers["Tuner_executor"]["args"][1] == "pipeline.vertex.jobs.vizier.VizierJobExecutor"
    assert tuple(containers["Evaluator_executor"]["command"][:3]) == require_gpus.PREFIX
    assert containers["Transform_executor"]["command"] == containers["Evaluator_executor"]["command"][3:]
    pools = {name: pools_of(spec, name) for name in ("Trainer", "Tuner")}
    assert [pool["replicaCount"] for pool in pools["Trainer"]] == [1, 1]
    # Vizier's trials write where only root may, and nothing else of it needs root.
    images = {name: {pool["containerSpec"]["imageUri"] for pool in pools[name]} for name in pools}
    assert images == {"Trainer": {VERTEX.image}, "Tuner": {f"{VERTEX.image}-root"}}
    assert {container["image"] for container in containers.values()} == {VERTEX.image}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_search_by_keras_tuner_needs_no_root(config, tmp_path):
    (image,) = {pool["containerSpec"]["imageUri"] for pool in pools_of(spec_of(config, TUNING, tmp_path), "Tuner")}
    assert image == VERTEX.image
