"""The webhook: what a receiver gets, what is tried again, and that nothing of it reaches the run."""

import contextlib
import itertools
import json
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.runs import webhook
from pipeline.runs.webhook import Webhook
from tests.fakes.webhook import KEY, SECRET, Receiver, receiving, verified

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set long timeouts, for a busy machine."""
    monkeypatch.setattr(webhook, "SECONDS_BETWEEN", 0.01)
    monkeypatch.setattr(webhook, "SECONDS_FOR_AN_ANSWER", 600.0)
    monkeypatch.setattr(webhook, "SECONDS_IN_ALL", 3600.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "SECONDS_FOR_AN_ANSWER", 0.3)
    monkeypatch.setattr(webhook, "SECONDS_IN_ALL", 1.0)


@pytest.fixture
def receive() -> Iterator:
    with contextlib.ExitStack() as all_of_them:

        def start(*codes: int, hangs: bool = False) -> Receiver:
            return all_of_them.enter_context(receiving(*codes, hangs=hangs))

        yield start


def test_a_receiver_can_verify_who_sent_it_and_what(receive):
    receiver = receive()
    outcome = {"blessed": False, "failed": ["auc is 0.6"], "metrics": {"auc": 0.6, "precision": math.nan}}

    assert Webhook(receiver.url, KEY).tell("flights", "2026-11-21T12-00-00", outcome) is None

    (got,) = receiver.got
    told = verified(got, KEY)
    assert got[0]["content-type"] == "application/json"
    assert told["type"] == "pipeline.run.ended"
    assert told["data"]["pipeline"] == "flights"
    assert told["data"]["failed"] == ["auc is 0.6"]
    assert told["data"]["metrics"] == {"auc": 0.6, "precision": None}


def test_what_may_pass_is_tried_again_under_the_same_id(receive):
    receiver = receive(503, 429)
    assert Webhook(receiver.url, KEY).tell("flights", "1", {}) is None
    assert len(receiver.got) == 3
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


@pytest.mark.parametrize("code", [400, 401, 404, 302])
def test_what_will_not_pass_is_not_tried_again(receive, code):
    receiver = receive(code)
    problem = Webhook(receiver.url, KEY).tell("flights", "1", {})
    assert f"127.0.0.1: answered {code}" in problem
    assert len(receiver.got) == 1


def test_a_receiver_that_is_gone_is_named_and_the_path_of_its_address_is_not(caplog):
    caplog.set_level(logging.DEBUG, "urllib3")
    problem = Webhook("http://127.0.0.1:1/hunter2", KEY).tell("flights", "1", {})
    assert "refused" in problem
    assert "hunter2" not in problem + caplog.text


@pytest.mark.parametrize("scheme", ["", "http://", "http://user:word@"])
def test_a_proxy_of_the_environment_delivers(receive, monkeypatch, scheme):
    receiver = receive()
    monkeypatch.setenv("http_proxy", receiver.url.replace("http://", scheme).rstrip("/"))
    monkeypatch.delenv("no_proxy", raising=False)
    assert Webhook("http://localhost/hook", KEY).tell("flights", "1", {}) is None
    ((headers, _),) = receiver.got
    assert headers["host"] == "localhost"
    assert ("proxy-authorization" in headers) is ("user" in scheme)


def test_a_host_that_the_environment_excludes_needs_no_proxy(receive, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert Webhook(receive().url, KEY).tell("flights", "1", {}) is None


def test_a_delivery_leaves_the_log_level_of_the_library(receive):
    logging.getLogger("urllib3").setLevel(logging.INFO)
    Webhook(receive().url, KEY).tell("flights", "1", {})
    assert logging.getLogger("urllib3").level == logging.INFO
    logging.getLogger("urllib3").setLevel(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_receiver_that_does_not_answer_is_not_waited_for(receive):
    receiver = receive(hangs=True)
    assert "no whole answer within" in Webhook(receiver.url, KEY).tell("flights", "1", {})


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_receiver_that_answers_a_byte_at_a_time_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=drip_to, args=(connection,), daemon=True).start()

        def drip_to(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                for byte in itertools.cycle(b"HTTP/1.1 200 OK"):
                    connection.sendall(bytes([byte]))
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        problem = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", KEY).tell("flights", "1", {})
    assert problem  # though the answer has no end
    assert "no whole answer within" in problem


def test_what_cannot_be_sent_is_said_and_not_raised():
    assert "TypeError" in Webhook("https://example.com", KEY).tell("flights", "1", {"object": object()})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PIPELINE_WEBHOOK_URL": "https://example.com"}, "PIPELINE_WEBHOOK_SECRET is not; a webhook needs both"),
        ({"PIPELINE_WEBHOOK_URL": "http://example.com", "PIPELINE_WEBHOOK_SECRET": SECRET}, "must be https://"),
        (
            {"PIPELINE_WEBHOOK_URL": "https://example.com", "PIPELINE_WEBHOOK_SECRET": "short"},
            "at least 16 bytes, got 5",
        ),
        ({"PIPELINE_WEBHOOK_URL": "https://example.com", "PIPELINE_WEBHOOK_SECRET": "whsec_!"}, "is not base64"),
    ],
)
def test_a_webhook_that_cannot_work_is_refused_before_the_run(environment, message):
    with pytest.raises(UserError) as error:
        webhook.read(environment)
    assert message in str(error.value)


def test_there_is_none_unless_the_environment_names_one():
    assert webhook.read({}) is None
    given = webhook.read({"PIPELINE_WEBHOOK_URL": "https://example.com/x", "PIPELINE_WEBHOOK_SECRET": SECRET})
    assert given == Webhook("https://example.com/x", KEY)
    assert KEY.decode() not in repr(given)


@pytest.mark.slow
@pytest.mark.parametrize("code", [204, 404])
def test_a_run_that_failed_is_told_and_ends_as_it_would_without(receive, tmp_path, code):
    receiver = receive(*[code] * webhook.TRIES)  # after 5 s, on a busy machine, it is tried again
    process = subprocess.run(
        [sys.executable, "local_runner.py", "--data", str(tmp_path / "nowhere"), "--output", str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "PIPELINE_WEBHOOK_URL": receiver.url, "PIPELINE_WEBHOOK_SECRET": SECRET},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    told = json.loads(receiver.got[0][1])["data"]
    kept = json.loads((tmp_path / "out/verdict.json").read_text())
    assert kept["failed"][0].startswith("no data at ")
    assert told == {"pipeline": "flights", **kept, "failed": ["the run failed; its log and its report say why"]}
    assert ("webhook delivery failed: 127.0.0.1: answered 404" in process.stdout) == (code == 404)


@pytest.mark.parametrize(
    ("outcome", "details", "told"),
    [
        (
            {"exit_code": 1, "failed": ["ExampleGen failed: row 7: 'J. Doe'"], "failed_step": "ExampleGen"},
            "",
            "ExampleGen",
        ),
        ({"exit_code": 1, "failed": ["data/x.csv, row 7: 'J. Doe'"]}, "0", "the run"),
    ],
)
def test_the_text_of_an_error_which_may_quote_rows_is_not_sent_unless_asked_for(receive, outcome, details, told):
    receiver = receive()
    environment = {webhook.URL_VARIABLE: receiver.url, webhook.SECRET_VARIABLE: SECRET}
    for asked in (details, "1"):
        found = webhook.read({**environment, webhook.DETAILS_VARIABLE: asked})
        assert found
        assert found.tell("flights", "1", outcome) is None
    short, whole = (verified(got, KEY)["data"]["failed"] for got in receiver.got)
    assert short == [f"{told} failed; its log and its report say why"]
    assert whole == outcome["failed"]


@pytest.mark.parametrize("code", [0, 3, 130])
def test_what_gates_say_and_who_interrupted_is_sent(receive, code):
    receiver = receive()
    assert Webhook(receiver.url, KEY).tell("flights", "1", {"exit_code": code, "failed": ["auc is 0.6"]}) is None
    assert verified(receiver.got[0], KEY)["data"]["failed"] == ["auc is 0.6"]


def test_neither_address_nor_key_are_shown_by_accident():
    address = "https://hooks.example.com/T0/B1/hunter2"
    assert "hunter2" not in repr(Webhook(address, KEY))
    with pytest.raises(UserError) as refused:
        Webhook(address.replace("https", "http"), KEY)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(UserError, match="must be 0 or 1, got 'yes'"):
        webhook.read({webhook.URL_VARIABLE: address, webhook.SECRET_VARIABLE: SECRET, webhook.DETAILS_VARIABLE: "yes"})
