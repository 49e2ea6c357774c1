"""The fake's jobs refuse what Vertex AI refuses; rules and sources stand in ``tests/fakes/jobs.py``."""

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from tests.fakes import batch_rows
from tests.fakes.checks import InvalidArgument
from tests.fakes.google_cloud import NUMBER, GoogleCloud

IMAGE = "europe-docker.pkg.dev/p/r/i:1"
REDUCTION = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"


def pool(machine_type: str = "n1-standard-8", image: str = IMAGE, disk: str = "pd-ssd", **machine: Any) -> Any:
    return v1.WorkerPoolSpec(
        machine_spec=v1.MachineSpec(machine_type=machine_type, **machine),
        replica_count=1,
        container_spec=v1.ContainerSpec(image_uri=image),
        disk_spec=v1.DiskSpec(boot_disk_type=disk, boot_disk_size_gb=100),
    )


def job(*pools: Any, display_name: str = "job", key: str = "", **spec: Any) -> v1.CustomJob:
    return v1.CustomJob(
        display_name=display_name,
        job_spec=v1.CustomJobSpec(worker_pool_specs=pools or [pool()], **spec),
        encryption_spec=v1.EncryptionSpec(kms_key_name=key),
    )


def gpus(**more: Any) -> Any:
    return pool("g2-standard-8", accelerator_type="NVIDIA_L4", accelerator_count=1, **more)


H200 = {"accelerator_type": "NVIDIA_H200_141GB", "accelerator_count": 8}
BOTH = v1.Scheduling(disable_retries=True, restart_job_on_worker_restart=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (job(display_name="x" * 129), "has 129 characters, at most 128"),
        (job(key="projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k"), "the key is of another region"),
        (job(pool("ct5lp-hightpu-4t")), "tpu_topology '', not '2x2'"),
        (job(pool(tpu_topology="2x2")), "tpu_topology '2x2', not ''"),
        (job(pool("a3-ultragpu-8g", **H200)), "a3-ultragpu-8g takes no pd-ssd"),
        (job(pool(), pool(), pool(image=REDUCTION)), "the workers need GPUs"),
        (job(gpus(), pool(image=REDUCTION)), "Reduction Servers are the third worker pool"),
        (job(gpus(), gpus(), gpus(image=REDUCTION)), "Reduction Servers have no GPUs"),
        (job(scheduling=BOTH), "job_spec.scheduling: both"),
        (job(scheduling=v1.Scheduling(max_wait_duration={"seconds": 60})), "max_wait_duration"),
        (job(network="projects/demo/global/networks/net"), "job_spec.network"),
        (job(service_account="me"), "job_spec.service_account 'me'"),
    ],
)
def test_a_custom_job_that_vertex_ai_does_not_take_is_refused(wrong: v1.CustomJob, message: str, cloud):
    with pytest.raises(exceptions.InvalidArgument, match=message):
        cloud.client(v1.JobServiceClient).create_custom_job(parent=cloud.parent, custom_job=wrong)


def test_a_job_is_queued_then_pending_then_running_and_its_name_has_the_projects_number(cloud, there: GoogleCloud):
    client = cloud.client(v1.JobServiceClient)
    made = client.create_custom_job(parent=cloud.parent, custom_job=job(gpus(), gpus(), pool(image=REDUCTION)))
    assert made.name.startswith(f"projects/{NUMBER}/locations/us-central1/customJobs/")
    states = [made.state.name, *(client.get_custom_job(name=made.name).state.name for _ in range(3))]
    assert [state.removeprefix("JOB_STATE_") for state in states] == ["QUEUED", "PENDING", "RUNNING", "SUCCEEDED"]
    client.cancel_custom_job(name=made.name)
    assert client.get_custom_job(name=made.name).state == v1.JobState.JOB_STATE_SUCCEEDED


def parameter(name: str = "units", **more: Any) -> Any:
    values = {"integer_value_spec": {"min_value": 1, "max_value": 3}} if len(more) < 1 else {}
    return v1.StudySpec.ParameterSpec(parameter_id=name, **values, **more)


def tuning(*parameters: Any, **study: Any) -> v1.HyperparameterTuningJob:
    metric = v1.StudySpec.MetricSpec(metric_id="val_auc", goal="MAXIMIZE")
    spec = v1.StudySpec(**{"metrics": [metric], "parameters": parameters or [parameter()], **study})
    trial = job().job_spec
    return v1.HyperparameterTuningJob(
        display_name="search", study_spec=spec, max_trial_count=3, parallel_trial_count=2, trial_job_spec=trial
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (tuning(parameter(discrete_value_spec={"values": [number / 7 for number in range(1001)]})), "at most 1,000"),
        (tuning(parameter(discrete_value_spec={"values": [1.0, 1.0 + 1e-11]})), "values too close"),
        (tuning(parameter(categorical_value_spec={"values": ["a"]}, scale_type=1)), "leave scale_type unset"),
        (tuning(parameter(double_value_spec={"max_value": 1, "default_value": 0.5})), "default_value is not supported"),
        (tuning(metrics=[v1.StudySpec.MetricSpec(metric_id="val auc")]), "study_spec: .'val auc'."),
        (tuning(observation_noise="LOW"), "observation_noise is not supported"),
    ],
)
def test_a_search_that_vertex_ai_does_not_take_is_refused(wrong: v1.HyperparameterTuningJob, message: str, cloud):
    with pytest.raises(exceptions.InvalidArgument, match=message):
        cloud.client(v1.JobServiceClient).create_hyperparameter_tuning_job(
            parent=cloud.parent, hyperparameter_tuning_job=wrong
        )


ROW = {"carrier": "UA", "distance": 1, "late": 0}


@pytest.mark.parametrize(
    ("instances_format", "config", "content", "expected"),
    [
        ("bigquery", {"instance_type": "object"}, [ROW], ROW),
        ("bigquery", {"instance_type": "object", "excluded_fields": ["late"]}, [ROW], {"carrier": "UA", "distance": 1}),
        ("bigquery", {"instance_type": "object", "key_field": "late"}, [ROW], {"carrier": "UA", "distance": 1}),
        ("bigquery", {}, [ROW], ["UA", 1, 0]),
        ("bigquery", {"instance_type": "array", "included_fields": ["late", "carrier"]}, [ROW], [0, "UA"]),
        ("jsonl", {}, "[1, 2]", [1, 2]),
        ("jsonl", {"instance_type": "array", "included_fields": ["b", "a"]}, '{"a": 1, "b": 2}', [2, 1]),
        ("csv", {"instance_type": "object"}, '"a","b"\n"x",3\n', ["x", 3.0]),
        ("file-list", {}, ("gs://b/1.png\n", {"gs://b/1.png": b"x", "gs://b/2.png": b"y"}), {"b64": "eA=="}),
    ],
)
def test_rows_are_converted_as_the_comment_of_instance_config_says(instances_format, config, content, expected):
    job = v1.BatchPredictionJob(
        input_config=v1.BatchPredictionJob.InputConfig(instances_format=instances_format),
        instance_config=v1.BatchPredictionJob.InstanceConfig(**config),
    )
    batch_rows.check_instance_config(job)
    assert batch_rows.instances_of(job, content) == [expected]


@pytest.mark.parametrize(
    ("instances_format", "config", "message"),
    [
        ("csv", {"excluded_fields": ["late"]}, "no included or excluded fields with csv"),
        ("file-list", {"excluded_fields": ["late"]}, "no included or excluded fields with file-list"),
        ("bigquery", {"excluded_fields": ["late"], "included_fields": ["carrier"]}, "included_fields and excluded"),
        ("jsonl", {"instance_type": "row"}, "instance_type 'row'"),
    ],
)
def test_an_instance_config_that_does_not_apply_is_refused(instances_format, config, message: str):
    job = v1.BatchPredictionJob(
        input_config=v1.BatchPredictionJob.InputConfig(instances_format=instances_format),
        instance_config=v1.BatchPredictionJob.InstanceConfig(**config),
    )
    with pytest.raises(InvalidArgument, match=message):
        batch_rows.check_instance_config(job)
