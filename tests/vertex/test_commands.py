"""Rollback, schedules and batch prediction as a user calls them, against the fake Google Cloud."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.google_cloud import BUCKET, GoogleCloud
from tests.vertex.serving import Pushes

# Each starts Python anew with Google's clients; one compiles.
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
ENDPOINT_FILE = """\
from pipeline.settings.endpoint import Canary, Endpoint

ENDPOINT = Endpoint("late-flights", canary=Canary(drain_seconds=0))
"""


@pytest.fixture
def endpoint(tmp_path) -> str:
    file = tmp_path / "endpoint.py"
    file.write_text(ENDPOINT_FILE)
    return f"--endpoint={file}"


def test_a_rollback_is_one_command_with_a_dry_run(runner, pushes: Pushes, there: GoogleCloud, endpoint: str):
    pushes.push(1)
    pushes.push(2)
    code, text = runner("rollback", "--dry-run", endpoint)
    assert code == 0, text
    assert "now       100 % to flights-2\nwould     deploy version 1" in text
    assert text.endswith("nothing was changed\n")
    assert there.vertex.serving.traffic() == {"2": 100}
    code, text = runner("rollback", endpoint)
    assert code == 0, text
    assert "now: 100 % to flights-1\nundeployed version 2" in text
    assert there.vertex.serving.traffic() == {"1": 100}


def test_a_rollback_needs_to_know_the_endpoint(runner):
    code, text = runner("rollback")
    assert code == 2, text
    assert "--endpoint (or VERTEX_ENDPOINT) is missing" in text


def test_a_table_is_answered_by_the_live_version(runner, pushes: Pushes, there: GoogleCloud):
    pushes.push(1)
    code, text = runner("batch-predict", "bigquery://demo.flights.today")
    assert code == 0, text
    assert "version 1 answers bigquery://demo.flights.today" in text
    assert f"11 rows answered, 1 not, in gs://{BUCKET}/flights/predictions/prediction-1" in text


def test_a_schedule_is_made_from_the_checked_and_compiled_job_and_listed(
    runner, there: GoogleCloud, few_flights, endpoint
):
    code, text = runner("schedule", "0 3 * * 1")
    assert code == 1, text
    assert "every run of a schedule would train on the copy that is uploaded now" in text
    for file in few_flights.glob("*/*.parquet"):
        blob = there.storage.bucket(BUCKET).blob(f"data/{file.relative_to(few_flights)}")
        blob.upload_from_filename(str(file))
    code, text = runner("schedule", "0 3 * * 1", f"--data=gs://{BUCKET}/data", endpoint)
    assert code == 0, text
    assert re.search(r"endpoint +ok +projects/demo/locations/us-central1/endpoints/late-flights will be made", text)
    assert "created the schedule\nflights  active  '0 3 * * 1', 0 runs so far" in text
    (schedule,) = there.vertex.schedules.values()
    spec = schedule.create_pipeline_job_request.pipeline_job.pipeline_spec
    container = spec["deploymentSpec"]["executors"]["Pusher_executor"]["container"]
    assert "pipeline.vertex.endpoints.pusher.EndpointPusherExecutor" in container["args"]
    code, text = runner("schedules")
    assert code == 0, text
    assert schedule.name in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("schedule", "every monday"), "must be a cron line of five fields"),
        (("check", "--dry-run"), "unrecognized arguments: --dry-run"),
        (("watch",), "the following arguments are required: JOB"),
        (
            ("run", "--endpoint", "nothing.py"),
            "no file nothing.py; expected a Python file with ENDPOINT = Endpoint(...)",
        ),
    ],
)
def test_wrong_arguments_are_refused(runner, arguments, message):
    code, text = runner(*arguments)
    assert code == 2, text
    assert message in text


def test_a_job_is_not_compiled_into_a_file(runner, tmp_path):
    (tmp_path / "job.json").write_text("{}")
    code, text = runner("compile", str(tmp_path / "job.json"))
    assert code == 1, text
    assert text == f"vertex_runner.py: OUT must be a folder, and {tmp_path / 'job.json'} is a file\n"


def test_a_reader_that_has_seen_enough_ends_a_command_quietly(few_flights, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    settings = ("--project=demo", "--region=us-central1", "--bucket=demo-bucket", f"--output={tmp_path}")
    command = [sys.executable, "vertex_runner.py", "check", f"--data={few_flights}", *settings]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
