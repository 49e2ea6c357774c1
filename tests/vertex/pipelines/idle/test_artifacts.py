"""Old artifacts are found by the run that wrote them; what a model, a run or the cache needs is not."""

import shlex
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.endpoints.registry import Registry
from pipeline.vertex.pipelines.idle import artifacts
from pipeline.vertex.pipelines.idle.finding import Idle, Note, Scope
from tests.fakes.google_cloud import BUCKET, NUMBER, REGION, GoogleCloud
from tests.vertex.pipelines.idle.conftest import ago

ROOT = f"flights/artifacts/{NUMBER}"
MIB = 1 << 20


def found(scope: Scope) -> list[Idle]:
    return [one for one in artifacts.look(scope) if isinstance(one, Idle)]


def test_the_artifacts_of_an_old_run_are_found_with_their_size_age_and_price(scope: Scope, write: Callable[..., None]):
    write(f"{ROOT}/flights-1/Transform_1/a", 95, 2 * MIB)
    write(f"{ROOT}/flights-1/Trainer_1/b", 90.1)
    write(f"{ROOT}/flights-2/Trainer_1/b", 3)
    note, idle, hint = artifacts.look(replace(scope, prices=at_a_price(scope, 1024.0)))
    assert isinstance(note, Note)
    assert note.text == (
        f"artifacts in gs://{BUCKET}: 4.0 MiB, of which 1.0 MiB were written in the last 30 days, 0.0 MiB in the 60 "
        "before, 3.0 MiB earlier"
    )
    assert isinstance(idle, Idle)
    assert (idle.what, idle.why) == ("artifacts of flights, run flights-1", "3.0 MiB, written 90 days ago")
    assert idle.price.dollars == pytest.approx(3)
    assert idle.command == f"gcloud storage rm --recursive gs://{BUCKET}/{ROOT}/flights-1/"
    assert hint == Note("after artifacts were deleted, run once with --caching off: the cache still names them")


def at_a_price(scope: Scope, dollars: float):
    """Prices with one for a GiB of storage."""
    price = replace(scope.prices.resources["storage"][REGION], on_demand=dollars)
    return replace(scope.prices, resources={**scope.prices.resources, "storage": {REGION: price}})


def test_a_run_that_wrote_something_lately_is_no_old_one(scope: Scope, write: Callable[..., None]):
    write(f"{ROOT}/flights-1/Transform_1/a", 95)
    write(f"{ROOT}/flights-1/Trainer_1/b", 29)
    assert found(scope) == []


def test_the_newest_blessed_model_stays_for_the_next_run_to_be_compared_with(scope: Scope, write: Callable[..., None]):
    for number, mark in enumerate(("BLESSED", "BLESSED", "NOT_BLESSED"), 1):
        write(f"{ROOT}/flights-{number}/Evaluator_1/blessing/{mark}", 100 - number)
    (idle,) = found(scope)
    assert [address.split("/")[-2] for address in shlex.split(idle.command)[4:]] == ["flights-1", "flights-3"]


def test_the_runs_of_the_live_version_and_the_one_before_stay(scope: Scope, write: Callable[..., None], cloud):
    container = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
    registry = Registry(cloud, "flights")
    for number in (1, 2, 3):
        write(f"{ROOT}/flights-{number}/StatisticsGen_1/statistics", 90)
        labels = {"run": f"flights-{number}"}
        registry.make_live(registry.add(f"gs://m/{number}", f"gs://b/{number}", container, labels, "", None))
    assert [idle.what for idle in found(scope)] == ["artifacts of flights, run flights-1"]


def test_what_a_run_of_these_days_has_taken_from_the_cache_stays(
    scope: Scope, write: Callable[..., None], there: GoogleCloud
):
    for number in (1, 2):
        write(f"{ROOT}/flights-{number}/Transform_1/transform_graph/a", 90)
    uri = f"gs://{BUCKET}/{ROOT}/flights-1/Transform_1/transform_graph"
    outputs = {"transform_graph": v1.PipelineTaskDetail.ArtifactList(artifacts=[v1.Artifact(uri=uri)])}
    name = f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/flights-9"
    job = v1.PipelineJob(
        name=name,
        state=v1.PipelineState.PIPELINE_STATE_SUCCEEDED,
        create_time=ago(2),
        runtime_config=v1.PipelineJob.RuntimeConfig(gcs_output_directory=f"gs://{BUCKET}/flights/artifacts"),
        job_detail=v1.PipelineJobDetail(
            task_details=[v1.PipelineTaskDetail(task_name="Transform", outputs=outputs, state="SKIPPED")]
        ),
    )
    there.vertex.pipeline_jobs[name] = job
    assert [idle.what for idle in found(scope)] == ["artifacts of flights, run flights-2"]
    job.create_time = ago(31)
    assert [idle.what for idle in found(scope)] == ["artifacts of 2 runs"]


def test_copies_of_data_are_found_but_for_the_newest(scope: Scope, write: Callable[..., None]):
    write("flights/artifacts/_data/ab12/flights.parquet", 90)
    write("flights/artifacts/_data/cd34/flights.parquet", 60)
    (idle,) = found(scope)
    assert idle.what == "artifacts of flights, a copy of its data"
    assert idle.command.endswith("/flights/artifacts/_data/ab12/")


def test_pushed_models_and_what_is_staged_for_schedules_are_no_artifacts_of_runs(
    scope: Scope, write: Callable[..., None]
):
    for name in ("flights/serving/1/saved_model.pb", "flights/artifacts/_wheels/a.whl", "notes.txt", f"{ROOT}/x"):
        write(name, 90)
    assert list(artifacts.look(replace(scope, whole=True))) == []


def test_another_pipelines_artifacts_are_looked_at_with_all_only(scope: Scope, write: Callable[..., None]):
    write(f"flights_eu/artifacts/{NUMBER}/eu-1/Trainer_1/b", 90)
    assert found(scope) == []
    assert [idle.what for idle in found(replace(scope, whole=True))] == ["artifacts of flights_eu, run eu-1"]


def test_the_ten_largest_runs_have_a_line_each_and_the_others_one(
    scope: Scope, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(artifacts, "GIB", 2000)
    for number in range(1, 14):
        write(f"{ROOT}/flights-{number}/Trainer_1/b", 60 + number, number * 1000)
    idle = found(scope)
    assert [one.what.rpartition("-")[2] for one in idle[:-1]] == [str(number) for number in range(13, 3, -1)]
    assert (idle[-1].what, idle[-1].why.rpartition(", ")[2]) == ("artifacts of 3 runs", "written 61 to 63 days ago")
    assert shlex.split(idle[-1].command)[4:] == [f"gs://{BUCKET}/{ROOT}/flights-{number}/" for number in (3, 2, 1)]


def test_small_runs_have_one_line_together(scope: Scope, write: Callable[..., None]):
    for number in (1, 2):
        write(f"{ROOT}/flights-{number}/Trainer_1/b", 60)
    (idle,) = found(scope)
    assert (idle.what, idle.why) == ("artifacts of 2 runs", "2.0 MiB, written 60 days ago")


def test_of_other_classes_of_storage_the_price_is_not_known(scope: Scope, write: Callable[..., None]):
    write(f"{ROOT}/flights-1/Trainer_1/b", 90, storageClass="NEARLINE")
    (idle,) = found(scope)
    assert idle.price.unknown.endswith("has no price of storage of the class NEARLINE")


def test_a_name_with_spaces_and_quotes_is_one_word_of_the_command(scope: Scope, write: Callable[..., None]):
    run = "o'clock; rm -r ~ $(id)"
    write(f"{ROOT}/{run}/Trainer_1/b", 90)
    (idle,) = found(scope)
    assert shlex.split(idle.command)[-1] == f"gs://{BUCKET}/{ROOT}/{run}/"


@pytest.mark.parametrize("run", ["*", "flights-?", "[a-z]1", "{a,b}"])
def test_a_name_that_gcloud_takes_for_a_pattern_is_in_no_command(run: str, scope: Scope, write: Callable[..., None]):
    write(f"{ROOT}/{run}/Trainer_1/b", 90)
    assert found(scope) == []
