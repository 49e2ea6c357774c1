"""Preflight looks for the machines and the quota that a run takes."""

from dataclasses import replace

import pytest

from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Job, Machines
from pipeline.vertex.pipelines import requirements
from tests.fakes.google_cloud import GoogleCloud

pytestmark = pytest.mark.slow
GPUS = Machines(training=Job("n1-standard-8", "NVIDIA_TESLA_T4", 2, replicas=2))


def test_the_endpoint_s_machines_must_be_in_the_region_and_within_the_quota(all_checked, there: GoogleCloud):
    endpoint = Endpoint("late-flights", "g2-standard-8", "NVIDIA_L4", 1, min_replicas=2, max_replicas=4)

    def look() -> list[tuple[str, str, str]]:
        findings = all_checked(endpoint=endpoint).findings
        return [(f.subject, f.state, f.text) for f in findings if f.subject in ("machines", "quota")]

    there.rest.project.machine_types = {"europe-west4-a": {"g2-standard-8"}, "europe-west4-b": {"g2-standard-8"}}
    there.rest.project.accelerator_types = {"us-central1-a": {"nvidia-l4"}}
    metric = "custom_model_serving_nvidia_l4_gpus"
    for limit, state in ((1, "wrong"), (2, "unsure")):
        there.rest.project.quota = {metric: limit}
        taken = "a version takes 2, and the canary has two versions side by side"
        assert look() == [
            ("machines", "wrong", "us-central1 does not have g2-standard-8 (in europe-west4)"),
            ("quota", state, f"{metric} is {limit} in us-central1, {taken}"),
        ]
    there.rest.project.machine_types = {"asia-east1-a": set(), "us-central1-a": {"g2-standard-8"}}
    there.rest.project.quota = {metric: 4}
    assert look() == [("machines", "ok", "g2-standard-8, nvidia-l4"), ("quota", "ok", f"{metric}: 4 of 4")]


@pytest.mark.parametrize(
    ("job", "metric"),
    [
        (Job("n1-highmem-8"), "custom_model_training_cpus"),
        (Job("e2-standard-8", spot=True), "custom_model_training_preemptible_cpus"),
        (Job("n2-standard-8"), "custom_model_training_n2_cpus"),
        (Job("g2-standard-8", "NVIDIA_L4", 1), "custom_model_training_nvidia_l4_gpus"),
        (Job("g2-standard-8", "NVIDIA_L4", 1, spot=True), "custom_model_training_preemptible_nvidia_l4_gpus"),
        (Job("a2-highgpu-1g", "NVIDIA_TESLA_A100", 1), "custom_model_training_nvidia_a100_gpus"),
        (Job("a2-ultragpu-1g", "NVIDIA_A100_80GB", 1), "custom_model_training_nvidia_a100_80gb_gpus"),
        (Job("a3-highgpu-8g", "NVIDIA_H100_80GB", 8), "custom_model_training_nvidia_h100_gpus"),
        (Job("a3-megagpu-8g", "NVIDIA_H100_MEGA_80GB", 8), "custom_model_training_nvidia_h100_mega_gpus"),
        (
            Job("a3-ultragpu-8g", "NVIDIA_H200_141GB", 8, boot_disk_type="hyperdisk-balanced"),
            "custom_model_training_nvidia_h200_gpus",
        ),
        (Job("ct5lp-hightpu-4t"), "custom_model_training_tpu_v5e"),
        (Job("cloud-tpu", "TPU_V3", 8), "custom_model_training_tpu_v3"),
    ],
)
def test_quotas_have_google_s_names(job, metric, vertex, cloud, there: GoogleCloud):
    there.rest.project.quota = {metric: 8}
    (finding,) = requirements.check_quota(replace(vertex, machines=Machines(training=job)), cloud)
    assert finding.state == "ok", finding
    there.rest.project.quota_regions = ("europe-west4",)
    (finding,) = requirements.check_quota(replace(vertex, machines=Machines(training=job)), cloud)
    assert finding.text.startswith(f"{metric} is 0 in us-central1, the job takes ")


def test_a_machine_that_the_region_does_not_have_is_named_with_where_it_is(checked, there: GoogleCloud):
    there.rest.project.machine_types = {"us-central1-a": {"n1-standard-8"}}
    there.rest.project.accelerator_types = {"europe-west4-b": {"nvidia-tesla-t4"}}
    there.rest.project.quota = {"custom_model_training_nvidia_t4_gpus": 8}
    findings = checked(machines=GPUS)
    assert findings["machines"].text == "us-central1 does not have nvidia-tesla-t4 (in europe-west4)"
    there.rest.project.accelerator_types["us-central1-c"] = {"nvidia-tesla-t4"}
    assert checked(machines=GPUS)["machines"].state == "ok"


def test_a_quota_that_is_too_small_is_named_and_one_that_may_not_be_read_is_no_obstacle(checked, there: GoogleCloud):
    there.rest.project.machine_types = {"us-central1-a": {"n1-standard-8"}}
    there.rest.project.accelerator_types = {"us-central1-c": {"nvidia-tesla-t4"}}
    there.rest.project.quota = {"custom_model_training_nvidia_t4_gpus": 3}
    quota = checked(machines=GPUS)["quota"]
    assert quota.state == "wrong"
    assert quota.text == "custom_model_training_nvidia_t4_gpus is 3 in us-central1, the job takes 4"
    there.rest.project.quota = None
    assert checked(machines=GPUS)["quota"].state == "unsure"
