"""The settings of an endpoint are checked when built, and say what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.settings import checks
from pipeline.settings.checks import ConfigError
from pipeline.settings.endpoint import Canary, Endpoint
from pipeline.settings.target import Vertex

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "Late Flights"},
            "endpoint.name must be an id such as late-flights, or the whole name .*'Late Flights'",
        ),
        ({"machine_type": "big"}, "endpoint.machine_type must be a machine type, such as n2-standard-4, got 'big'"),
        ({"accelerator": "NVIDIA_L4", "accelerators": 1}, "n2-standard-4 does not take the accelerator 'NVIDIA_L4'"),
        (
            {"min_replicas": 0},
            r"min_replicas is 0: .* in a preview only \(v1beta1\), which takes one model an endpoint, and a canary has",
        ),
        ({"min_replicas": -1}, "endpoint.min_replicas must be a whole number of 1 or more, got -1"),
        ({"min_replicas": 3}, "max_replicas is 2 and min_replicas 3"),
        ({"processes": 0}, "endpoint.processes must be a whole number from 1 to 256, got 0"),
        (
            {"processes": 2, "image": "r.dev/p/mine:1"},
            "endpoint.processes is 2 with image='r.dev/p/mine:1'; expected 1",
        ),
        (
            {"processes": 2, "machine_type": "g2-standard-8", "accelerator": "NVIDIA_L4", "accelerators": 1},
            "endpoint.processes is 2 with an accelerator, which one process takes; expected 1",
        ),
        ({"cpu_target": 0.6}, "endpoint.cpu_target must be a whole percent from 1 to 100, got 0.6"),
        ({"image": "mine"}, "\"pipeline\" or an image with its tag or digest, got 'mine'"),
        ({"service_account": "me"}, "endpoint.service_account must be its e-mail address"),
        ({"log_to": "logs"}, "endpoint.log_to must be a table bq://project.dataset.table, got 'logs'"),
        ({"log_share": 10}, "endpoint.log_share must be between 0 and 1, got 10; for 10 % write 0.1"),
        ({"log_to": "bq://a.b.c", "log_share": 0}, "log_share is 0, so that nothing would be logged"),
        ({"private_to": ("demo",)}, "private_to without address"),
        ({"address": "http://late.example.com"}, "over TLS, https://HOST, got 'http://late.example.com'"),
        ({"machine_type": "ct5lp-hightpu-4t"}, "the image of the server has no libtpu"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_should_be(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Endpoint(**{"name": "late-flights", **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": (50, 10)}, r"growing whole percents between 0 and 100, such as \(10, 50\), got \(50, 10\)"),
        ({"steps": (10, 100)}, "all of the traffic comes after the last step by itself"),
        ({"steps": (0.1,)}, "growing whole percents"),
        ({"minutes": -1}, "canary.minutes must be a number of 0 or more, got -1"),
        ({"max_latency_ratio": 0.5}, "canary.max_latency_ratio must be a number of 1 or more, got 0.5"),
        ({"max_error_share": 1.5}, "canary.max_error_share must be between 0 and 1"),
        ({"smoke_rows": 0}, "canary.smoke_rows must be a whole number of 1 or more"),
    ],
)
def test_a_wrong_canary_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Canary(**settings)


def test_the_settings_reach_a_task_as_they_are():
    whole = Endpoint(
        "late-flights", private_to=("demo",), address="https://late.example.com", canary=Canary(steps=(5,))
    )
    assert checks.from_json(Endpoint, checks.to_json(whole)) == whole


def test_the_example_is_in_order():
    endpoint = checks.read_settings(ROOT / "configs/endpoint.py", "ENDPOINT", Endpoint)
    assert endpoint.resource_name("demo", "us-central1") == "projects/demo/locations/us-central1/endpoints/late-flights"


def test_a_file_that_is_missing_is_said_with_what_it_should_hold(tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"no file .*nothing.py; expected a Python file with ENDPOINT = Endpoint\(...\)"
    ):
        checks.read_settings(tmp_path / "nothing.py", "ENDPOINT", Endpoint)


def test_an_endpoint_in_another_region_than_the_pipeline_is_refused():
    elsewhere = Endpoint("projects/demo/locations/europe-west4/endpoints/1")
    with pytest.raises(
        UserError, match="the pipeline runs in us-central1; take an endpoint there, or --region europe-west4"
    ):
        Vertex("demo", "us-central1", "bucket", "a.dev/b/c:1", endpoint=elsewhere)
