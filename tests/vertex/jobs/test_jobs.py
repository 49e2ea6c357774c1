"""A task that starts a job and waits for it, against the fake Vertex AI through the real client."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import keras_tuner
import pytest
from google.cloud import aiplatform_v1 as v1
from tfx.dsl.io.filesystem_registry import DEFAULT_FILESYSTEM_REGISTRY
from tfx.dsl.io.plugins.local import LocalFilesystem
from tfx.types import standard_artifacts
from tfx.utils import json_utils

from pipeline.errors import UserError
from pipeline.settings.machines import Job
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import LostContact
from pipeline.vertex.jobs import launch, vizier
from pipeline.vertex.pipelines.compile import custom_job
from tests.fakes.google_cloud import GoogleCloud
from tests.fakes.script import Fault

VERTEX = Vertex(project="demo", region="us-central1", bucket="demo-bucket", image="us-docker.pkg.dev/demo/p/i:1")
REDUCED = Job("g2-standard-8", "NVIDIA_L4", 1, replicas=2, reduction_servers=2, spot=True)
MODULE = """
import keras, keras_tuner

def build(hp):
    hp.Choice("units", [16, 32, 64], default=32)
    hp.Float("dropout", 0.0, 0.5, step=0.25)
    hp.Float("learning_rate", 1e-3, 1e-1, sampling="log")
    hp.Int("members", 1, 9)
    hp.Boolean("wide")
    hp.Fixed("seed", 7)
    return keras.Sequential([])

def tuner_fn(fn_args):
    from types import SimpleNamespace
    assert fn_args.custom_config["epochs"] == 3
    assert set(fn_args.custom_config) <= {"epochs", "minutes", "trials"}
    tuner = keras_tuner.RandomSearch(
        build, objective=keras_tuner.Objective("val_auc", "max"), max_trials=5, directory=fn_args.working_dir
    )
    return SimpleNamespace(tuner=tuner, fit_kwargs={})
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(launch, "SECONDS_BETWEEN_LOOKS", 0.01)


def properties(job: Job, replica: str = "", settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The settings of a component that runs as a job."""
    setting = {
        "executor": f"pipeline.vertex.jobs.launch.{replica}",
        "parent": "projects/demo/locations/us-central1",
        "replicas": job.replicas,
        "job": custom_job(job, VERTEX, "some-job"),
    }
    config = {"epochs": 3, **(settings or {}), launch.SETTING: setting}
    return {"train_args": "{}", "eval_args": "{}", "custom_config": json_utils.dumps(config), **more}


def artifact(kind: Any, uri: str) -> list[Any]:
    made = kind()
    made.uri = uri
    return [made]


def outputs_of_trainer(folder: str) -> dict[str, list[Any]]:
    return {
        "model": artifact(standard_artifacts.Model, f"{folder}/model"),
        "model_run": artifact(standard_artifacts.ModelRun, f"{folder}/model_run"),
    }


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket for TFX's own way to files, for which there is no emulator: a folder."""

    class Bucket(LocalFilesystem):
        @staticmethod
        def open(name: str, mode: str = "r") -> Any:
            return LocalFilesystem.open(name.replace("gs:/", str(tmp_path)), mode)

        @staticmethod
        def exists(path: str) -> bool:
            return LocalFilesystem.exists(path.replace("gs:/", str(tmp_path)))

        @staticmethod
        def makedirs(path: str) -> None:
            LocalFilesystem.makedirs(path.replace("gs:/", str(tmp_path)))

    monkeypatch.setitem(DEFAULT_FILESYSTEM_REGISTRY._preferred_filesystem_by_scheme, "gs://", Bucket)
    return "gs://demo-bucket/task"


def train(folder: str, job: Job = REDUCED) -> None:
    launch.JobExecutor().Do({}, outputs_of_trainer(folder), properties(job, "TrainerReplica"))


def test_the_trainers_task_runs_its_job_to_the_end(there: GoogleCloud, bucket: str):
    train(bucket)
    (job,) = there.vertex.jobs.custom_jobs.values()
    assert job.state == v1.JobState.JOB_STATE_SUCCEEDED
    chief, worker, reduction = job.job_spec.worker_pool_specs
    assert chief.container_spec.command == worker.container_spec.command
    assert "pipeline.vertex.jobs.launch.TrainerReplica" in chief.container_spec.command
    assert not reduction.container_spec.command
    assert job.job_spec.scheduling.strategy == v1.Scheduling.Strategy.SPOT
    given = json.loads(chief.container_spec.command[-1])
    assert json_utils.loads(given["custom_config"]) == {"epochs": 3}


def test_the_tuners_task_runs_its_workers_as_a_job(there: GoogleCloud, bucket: str):
    outputs = {
        "best_hyperparameters": artifact(standard_artifacts.HyperParameters, f"{bucket}/best"),
        "tuner_results": artifact(standard_artifacts.TunerResults, f"{bucket}/results"),
    }
    launch.JobExecutor().Do({}, outputs, properties(Job(replicas=3), "TunerReplica"))
    (job,) = there.vertex.jobs.custom_jobs.values()
    assert [pool.replica_count for pool in job.job_spec.worker_pool_specs] == [1, 2]
    assert "pipeline.vertex.jobs.launch.TunerReplica" in job.job_spec.worker_pool_specs[1].container_spec.command


def test_a_job_that_fails_ends_the_task_with_its_cause_and_page(there: GoogleCloud, bucket: str):
    there.vertex.script.failing_jobs = "the replica workerpool1-0 exited with a non-zero status of 1"
    with pytest.raises(launch.JobFailed, match=r"JOB_STATE_FAILED: the replica workerpool1-0 .* https://console.cloud"):
        train(bucket)


def test_short_outages_are_waited_through(there: GoogleCloud, bucket: str):
    there.vertex.script.faults += [Fault("GetCustomJob", grpc.StatusCode.UNAVAILABLE, "not now", times=3)]
    train(bucket)
    assert there.vertex.count("CreateCustomJob") == 1
    assert there.vertex.count("GetCustomJob") > 4


def test_a_long_outage_ends_the_wait(there: GoogleCloud, bucket: str, monkeypatch):
    monkeypatch.setattr(launch, "LONGEST_OUTAGE", 0.0)
    there.vertex.script.faults += [Fault("GetCustomJob", grpc.StatusCode.UNAVAILABLE, "not now", times=1000)]
    with pytest.raises(LostContact, match=r"no answer from Vertex AI for \d+ s"):
        train(bucket)


def test_no_quota_is_said_with_its_remedy(there: GoogleCloud, bucket: str):
    message = "Quota exceeded for custom_model_training_nvidia_l4_gpus"
    there.vertex.script.faults += [Fault("CreateCustomJob", grpc.StatusCode.RESOURCE_EXHAUSTED, message, times=100)]
    with pytest.raises(UserError, match=r"starting the job failed: .*nvidia_l4_gpus.*more quota"):
        train(bucket)


def test_a_task_that_is_started_again_waits_for_the_job_it_had_started(there: GoogleCloud, bucket: str):
    train(bucket)
    train(bucket)
    assert there.vertex.count("CreateCustomJob") == 1


def test_a_task_that_is_ended_cancels_its_job(there: GoogleCloud, bucket: str, sigterm_is_caught):
    there.vertex.script.stuck = True

    def end_once_it_waits() -> None:
        while not there.vertex.count("GetCustomJob"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_once_it_waits).start()
    with pytest.raises(launch.JobFailed, match=r"its job was cancelled"):
        train(bucket)
    assert there.vertex.count("CancelCustomJob") == 1


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        ({"chief": ["a:2222"]}, {"type": "chief", "index": 0}, ("a:2222", 0)),
        ({"workerpool0": ["a:1"], "workerpool1": ["b:1"]}, {"type": "workerpool0", "index": 0}, ("a:1", 0)),
        ({"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"]}, {"type": "workerpool1", "index": 1}, ("a:1", 2)),
    ],
)
def test_every_replica_of_a_search_knows_the_first_and_its_own_place(cluster, task, expected):
    assert launch.place_in_cluster(json.dumps({"cluster": cluster, "task": task})) == expected


@pytest.mark.parametrize("text", [None, "", "{}", '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}'])
def test_a_cluster_that_is_not_as_documented_is_refused(text):
    with pytest.raises(UserError, match=r"the environment variable CLUSTER_SPEC is .*; expected that of Vertex AI"):
        launch.place_in_cluster(text)


@pytest.fixture
def search(bucket: str, tmp_path: Path) -> Any:
    """Runs the Tuner's task with Vizier; returns what it wrote."""
    (tmp_path / "search_module.py").write_text(MODULE)

    def run(**settings: Any) -> tuple[keras_tuner.HyperParameters, list[dict[str, Any]]]:
        outputs = {
            "best_hyperparameters": artifact(standard_artifacts.HyperParameters, f"{bucket}/best"),
            "tuner_results": artifact(standard_artifacts.TunerResults, f"{bucket}/results"),
        }
        examples = artifact(standard_artifacts.Examples, bucket)
        examples[0].split_names = '["train", "eval"]'
        given = properties(Job(replicas=2), settings=settings, module_file=str(tmp_path / "search_module.py"))
        vizier.VizierJobExecutor().Do({"examples": examples}, outputs, given)
        written = tmp_path / "demo-bucket/task"
        best = json.loads((written / "best/best_hyperparameters.txt").read_text())
        results = json.loads((written / "results/tuner_results.json").read_text())
        return keras_tuner.HyperParameters.from_config(best), results

    return run


def test_vizier_searches_the_space_of_the_module_file_and_the_best_values_come_back(there: GoogleCloud, search):
    there.vertex.script.objective = lambda values: values["learning_rate"]
    best, results = search()
    (job,) = there.vertex.jobs.tuning_jobs.values()
    assert (job.max_trial_count, job.parallel_trial_count) == (5, 2)
    (metric,) = job.study_spec.metrics
    assert (metric.metric_id, metric.goal.name) == ("val_auc", "MAXIMIZE")
    parameters = {one.parameter_id: one for one in job.study_spec.parameters}
    assert set(parameters) == {"units", "dropout", "learning_rate", "members", "wide"}
    assert list(parameters["dropout"].discrete_value_spec.values) == [0.0, 0.25, 0.5]
    assert parameters["learning_rate"].scale_type.name == "UNIT_LOG_SCALE"
    (pool,) = job.trial_job_spec.worker_pool_specs
    assert pool.container_spec.command[-1] == "--"
    assert "pipeline.vertex.jobs.vizier.TrialExecutor" in pool.container_spec.command

    assert best.values["learning_rate"] == max(row["learning_rate"] for row in results) == pytest.approx(0.1)
    assert [row["score"] for row in results] == sorted((row["score"] for row in results), reverse=True)
    assert best.values["units"] in (16, 32, 64)
    assert isinstance(best.values["units"], int)
    assert isinstance(best.values["members"], int)
    assert isinstance(best.values["wide"], bool)


def test_a_tuner_without_max_trials_searches_as_many_trials_as_the_config_says(there: GoogleCloud, search, tmp_path):
    there.vertex.script.objective = lambda values: values["learning_rate"]
    module = MODULE.replace("RandomSearch", "GridSearch").replace("max_trials=5, ", "")
    (tmp_path / "search_module.py").write_text(module)
    search(trials=4)
    (job,) = there.vertex.jobs.tuning_jobs.values()
    assert (job.max_trial_count, job.parallel_trial_count) == (4, 2)


def test_a_search_says_how_far_it_has_come_and_what_is_best(there: GoogleCloud, search, caplog):
    there.vertex.script.objective = lambda values: values["learning_rate"]
    with caplog.at_level("INFO", "pipeline.vertex"):
        _, results = search()
    (job,) = there.vertex.jobs.tuning_jobs.values()
    first = job.trials[0].final_measurement.metrics[0].value
    said = [record.message for record in caplog.records]
    assert f"JOB_STATE_RUNNING, 1 of 5 trials have succeeded, best val_auc so far {first:.4f}" in said
    best = max(row["score"] for row in results)
    assert said[-1] == f"JOB_STATE_SUCCEEDED, 5 of 5 trials have succeeded, best val_auc so far {best:.4f}"


def test_a_trial_without_a_result_takes_no_part(there: GoogleCloud, search):
    there.vertex.script.objective = lambda values: 1 / (values["members"] - 1)  # nothing for one member
    best, results = search()
    (job,) = there.vertex.jobs.tuning_jobs.values()
    assert [trial.state.name for trial in job.trials].count("INFEASIBLE") == 1
    assert len(results) == len(job.trials) - 1
    assert best.values["members"] == min(row["members"] for row in results) > 1


def test_vizier_stops_trials_below_the_median_and_counts_each_by_its_best_epoch(there: GoogleCloud, search):
    there.vertex.script.objective = lambda values: [-values["learning_rate"], -2 * values["learning_rate"]]
    best, results = search()
    (job,) = there.vertex.jobs.tuning_jobs.values()
    assert not v1.StudySpec.pb(job.study_spec).HasField("study_stopping_config")
    assert [len(trial.measurements) for trial in job.trials] == [2, 1, 1, 1, 1]
    assert [row["score"] for row in results] == [-row["learning_rate"] for row in results]
    assert best.values["learning_rate"] == results[0]["learning_rate"]


@pytest.mark.parametrize(("minutes", "seconds", "trials"), [(1.5, 90, 3), (0.001, 1, 1)])
def test_vizier_starts_no_trial_after_the_minutes_of_the_search_and_has_one_in_any_case(
    there: GoogleCloud, search, minutes: float, seconds: int, trials: int
):
    there.vertex.script.trial_seconds = 40.0
    _, results = search(minutes=minutes)
    (job,) = there.vertex.jobs.tuning_jobs.values()
    limit = job.study_spec.study_stopping_config
    assert limit.maximum_runtime_constraint.max_duration.total_seconds() == seconds
    assert limit.should_stop_asap
    assert len(results) == trials


def test_a_search_that_fails_says_why(there: GoogleCloud, search):
    there.vertex.script.failing_jobs = "too many trials failed"
    with pytest.raises(launch.JobFailed, match=r"hyperparameterTuningJobs/\d+ ended with JOB_STATE_FAILED: too many"):
        search()


def test_a_trial_gets_its_values_in_the_types_of_the_module_file():
    space = keras_tuner.HyperParameters()
    space.Choice("units", [16, 32])
    space.Choice("activation", ["relu", "tanh"])
    space.Boolean("wide")
    space.Int("members", 4, 12, step=4)
    space.Float("rate", 0.0, 1.0)
    given = ["--units=32.0", "--activation=tanh", "--wide=False", "--members=8.0", "--rate=0.25"]
    assert vizier.values_of(space, given) == {
        "units": 32,
        "activation": "tanh",
        "wide": False,
        "members": 8,
        "rate": 0.25,
    }
    with pytest.raises(
        UserError, match=r"a trial got the argument '--depth=3'; expected --name=value with a name of un"
    ):
        vizier.values_of(space, ["--depth=3"])


def test_a_hyperparameter_that_is_not_always_there_is_refused():
    space = keras_tuner.HyperParameters()
    space.Boolean("wide")
    with space.conditional_scope("wide", [True]):
        space.Int("units", 1, 3)
    with pytest.raises(UserError, match=r"'units' is only there for some values of wide"):
        vizier.study_of(space, keras_tuner.Objective("val_auc", "max"))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda space: space.Float("rate", 0.0, 1.0, step=0.0001),
            r"'rate' has 10,000 values, Vizier takes 1,000",
        ),
        (
            lambda space: space.Int("learning rate", 1, 3),
            r"'learning rate' has a space in .* 'learning_rate'",
        ),
    ],
)
def test_a_hyperparameter_that_vizier_does_not_take_is_refused(ask, message: str):
    space = keras_tuner.HyperParameters()
    ask(space)
    with pytest.raises(UserError, match=message):
        vizier.study_of(space, keras_tuner.Objective("val_auc", "max"))
