"""The search lists the artifacts of old runs, and none that a model, a run, a schedule or a setting needs."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.endpoints.registry import Registry
from pipeline.vertex.pipelines import submit
from pipeline.vertex.pipelines.unused import Scope, Unused, search
from tests.fakes.google_cloud import BUCKET, NUMBER, REGION, GoogleCloud
from tests.vertex.pipelines.conftest import ago

ROOT = f"flights/artifacts/{NUMBER}"
MODEL = "Trainer_1/model/Format-Serving/saved_model.pb"
Run = Callable[..., None]


@pytest.fixture
def run(there: GoogleCloud, write: Callable[..., None]) -> Run:
    """Let a run have ended some days ago, with its objects; ``named`` are artifacts of others that its tasks name."""

    def made(key: str, days: float, *objects: str, named: tuple[str, ...] = (), state: str = "SUCCEEDED") -> None:
        for name in objects or (MODEL,):
            write(f"{ROOT}/{key}/{name}", days)
        artifacts = [v1.Artifact(uri=f"gs://{BUCKET}/{ROOT}/{name}") for name in named]
        outputs = {"model": v1.PipelineTaskDetail.ArtifactList(artifacts=artifacts)}
        job = v1.PipelineJob(
            name=f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/{key}",
            state=v1.PipelineState[f"PIPELINE_STATE_{state}"],
            create_time=ago(days),
            end_time=ago(days) if state == "SUCCEEDED" else None,
            job_detail=v1.PipelineJobDetail(
                task_details=[v1.PipelineTaskDetail(task_name="Trainer", outputs=outputs, state="SKIPPED")]
            ),
        )
        there.vertex.pipeline_jobs[job.name] = job

    return made


@pytest.fixture
def live(cloud) -> Callable[[str], None]:
    """Make a version of the model live whose run is given; the one before becomes the previous version."""

    def made(run: str) -> None:
        registry = Registry(cloud, "flights")
        container = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
        registry.make_live(registry.add(f"gs://m/{run}", f"gs://b/{run}", container, {"run": run}, "", None))

    return made


def listed(scope: Scope) -> list[str]:
    """The runs whose artifacts are listed."""
    seen = [one for one in search(scope, lambda _: None) if isinstance(one, Unused)]
    return sorted(one.command.rstrip("/").rpartition("/")[2] for one in seen)


def test_the_artifacts_of_an_old_run_are_found_with_their_size_age_and_price(
    scope: Scope, run: Run, write: Callable[..., None]
):
    run("flights-1", 90)
    write(f"{ROOT}/flights-1/Transform_1/graph/a", 95, 2 << 20)
    run("flights-2", 3)
    price = replace(scope.prices.resources["storage"][REGION], on_demand=1024.0)
    prices = replace(scope.prices, resources={**scope.prices.resources, "storage": {REGION: price}})
    unused, hint = search(replace(scope, prices=prices), lambda _: None)
    assert isinstance(unused, Unused)
    assert unused.what == f"artifacts of the run flights-1: 0.00 GiB, the newest of {ago(90):%Y-%m-%d}"
    assert unused.price == pytest.approx(3)
    assert shlex.split(unused.command) == ["gcloud", "storage", "rm", "--recursive", f"gs://{BUCKET}/{ROOT}/flights-1/"]
    assert hint == "after you delete artifacts, run once with --caching off: the cache still names them"


def test_a_run_with_a_new_object_is_not_old(scope: Scope, run: Run, write: Callable[..., None]):
    run("flights-1", 90)
    run("flights-2", 60)
    assert listed(scope) == ["flights-1"]
    write(f"{ROOT}/flights-1/Report_1/report.html", 29)
    assert listed(scope) == []


def test_the_runs_of_the_live_and_the_previous_version_stay(scope: Scope, run: Run, live: Callable[[str], None]):
    for number in range(1, 6):
        run(f"flights-{number}", 100 - number)
    for number in range(2, 5):
        live(f"flights-{number}")
    assert listed(scope) == ["flights-1", "flights-2"]


def test_what_the_run_of_a_live_version_has_taken_from_the_cache_stays(
    scope: Scope, run: Run, live: Callable[[str], None]
):
    run("flights-1", 99)
    run("flights-2", 98)
    run("flights-3", 97, named=(f"flights-1/{MODEL}",))
    run("flights-4", 96)
    live("flights-3")
    assert listed(scope) == ["flights-2"]


@pytest.mark.parametrize("mark", ["Evaluator_1/blessing/BLESSED", "Tuner_1/best_hyperparameters/best.txt"])
def test_the_newest_blessed_model_and_the_newest_search_stay_with_what_they_are_of(mark: str, scope: Scope, run: Run):
    run("flights-1", 99)
    run("flights-2", 98, mark)
    run("flights-3", 97, mark, named=(f"flights-1/{MODEL}",))
    run("flights-4", 96, "Evaluator_1/blessing/NOT_BLESSED")
    run("flights-5", 95)
    assert listed(scope) == ["flights-2", "flights-4"]


@pytest.mark.parametrize(("days", "state"), [(29, "SUCCEEDED"), (31, "RUNNING")])
def test_what_a_run_of_these_days_or_one_that_has_not_ended_names_stays(
    days: float, state: str, scope: Scope, run: Run, there: GoogleCloud
):
    there.vertex.script.stuck = True
    for number in (1, 2):
        run(f"flights-{number}", 90)
    run("flights-3", 80)
    run("flights-4", days, named=(f"flights-1/{MODEL}",), state=state)
    run("flights-5", 20)
    assert listed(scope) == ["flights-2", "flights-3"]


def test_what_a_new_run_of_another_pipeline_names_stays(scope: Scope, run: Run, there: GoogleCloud):
    run("flights-1", 90)
    run("flights-2", 80)
    name = f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/taxi-1"
    spec = {"root": {"inputs": {"backbone": f"gs://{BUCKET}/{ROOT}/flights-1/Trainer_1/model"}}}
    state = v1.PipelineState.PIPELINE_STATE_FAILED
    job = v1.PipelineJob(name=name, state=state, create_time=ago(2), pipeline_spec=spec)
    assert listed(scope) == ["flights-1"]
    there.vertex.pipeline_jobs[name] = job
    assert listed(scope) == []


def test_the_newest_run_stays_whatever_its_age(scope: Scope, run: Run):
    for number, days in ((1, 400), (2, 300)):
        run(f"flights-{number}", days)
    assert listed(scope) == ["flights-1"]


def test_what_the_settings_or_a_schedule_name_stays(
    scope: Scope, run: Run, compiled: Path, vertex, cloud, there: GoogleCloud
):
    for number in range(1, 5):
        run(f"flights-{number}", 90 - number)
    address = f"gs://{BUCKET}/{ROOT}/flights-1/Trainer_1/model"
    evaluation = replace(scope.config.evaluation, baseline=address)
    scope = replace(scope, config=replace(scope.config, evaluation=evaluation))
    assert listed(scope) == ["flights-2", "flights-3"]
    created = submit.create_schedule(compiled, vertex, "flights", "0 3 * * 1", cloud, lambda _: None)
    kept = v1.Schedule.pb(there.vertex.schedules[created.name])
    kept.create_pipeline_job_request.pipeline_job.pipeline_spec["model"] = address.replace("flights-1", "flights-2")
    assert listed(scope) == ["flights-3"]


def test_a_run_that_vertex_ai_does_not_list_here_is_in_no_command(
    scope: Scope, run: Run, write: Callable[..., None], there: GoogleCloud
):
    run("flights-1", 90)
    run("flights-2", 80)
    write(f"{ROOT}/flights-3/{MODEL}", 70)  # of another region, or its job was deleted
    write(f"flights/artifacts/999/flights-1/{MODEL}", 90)  # of another project
    assert listed(scope) == ["flights-1"]


@pytest.mark.parametrize("needed", ["live", "blessed"])
def test_nothing_is_listed_when_the_job_of_a_model_in_use_was_deleted(
    needed: str, scope: Scope, run: Run, live: Callable[[str], None], write: Callable[..., None]
):
    run("flights-1", 90)
    run("flights-2", 80)
    assert listed(scope) == ["flights-1"]
    if needed == "live":
        live("flights-3")
    else:
        write(f"{ROOT}/flights-3/Evaluator_1/blessing/BLESSED", 60)
    (line,) = search(scope, lambda _: None)
    assert "not checked: artifacts: " in line
    assert "pipelineJobs/flights-3 does not exist" in line


def test_other_folders_and_other_pipelines_are_in_no_command(
    scope: Scope, run: Run, write: Callable[..., None], there: GoogleCloud
):
    run("flights-1", 90)
    run("flights-2", 80)
    for name in (
        "flights/serving/1/saved_model.pb",
        "flights/artifacts/_data/ab12/flights.parquet",
        "flights/artifacts/_pushed/flights/1/statistics",
        f"flights/artifacts/{NUMBER}/*/Trainer_1/a",
        f"flights_eu/artifacts/{NUMBER}/flights-1/Trainer_1/a",
    ):
        write(name, 90)
    commands = [one.command for one in search(scope, lambda _: None) if isinstance(one, Unused)]
    assert commands == [f"gcloud storage rm --recursive gs://{BUCKET}/{ROOT}/flights-1/"]


def test_other_storage_classes_have_no_price(scope: Scope, run: Run, write: Callable[..., None]):
    run("flights-1", 90)
    run("flights-2", 80)
    write(f"{ROOT}/flights-1/{MODEL}", 90, storageClass="NEARLINE")
    unused, _ = search(scope, lambda _: None)
    assert isinstance(unused, Unused)
    assert unused.price is None


def test_the_search_changes_nothing(scope: Scope, run: Run, there: GoogleCloud):
    run("flights-1", 90)
    run("flights-2", 80)
    before = there.files()
    assert listed(scope) == ["flights-1"]
    assert {call.rpartition(".")[2][:4] for call in there.vertex.calls} <= {"List", "GetP", "GetM"}
    assert there.files() == before
