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
from tests.fakes.google_cloud import BUCKET, NUMBER, GoogleCloud
from tests.vertex.serving import ENDPOINT

pytestmark = pytest.mark.slow  # each starts Python anew with Google's clients
ROOT = Path(__file__).resolve().parents[2]
OLD = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=90)


@pytest.fixture
def idle_endpoint(cloud, there: GoogleCloud) -> v1.Endpoint:
    """An endpoint with one version, which nobody asks."""
    serving = ServingEndpoint(cloud, ENDPOINT)
    serving.create({}, None)
    container = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
    key = serving.deploy(Registry(cloud, "flights").add("gs://m/1", "gs://b/1", container, {}, "", None))
    endpoint = there.vertex.serving.endpoints[serving.name]
    endpoint.traffic_split, endpoint.deployed_models[0].create_time = {key: 100}, OLD
    return endpoint


def test_nothing_idle_is_said_and_no_error(runner):
    code, text = runner("costs")
    assert code == 0, text
    assert text == (
        "the pipeline flights in demo, us-central1, gs://demo-bucket: not used for 30 days\n\nnothing idle\n"
    )


def test_what_is_idle_is_a_table_with_a_total_and_a_command_each(runner, idle_endpoint, there: GoogleCloud):
    name = f"flights/artifacts/{NUMBER}/flights-1/Trainer_1/b"
    there.storage.bucket(BUCKET).blob(name).upload_from_string(b"x" * (1 << 20), content_type="text/plain")
    objects = there.buckets.buckets[BUCKET]
    objects[name] = replace(objects[name], updated=OLD)
    code, text = runner("costs", "--days=7")
    assert code == 0, text
    first, second, total = re.findall(r"^ .*? (\S+)$", text.partition("what ends them")[0], re.MULTILINE)[1:]
    assert (second, total) == ("<0.01", first)
    assert re.search(r"^ +1 endpoint late-flights, flights-1 +no requests in 7 days, 1 x n2-standard-4 ", text, re.M)
    assert re.search(r"^ +2 artifacts of flights, run flights-1 +1\.0 MiB, written 90 days ago ", text, re.M)
    assert re.search(r"^  1 gcloud ai endpoints undeploy-model late-flights --deployed-model-id=\d+ ", text, re.M)
    assert f"\n  2 gcloud storage rm --recursive gs://{BUCKET}/flights/artifacts/{NUMBER}/flights-1/\n" in text
    assert len(there.files()) == 1
    assert there.vertex.serving.deployed() == ["1"]


def test_control_codes_in_names_are_shown_and_not_obeyed(runner, idle_endpoint, there: GoogleCloud):
    idle_endpoint.display_name = "late\x1b[2J\nflights"
    there.rest.project.monitored = False
    code, text = runner("costs")
    assert code == 0, text
    assert "\x1b" not in text
    assert r"the requests to the endpoint late\x1b[2J flights: Permission monitoring" in text
    assert "nothing idle in what could be looked at" in text
    there.rest.project.monitored = True
    code, text = runner("costs")
    assert r"endpoint late\x1b[2J\nflights, flights-1" in text


def test_a_price_that_is_not_known_is_said_and_left_out_of_the_total(runner, idle_endpoint):
    idle_endpoint.deployed_models[0].dedicated_resources.machine_spec.machine_type = "c3-standard-5"
    code, text = runner("costs")
    assert code == 0, text
    assert re.search(r"1 x c3-standard-5 +unknown$", text, re.M)
    assert re.search(r"^ +total +without 1 whose price is unknown +0\.00$", text, re.M)
    assert "price unknown: configs/prices.toml has no machine type 'c3-standard-5'" in text


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
