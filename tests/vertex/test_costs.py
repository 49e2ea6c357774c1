"""The command ``costs`` as a user calls it, against the fake Google Cloud."""

import datetime
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.endpoints.registry import Registry
from tests.fakes.google_cloud import BUCKET, NUMBER, REGION, GoogleCloud
from tests.vertex.serving import ENDPOINT

pytestmark = pytest.mark.slow  # each starts Python anew with Google's clients
ROOT = Path(__file__).resolve().parents[2]
OLD = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=90)


@pytest.fixture
def unused_endpoint(cloud, there: GoogleCloud) -> v1.Endpoint:
    """An endpoint with one version and no traffic."""
    serving = ServingEndpoint(cloud, ENDPOINT)
    serving.create({}, None)
    container = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
    serving.deploy(Registry(cloud, "flights").add("gs://m/1", "gs://b/1", container, {}, "", None))
    endpoint = there.vertex.serving.endpoints[serving.name]
    endpoint.traffic_split, endpoint.deployed_models[0].create_time = {}, OLD
    return endpoint


def test_without_unused_resources_the_list_is_empty_and_the_exit_code_0(runner):
    code, text = runner("costs")
    assert code == 0, text
    assert text == "not used by flights for 30 days in demo, us-central1:\n\nnothing\n"


def test_unused_resources_are_a_table_with_a_total_and_a_command_each(runner, unused_endpoint, there: GoogleCloud):
    for key in ("flights-1", "flights-2"):
        name = f"flights/artifacts/{NUMBER}/{key}/Trainer_1/b"
        there.storage.bucket(BUCKET).blob(name).upload_from_string(b"x", content_type="text/plain")
        objects = there.buckets.buckets[BUCKET]
        objects[name] = replace(objects[name], updated=OLD)
        job = f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/{key}"
        moment = OLD + datetime.timedelta(hours=int(key[-1]))
        state = v1.PipelineState.PIPELINE_STATE_SUCCEEDED
        there.vertex.pipeline_jobs[job] = v1.PipelineJob(name=job, state=state, create_time=moment)
    code, text = runner("costs", "--days=7")
    assert code == 0, text
    first, second, total = re.findall(r"^ .*? (\S+)$", text.partition("what ends them")[0], re.MULTILINE)[1:]
    assert (second, total) == ("0.00", first)
    assert re.search(r"^ +1 +flights-1 on the endpoint late-flights: no traffic, 1 x n2-standard-4 ", text, re.M)
    assert re.search(r"^ +2 +artifacts of the run flights-1: 0\.00 GiB, ", text, re.M)
    assert re.search(r"^  1 gcloud ai endpoints undeploy-model late-flights --deployed-model-id=\d+ ", text, re.M)
    assert f"\n  2 gcloud storage rm --recursive gs://{BUCKET}/flights/artifacts/{NUMBER}/flights-1/\n" in text
    assert len(there.files()) == 2
    assert there.vertex.serving.deployed() == ["1"]


def test_control_codes_in_names_are_shown_and_not_obeyed(runner, unused_endpoint, there: GoogleCloud):
    unused_endpoint.display_name = "late\x1b[2J\nflights"
    code, text = runner("costs")
    assert code == 0, text
    assert "\x1b" not in text
    assert r"flights-1 on the endpoint late\x1b[2J\nflights: no traffic" in text


def test_what_may_not_be_read_is_a_line_with_the_role(runner, there: GoogleCloud):
    there.rest.project.denied.add(("storage.objects.list", f"buckets/{BUCKET}"))
    code, text = runner("costs")
    assert code == 0, text
    assert "\nnothing in what could be checked\n" in text
    assert re.search(r"^not checked: artifacts: .*denied.*; it needs roles/storage.objectViewer$", text, re.M)


def test_a_price_that_is_not_known_is_left_out_of_the_total(runner, unused_endpoint):
    unused_endpoint.deployed_models[0].dedicated_resources.machine_spec.machine_type = "c3-standard-5"
    code, text = runner("costs")
    assert code == 0, text
    assert re.search(r"1 x c3-standard-5 +unknown$", text, re.M)
    assert re.search(r"total of the known prices +0\.00$", text, re.M)


@pytest.mark.parametrize(
    ("table", "code", "message"),
    [
        ("date = 2020-01-01", 0, r"warning: the prices in .*configs/prices.toml are \d+ days old; "),
        (
            "data = 2020-01-01",
            1,
            r"^vertex_runner.py: configs/prices.toml is not the table of prices that was",
        ),
    ],
)
def test_old_prices_are_a_warning_and_a_broken_table_is_a_sentence(table, code, message, there: GoogleCloud, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "local_runner.py").touch()
    prices = (ROOT / "configs/prices.toml").read_text()
    (tmp_path / "configs/prices.toml").write_text(re.sub(r"^date = .*$", table, prices, flags=re.MULTILINE))
    place = ["--project=demo", "--region=us-central1", f"--bucket={BUCKET}", f"--output={tmp_path / 'output'}"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "vertex_runner.py"), "costs", *place],
        cwd=tmp_path,
        env={**os.environ, **there.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert re.search(message, done.stdout + done.stderr, re.MULTILINE)


def test_a_bucket_is_needed(runner):
    code, text = runner("costs", "--bucket=")
    assert code == 2, text
    assert "--bucket (or VERTEX_BUCKET) is missing" in text
