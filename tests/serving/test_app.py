"""The server's answers: TensorFlow Serving's calls and Vertex AI's."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pipeline.model.versions import Versions
from pipeline.serving.answering import Answering, as_json
from pipeline.serving.app import create_app
from pipeline.serving.current import Current
from pipeline.serving.metrics import Metrics
from pipeline.serving.request_log import RequestLog
from tests.serving.conftest import LIMITS, PREDICT, ROWS, client_of, expected, push, save


@pytest.mark.parametrize(
    "path", [PREDICT, "/v1/models/flights/versions/7:predict", "/v1/endpoints/1/deployedModels/2:predict"]
)
def test_instances_get_a_prediction_each_under_every_route(client, path):
    answer = client.post(path, json={"instances": ROWS})
    assert answer.status_code == 200
    predictions = answer.json()["predictions"]
    assert [row["probability"] for row in predictions] == pytest.approx([expected(row) for row in ROWS])
    assert [row["label"] for row in predictions] == ["late", "on time", "late"]


def test_columns_get_columns_as_with_tensorflow_serving(client):
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    answer = client.post(PREDICT, json={"signature_name": "serving_default", "inputs": columns})
    assert answer.json()["outputs"]["label"] == ["late", "on time", "late"]


def test_missing_is_null_or_left_out_or_nan(client):
    row = {"carrier": "UA", "distance": 100}
    given = [row, {**row, "temp": None, "seats": None}, {**row, "temp": float("nan"), "seats": float("nan")}]
    answer = client.post(PREDICT, content=json.dumps({"instances": given}))
    assert [row["probability"] for row in answer.json()["predictions"]] == pytest.approx([0.3] * 3)


def test_the_greatest_float32_is_taken_as_it_is_answered_and_the_next_is_not(client):
    def ask(number: str) -> Any:
        return client.post(PREDICT, content=f'{{"instances": [{{"carrier": "UA", "distance": 1, "temp": {number}}}]}}')

    for number in ("3.4028235e38", "-3.4028235e38", "340282350000000000000000000000000000000"):
        assert ask(number).status_code == 200
    assert "which is too large" in ask("3.4028236e38").json()["error"]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64, -(10**30), 10**300])
def test_a_whole_number_of_more_than_64_bits_is_refused(client, number):
    answer = client.post(PREDICT, json={"instances": [{"carrier": "UA", "distance": number}]})
    assert answer.status_code == 400
    assert "which does not fit into 64 bits" in answer.json()["error"]


def test_the_log_has_null_for_nan(tmp_path):
    versions = Versions(tmp_path / "flights")
    push(versions, 7, bias=0)
    with client_of(versions, request_log=RequestLog(tmp_path / "log", 1.0)) as client:
        row = '{"carrier": "NaN", "distance": 1, "temp": NaN, "seats": NaN}'
        assert client.post(PREDICT, content=f'{{"instances": [{row}]}}').status_code == 200
    (file,) = (tmp_path / "log").iterdir()
    instance = json.loads(file.read_text(), parse_constant=pytest.fail)["instance"]
    assert instance == {"carrier": "NaN", "distance": 1, "temp": None, "seats": None}


def test_answers_have_the_digits_of_a_float32(client):
    answer = client.post(PREDICT, json={"instances": [{"carrier": "UA", "distance": 1, "temp": 0.1}]})
    assert '"probability":0.202' in answer.text


def test_answers_of_several_types_and_shapes_are_json():
    outputs = {
        "half": np.array([0.1, 2], np.float16),
        "several": np.array([[np.nan, 0.42673251], [np.inf, -np.inf]], np.float32),
        "text": np.array([[b"a", "ü".encode()], [b"\xff", b""]], object),
        "whole": np.array([1, 2]),
    }
    assert json.loads(as_json(outputs), parse_constant=pytest.fail) == {
        "half": [pytest.approx(0.1, abs=1e-4), 2.0],
        "several": [[None, 0.4267325], [None, None]],
        "text": [["a", "ü"], [{"b64": "/w=="}, ""]],
        "whole": [1, 2],
    }


def test_an_answer_that_is_no_number_is_null(tmp_path):
    versions = Versions(tmp_path / "flights")
    push(versions, 1, bias=float("nan"))
    with client_of(versions, request_log=RequestLog(tmp_path / "log", 1.0)) as client:
        rows = client.post(PREDICT, json={"instances": ROWS})
        columns = client.post(PREDICT, json={"inputs": {name: [row[name] for row in ROWS] for name in ROWS[0]}})
    assert [row["probability"] for row in rows.json()["predictions"]] == [None] * 3
    assert columns.json()["outputs"]["probability"] == [None] * 3


def test_a_manifest_with_nan_is_valid_json(tmp_path):
    versions = Versions(tmp_path / "flights")
    with versions.staging() as staging:
        versions.publish(save(staging / "1"), 1, {"metrics": {"auc": float("nan"), "recall": 0.5}}, 5)
    with client_of(versions) as client:
        manifest = client.get("/v1/models/flights/metadata").json()["manifest"]
    assert manifest["metrics"] == {"auc": None, "recall": 0.5}


def test_status_metadata_and_health_are_tensorflow_servings_and_vertex_ais(client):
    assert client.get("/v1/models/flights").json() == {
        "model_version_status": [
            {"version": "7", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }
    metadata = client.get("/v1/models/flights/metadata").json()
    assert metadata["model_spec"] == {"name": "flights", "signature_name": "", "version": "7"}
    inputs = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert inputs["carrier"]["dtype"] == "DT_STRING"
    assert inputs["distance"]["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    assert metadata["manifest"]["run"] == "of 7"
    assert client.get("/v1/endpoints/1/deployedModels/2").status_code == 200


def test_metrics_count_requests_rows_and_failures(client):
    def value(name: str) -> float:
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
        return float(lines.get(name, 0))

    before = {name: value(name) for name in ('serve_requests_total{status="400"}', "serve_rows_total")}
    client.post(PREDICT, json={"instances": ROWS})
    client.post(PREDICT, content=b"no")
    after = {name: value(name) for name in before}
    assert [after[name] - before[name] for name in before] == [1, 3]
    assert value("serve_model_version") == 7


@pytest.mark.slow
def test_requests_at_once_get_each_its_own_answer_and_share_calls(client):
    rows = [{"carrier": "UA", "distance": number} for number in range(400)]

    def ask(row: dict) -> float:
        return client.post(PREDICT, json={"instances": [row]}).json()["predictions"][0]["probability"]

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(ask, rows))
    assert answers == pytest.approx([expected(row) for row in rows])


@pytest.mark.slow
def test_a_new_version_a_broken_one_and_a_rollback_under_load_cost_no_request(tmp_path):
    versions = Versions(tmp_path / "flights")
    push(versions, 1, bias=1)
    statuses, seen = [], []
    with client_of(versions) as client, ThreadPoolExecutor(1) as thread:
        going = [True]

        def ask() -> None:
            while going[0]:
                answer = client.post(PREDICT, json={"instances": ROWS})
                statuses.append(answer.status_code)
                bias = round(answer.json()["predictions"][0]["probability"] - expected(ROWS[0]))
                if bias not in seen[-1:]:
                    seen.append(bias)

        def wait_for(bias: int) -> None:
            deadline = time.monotonic() + 300
            while bias not in seen[-1:]:
                assert time.monotonic() < deadline, seen
                assert not asking.done()
                time.sleep(0.02)

        asking = thread.submit(ask)
        wait_for(1)
        push(versions, 2, bias=2, keep=1)  # which removes version 1
        wait_for(2)
        broken = tmp_path / "broken"
        (broken / "variables").mkdir(parents=True)
        (broken / "saved_model.pb").write_bytes(b"half")
        broken.rename(versions.path(4))
        push(versions, 3, bias=5)  # becomes 5, after the broken one
        wait_for(5)
        versions.roll_back()
        wait_for(2)
        going[0] = False
        asking.result()
        metrics = client.get("/metrics").text
    assert set(statuses) == {200}
    assert seen == [1, 2, 5, 2]
    assert "serve_load_failures_total 1.0" in metrics


def test_the_request_log_has_a_line_a_row_with_version_instance_and_prediction(tmp_path):
    versions = Versions(tmp_path / "flights")
    push(versions, 7, bias=0)
    with client_of(versions, request_log=RequestLog(tmp_path / "log", 1.0)) as client:
        client.post(PREDICT, json={"instances": ROWS})
        client.post(PREDICT, content=b"no")
    (file,) = (tmp_path / "log").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["instance"] for line in lines] == ROWS
    assert {line["version"] for line in lines} == {7}
    assert lines[0]["prediction"]["label"] == "late"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
features = st.dictionaries(st.sampled_from([*ROWS[0], "b64", "x"]), json_values, max_size=5)
bodies = st.one_of(
    st.binary(max_size=40),
    json_values.map(json.dumps).map(str.encode),
    st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), json_values | st.lists(features)).map(
        lambda body: json.dumps(body).encode()
    ),
    st.lists(features, min_size=1, max_size=3).map(lambda body: json.dumps({"instances": body}).encode()),
)


@pytest.mark.slow
@hypothesis.settings(
    max_examples=150, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(body=bodies)
def test_no_body_whatever_makes_the_server_fail(client, body):
    answer = client.post(PREDICT, content=body)
    assert answer.status_code in (200, 400, 413)
    assert "Traceback" not in answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]


def test_the_description_names_every_feature_and_what_must_be_there(client):
    description = client.get("/openapi.json").json()
    post = description["paths"][PREDICT]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    instance = schema["properties"]["instances"]["items"]
    assert set(instance["properties"]) == set(ROWS[0])
    assert instance["required"] == ["carrier", "distance"]


def test_a_folder_of_one_model_is_served_too(small_model: Path):
    current = Current(str(small_model), "model", Metrics(), 100)
    with TestClient(create_app(Answering(current, Metrics(), LIMITS))) as client:
        assert client.get("/health").status_code == 503
        current.start()
        assert client.get("/health").json() == {"version": 0}
        assert client.post("/predict", json={"instances": ROWS}).status_code == 200
