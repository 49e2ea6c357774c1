"""Jobs that run for nobody or for too long, and persistent resources on which nothing runs."""

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.pipelines.idle import jobs
from pipeline.vertex.pipelines.idle.finding import Scope
from tests.fakes.google_cloud import BUCKET, NUMBER, REGION, GoogleCloud
from tests.vertex.pipelines.idle.conftest import ago

IMAGE = "europe-docker.pkg.dev/p/r/i:1"
PARENT = f"projects/{NUMBER}/locations/{REGION}"
Start = Callable[..., str]


def job_spec(run: str = "flights-1", pipeline: str = "flights", **settings: Any) -> v1.CustomJobSpec:
    """A chief on a machine with a GPU and three other replicas."""
    machine = v1.MachineSpec(machine_type="n1-standard-8", accelerator_type="NVIDIA_TESLA_T4", accelerator_count=1)
    container = v1.ContainerSpec(image_uri=IMAGE)
    pools = [v1.WorkerPoolSpec(machine_spec=machine, replica_count=count, container_spec=container) for count in (1, 3)]
    folder = f"gs://{BUCKET}/{pipeline}/artifacts/{NUMBER}/{run}/Trainer_1/job"
    return v1.CustomJobSpec(
        worker_pool_specs=pools, base_output_directory=v1.GcsDestination(output_uri_prefix=folder), **settings
    )


@pytest.fixture
def start(cloud, there: GoogleCloud) -> Start:
    """Start a job that has run for some hours; with ``took`` it has succeeded after so many."""

    def started(hours: float, took: float | None = None, spec: v1.CustomJobSpec | None = None) -> str:
        client = cloud.client(v1.JobServiceClient)
        job = v1.CustomJob(display_name="trainer", job_spec=spec or job_spec())
        name = client.create_custom_job(parent=cloud.parent, custom_job=job).name
        (kept,) = (job for job in there.vertex.jobs.custom_jobs.values() if job.name.rpartition("/")[2] in name)
        kept.state, kept.start_time = v1.JobState.JOB_STATE_RUNNING, ago(hours / 24)
        if took is not None:
            kept.state = v1.JobState.JOB_STATE_SUCCEEDED
            kept.end_time = kept.start_time + datetime.timedelta(hours=took)
        return str(name.rpartition("/")[2])

    return started


@pytest.fixture
def run_of_pipeline(there: GoogleCloud) -> Callable[[str, str], None]:
    """Let there be a run of the pipeline in a state."""
    there.vertex.script.stuck = True

    def made(run: str, state: str) -> None:
        name = f"{PARENT}/pipelineJobs/{run}"
        there.vertex.pipeline_jobs[name] = v1.PipelineJob(
            name=name, state=v1.PipelineState[f"PIPELINE_STATE_{state}"], create_time=ago(1)
        )

    return made


def test_a_job_whose_run_has_ended_is_found_with_what_it_can_still_cost(scope: Scope, start: Start, run_of_pipeline):
    number = start(2, spec=job_spec(scheduling=v1.Scheduling(timeout=datetime.timedelta(hours=24))))
    run_of_pipeline("flights-1", "FAILED")
    (idle,) = jobs.look(scope)
    assert idle.what == f"job trainer, {number}"
    assert idle.why == (
        "runs for 2 h on 4 x n1-standard-8 with 1 NVIDIA_TESLA_T4, its run flights-1 has ended; ends by itself in 22 h"
    )
    hour = scope.prices.per_hour("n1-standard-8", "NVIDIA_TESLA_T4", 1, region="us-central1")
    assert idle.price.dollars == pytest.approx(4 * 22 * hour, rel=1e-3)
    assert idle.command == f"gcloud ai custom-jobs cancel {number} --region=us-central1 --project=demo"


def test_a_job_whose_run_was_deleted_is_found(scope: Scope, start: Start):
    start(2)
    (idle,) = jobs.look(scope)
    assert "its run flights-1 was deleted; ends by itself in 166 h" in idle.why


def test_a_job_of_a_run_that_goes_on_is_found_when_it_takes_twice_as_long_as_the_longest_before(
    scope: Scope, start: Start, run_of_pipeline
):
    run_of_pipeline("flights-1", "RUNNING")
    start(100, took=2.5)
    start(200, took=1.5)
    start(4.9)
    assert list(jobs.look(scope)) == []
    start(5.1)
    (idle,) = jobs.look(scope)
    assert "the longest before took 2.5 h" in idle.why


def test_without_an_earlier_job_a_day_is_too_long(scope: Scope, start: Start, run_of_pipeline):
    run_of_pipeline("flights-1", "RUNNING")
    start(23.9)
    assert list(jobs.look(scope)) == []
    start(24.1)
    (idle,) = jobs.look(scope)
    assert ", over 24 h;" in idle.why


def test_a_tuning_job_costs_its_trials_side_by_side(scope: Scope, cloud, there: GoogleCloud):
    job = v1.HyperparameterTuningJob(
        display_name="tuner",
        study_spec=v1.StudySpec(
            metrics=[v1.StudySpec.MetricSpec(metric_id="val_auc", goal="MAXIMIZE")],
            parameters=[
                v1.StudySpec.ParameterSpec(
                    parameter_id="units",
                    integer_value_spec=v1.StudySpec.ParameterSpec.IntegerValueSpec(min_value=1, max_value=9),
                )
            ],
        ),
        max_trial_count=10,
        parallel_trial_count=2,
        trial_job_spec=job_spec(scheduling=v1.Scheduling(strategy=v1.Scheduling.Strategy.SPOT)),
    )
    client = cloud.client(v1.JobServiceClient)
    client.create_hyperparameter_tuning_job(parent=cloud.parent, hyperparameter_tuning_job=job)
    (kept,) = there.vertex.jobs.tuning_jobs.values()
    kept.state, kept.start_time = v1.JobState.JOB_STATE_RUNNING, ago(1)
    (idle,) = jobs.look(scope)
    hour = scope.prices.per_hour("n1-standard-8", "NVIDIA_TESLA_T4", 1, region="us-central1", spot=True)
    assert idle.price.dollars == pytest.approx(2 * 4 * (7 - 1) * 24 * hour, rel=1e-3)
    assert idle.command.startswith("gcloud ai hp-tuning-jobs cancel ")


def test_jobs_of_other_pipelines_are_looked_at_with_all_only(scope: Scope, start: Start):
    start(100, spec=job_spec(pipeline="flights_eu"))
    start(100, spec=v1.CustomJobSpec(worker_pool_specs=job_spec().worker_pool_specs))
    assert list(jobs.look(scope)) == []
    assert len(list(jobs.look(replace(scope, whole=True)))) == 2


@pytest.fixture
def persistent(there: GoogleCloud) -> Callable[..., None]:
    """Let there be a persistent resource."""

    def made(used: int, state: str = "RUNNING") -> None:
        pool = v1.ResourcePool(
            machine_spec=v1.MachineSpec(machine_type="n2-standard-4"), replica_count=2, used_replica_count=used
        )
        name = f"{PARENT}/persistentResources/research"
        there.vertex.standing.persistent_resources[name] = v1.PersistentResource(
            name=name, resource_pools=[pool], state=v1.PersistentResource.State[state]
        )

    return made


def test_a_persistent_resource_on_which_nothing_runs_is_found(scope: Scope, persistent: Callable[..., None]):
    persistent(used=0)
    (idle,) = jobs.look_at_persistent(scope)
    assert (idle.what, idle.why) == ("persistent resource research", "nothing runs on 2 x n2-standard-4")
    hour = scope.prices.per_hour("n2-standard-4", region="us-central1")
    assert idle.price.dollars == pytest.approx(2 * 730 * hour)
    assert idle.command == "gcloud ai persistent-resources delete research --region=us-central1 --project=demo"


@pytest.mark.parametrize(("used", "state"), [(1, "RUNNING"), (0, "STOPPING")])
def test_one_that_is_used_or_being_deleted_is_not(used, state, scope: Scope, persistent: Callable[..., None]):
    persistent(used, state)
    assert list(jobs.look_at_persistent(scope)) == []
