"""The fake Vertex AI refuses what Vertex AI refuses, and its models and endpoints answer the real client."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.cloud import Cloud
from tests.fakes.google_cloud import GoogleCloud

IMAGE = "europe-docker.pkg.dev/p/r/i:1"


def spec_of(compiled: Path) -> dict[str, Any]:
    return json.loads((compiled / "pipeline_job.json").read_text())["pipelineSpec"]


def tasks_of(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["components"]["tfx-dag"]["dag"]["tasks"]


def wait_for_nobody(spec: dict[str, Any]) -> None:
    tasks_of(spec)["Trainer"]["dependentTasks"].append("Nobody")


def make_a_ring(spec: dict[str, Any]) -> None:
    tasks_of(spec)["ExampleGen"]["dependentTasks"] = ["Pusher"]


def take_an_output_that_is_not_there(spec: dict[str, Any]) -> None:
    examples = tasks_of(spec)["Transform"]["inputs"]["artifacts"]["examples"]
    examples["taskOutputArtifact"]["outputArtifactKey"] = "rows"


def forget_an_executor(spec: dict[str, Any]) -> None:
    del spec["deploymentSpec"]["executors"]["Trainer_executor"]


def misspell_a_field(spec: dict[str, Any]) -> None:
    spec["root"]["dag"]["tsks"] = {}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (wait_for_nobody, "task Trainer waits for 'Nobody', which is not there"),
        (make_a_ring, "tasks wait for each other in a ring"),
        (take_an_output_that_is_not_there, "ExampleGen has no output 'rows'"),
        (forget_an_executor, "no executor 'Trainer_executor'"),
        (misspell_a_field, "does not parse"),
    ],
)
def test_a_pipeline_job_whose_spec_does_not_hold_together_is_refused(
    broken: Callable[[dict], None], message: str, compiled: Path, cloud: Cloud
):
    spec = spec_of(compiled)
    broken(spec)
    job = v1.PipelineJob(
        pipeline_spec=spec, runtime_config=v1.PipelineJob.RuntimeConfig(gcs_output_directory="gs://demo-bucket/x")
    )
    with pytest.raises(exceptions.InvalidArgument, match=message):
        cloud.client(v1.PipelineServiceClient).create_pipeline_job(
            parent=cloud.parent, pipeline_job=job, pipeline_job_id="a"
        )


def custom_job(**machine: Any) -> v1.CustomJob:
    pool = v1.WorkerPoolSpec(
        machine_spec=v1.MachineSpec(**{"machine_type": "n1-standard-8", **machine}),
        replica_count=1,
        container_spec=v1.ContainerSpec(image_uri=IMAGE),
    )
    return v1.CustomJob(display_name="job", job_spec=v1.CustomJobSpec(worker_pool_specs=[pool]))


def with_two_chiefs() -> v1.CustomJob:
    job = custom_job()
    job.job_spec.worker_pool_specs[0].replica_count = 2
    return job


def with_a_small_disk() -> v1.CustomJob:
    job = custom_job()
    job.job_spec.worker_pool_specs[0].disk_spec = v1.DiskSpec(boot_disk_type="pd-ssd", boot_disk_size_gb=10)
    return job


def with_tensorboard_and_nobody_to_write_it() -> v1.CustomJob:
    job = custom_job()
    job.job_spec.tensorboard = "projects/demo/locations/us-central1/tensorboards/1"
    return job


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (custom_job(accelerator_type="NVIDIA_TESLA_T4", accelerator_count=3), "takes no 3 NVIDIA_TESLA_T4"),
        (custom_job(accelerator_type="NVIDIA_L4", accelerator_count=1), "n1-standard-8 takes no NVIDIA_L4"),
        (custom_job(machine_type="a2-highgpu-1g"), "a2-highgpu-1g has accelerators"),
        (custom_job(machine_type="mine-8"), "'mine-8' unknown"),
        (with_two_chiefs(), "must be 1: it is the chief"),
        (with_a_small_disk(), "boot_disk_size_gb must be 100 to 64000, got 10"),
        (with_tensorboard_and_nobody_to_write_it(), "service_account is required with tensorboard"),
    ],
)
def test_a_custom_job_that_cannot_run_is_refused(job: v1.CustomJob, message: str, cloud: Cloud):
    with pytest.raises(exceptions.InvalidArgument, match=message):
        cloud.client(v1.JobServiceClient).create_custom_job(parent=cloud.parent, custom_job=job)


def test_a_job_in_a_project_that_is_not_there_is_refused(cloud: Cloud):
    with pytest.raises(exceptions.NotFound, match="project other does not exist"):
        cloud.client(v1.JobServiceClient).create_custom_job(
            parent="projects/other/locations/us-central1", custom_job=custom_job()
        )


def test_a_model_is_uploaded_in_versions_and_deployed_to_an_endpoint(cloud: Cloud, there: GoogleCloud):
    models, endpoints = cloud.client(v1.ModelServiceClient), cloud.client(v1.EndpointServiceClient)
    model = v1.Model(
        display_name="flights",
        artifact_uri="gs://demo-bucket/flights/serving/1",
        container_spec=v1.ModelContainerSpec(image_uri=IMAGE),
    )
    first = models.upload_model(parent=cloud.parent, model=model).result()
    second = models.upload_model(
        request=v1.UploadModelRequest(parent=cloud.parent, model=model, parent_model=first.model)
    ).result()
    assert (first.model_version_id, second.model_version_id) == ("1", "2")
    assert models.get_model(name=f"{first.model}@1").version_id == "1"

    endpoint = endpoints.create_endpoint(parent=cloud.parent, endpoint=v1.Endpoint(display_name="late")).result()
    machine = v1.MachineSpec(machine_type="n2-standard-4")
    resources = v1.DedicatedResources(machine_spec=machine, min_replica_count=1, max_replica_count=1)
    deployed = v1.DeployedModel(model=f"{first.model}@2", dedicated_resources=resources)
    with pytest.raises(exceptions.InvalidArgument, match="must sum to 100"):
        endpoints.deploy_model(endpoint=endpoint.name, deployed_model=deployed, traffic_split={"0": 60}).result()
    made = endpoints.deploy_model(endpoint=endpoint.name, deployed_model=deployed, traffic_split={"0": 100}).result()
    assert endpoints.get_endpoint(name=endpoint.name).traffic_split == {made.deployed_model.id: 100}
    with pytest.raises(exceptions.InvalidArgument, match="has traffic"):
        endpoints.undeploy_model(endpoint=endpoint.name, deployed_model_id=made.deployed_model.id).result()
    endpoints.update_endpoint(
        endpoint=v1.Endpoint(name=endpoint.name, traffic_split={}), update_mask={"paths": ["traffic_split"]}
    )
    endpoints.undeploy_model(endpoint=endpoint.name, deployed_model_id=made.deployed_model.id).result()
    (left,) = endpoints.list_endpoints(parent=cloud.parent)
    assert list(left.deployed_models) == []
