"""Requests that were damaged or made to do harm: answered or refused as JSON, never an error of the server."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pipeline.serving.answering import Answering
from pipeline.serving.app import create_app
from pipeline.serving.bodies import Limits
from pipeline.serving.current import Current
from pipeline.serving.metrics import Metrics
from tests.bounds import bounded
from tests.hostile.mutations import CASES, TEXTS, mutated
from tests.serving.conftest import ROWS, save

pytestmark = pytest.mark.slow

CALLS = ["/v1/models/model:predict", "/v1/models/model:explain", "/predict"]
SEEDS = [
    json.dumps(body).encode()
    for body in (
        {"instances": ROWS},
        {"signature_name": "serving_default", "instances": [{**ROWS[0], "carrier": {"b64": "VUE="}}]},
        {"inputs": {name: [row[name] for row in ROWS] for name in ROWS[0]}},
        {"instances": ROWS[:1], "parameters": {"explain": True}},
    )
]
WORDS = [
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b"9" * 9_000,
    b"1e400",
    b'"instances":',
    b'"b64"',
    b"-0",
    b"\\ud800",
    b"Infinity",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = save(tmp_path_factory.mktemp("model") / "model", explains=True)
    current = Current(str(folder), "model", Metrics(), 100)
    current.start()
    limits = Limits(body_bytes=1 << 20, instances=20, rows_waiting=100)
    app = create_app(Answering(current, Metrics(), limits))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@CASES
@given(st.sampled_from(CALLS), mutated(SEEDS, WORDS))
def test_a_damaged_body_is_answered_or_refused(client, call, body):
    with bounded(seconds=10, megabytes=300):
        answer = client.post(call, content=body)
    assert answer.status_code in (200, 400, 413)
    assert answer.status_code == 200 or answer.json()["error"]
    assert len(answer.content) < 100_000


@CASES
@given(st.dictionaries(TEXTS, TEXTS, max_size=3), TEXTS)
def test_text_of_a_request_comes_back_as_text_of_json(client, columns, carrier):
    answer = client.post(CALLS[0], json={"instances": [{**columns, **ROWS[0], "carrier": carrier}]})
    known = columns.keys() <= ROWS[0].keys()
    assert answer.status_code == (200 if known else 400)
    assert answer.headers["content-type"] == "application/json"
    assert known or isinstance(answer.json()["error"], str)


@CASES
@given(TEXTS, TEXTS)
def test_no_path_leads_anywhere_else(client, name, version):
    from urllib.parse import quote

    for path in (f"/v1/models/{quote(name)}:predict", f"/v1/models/model/versions/{quote(version)}", f"/{quote(name)}"):
        answer = client.post(path, json={"instances": ROWS})
        assert answer.status_code in (200, 400, 404, 405, 501)
