"""The life of a schedule: made, changed, listed, paused, resumed, deleted."""

from pathlib import Path

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex.pipelines import submit
from tests.fakes.google_cloud import BUCKET, NUMBER, PROJECT, GoogleCloud

CRON = "TZ=Europe/Berlin 0 3 * * 1"


def silent(_: str) -> None:
    pass


def test_a_schedule_starts_the_compiled_job_one_run_at_a_time(compiled: Path, vertex, cloud, there: GoogleCloud):
    created = submit.create_schedule(compiled, vertex, "flights", CRON, cloud, silent)
    assert submit.described(created).startswith(
        "flights  active  'TZ=Europe/Berlin 0 3 * * 1', 0 runs so far, next 2026-01-05 03:00 UTC"
    )
    (schedule,) = there.vertex.schedules.values()
    job = schedule.create_pipeline_job_request.pipeline_job
    assert job.service_account == vertex.service_account
    assert job.runtime_config.gcs_output_directory == f"gs://{BUCKET}/flights/artifacts"
    assert there.files()  # what the job needs is in the bucket


def test_no_run_is_started_while_the_one_before_it_has_not_ended(compiled: Path, vertex, cloud, there: GoogleCloud):
    created = submit.create_schedule(compiled, vertex, "flights", CRON, cloud, silent)
    first = there.vertex.run_schedule(created.name)
    assert first is not None
    assert there.vertex.run_schedule(created.name) is None
    first.state = v1.PipelineState.PIPELINE_STATE_FAILED
    assert there.vertex.run_schedule(created.name) is not None


def test_a_schedule_of_before_gets_the_limit_with_the_next_change(compiled: Path, vertex, cloud, there: GoogleCloud):
    created = submit.create_schedule(compiled, vertex, "flights", CRON, cloud, silent)
    there.vertex.schedules[created.name].max_concurrent_active_run_count = 0
    submit.create_schedule(compiled, vertex, "flights", CRON, cloud, silent)
    assert there.vertex.run_schedule(created.name) is not None
    assert there.vertex.run_schedule(created.name) is None


def test_making_it_again_changes_the_one_that_is_there(compiled: Path, vertex, cloud, there: GoogleCloud):
    notes: list[str] = []
    submit.create_schedule(compiled, vertex, "flights", CRON, cloud, notes.append)
    changed = submit.create_schedule(compiled, vertex, "flights", "30 4 * * *", cloud, notes.append)
    assert [note.splitlines()[0] for note in notes[-2:]] == ["created the schedule", "changed the schedule"]
    assert changed.cron == "30 4 * * *"
    assert len(there.vertex.schedules) == 1


def test_it_is_listed_paused_resumed_and_deleted(compiled: Path, vertex, cloud, there: GoogleCloud):
    created = submit.create_schedule(compiled, vertex, "flights", CRON, cloud, silent)
    assert submit.list_schedules(cloud) == [created]
    paused = submit.change_schedule("flights", "pause", cloud)
    assert paused is not None
    assert (paused.state.name, "next" in submit.described(paused)) == ("PAUSED", False)
    with_id = created.name.replace(NUMBER, PROJECT)
    for which in (created.name, with_id, created.name.rpartition("/")[2]):
        resumed = submit.change_schedule(which, "resume", cloud)
        assert resumed is not None
        assert resumed.state.name == "ACTIVE"
        submit.change_schedule(which, "pause", cloud)
    assert submit.change_schedule("flights", "delete", cloud) is None
    assert submit.list_schedules(cloud) == []


@pytest.mark.slow
def test_a_schedule_among_many_is_found_on_every_page(compiled: Path, vertex, cloud, there: GoogleCloud):
    for name in ("a", "b", "c"):
        submit.create_schedule(compiled, vertex, name, CRON, cloud, silent)
    assert len(submit.list_schedules(cloud)) == 3
    changed = submit.create_schedule(compiled, vertex, "a", "30 4 * * *", cloud, silent)
    assert (len(there.vertex.schedules), changed.cron) == (3, "30 4 * * *")


def test_a_deletion_that_fails_or_takes_too_long_is_said(
    compiled: Path, vertex, cloud, there: GoogleCloud, monkeypatch: pytest.MonkeyPatch
):
    submit.create_schedule(compiled, vertex, "flights", CRON, cloud, silent)
    there.vertex.script.failing_operations = {"DeleteSchedule": "a run is being started"}
    with pytest.raises(exceptions.GoogleAPICallError, match="a run is being started"):
        submit.change_schedule("flights", "delete", cloud)
    there.vertex.script.operations_pend = 1000
    monkeypatch.setattr(submit, "SECONDS_TO_DELETE", 0.5)
    with pytest.raises(UserError, match=r"schedules/\d+ is not deleted after 0 s; list the schedules later"):
        submit.change_schedule("flights", "delete", cloud)
    assert submit.list_schedules(cloud)


def test_a_schedule_that_is_not_there_is_named_with_those_that_are(compiled: Path, vertex, cloud):
    with pytest.raises(UserError, match="no schedules are called taxi; there are: none"):
        submit.change_schedule("taxi", "pause", cloud)
    submit.create_schedule(compiled, vertex, "flights", CRON, cloud, silent)
    with pytest.raises(UserError, match="no schedules are called taxi; there are: flights"):
        submit.change_schedule("taxi", "pause", cloud)
