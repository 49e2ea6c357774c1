"""Explanations from the server and of files: each column has its part of the distance from the average answer."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from pipeline.cli import predict
from pipeline.errors import UserError
from pipeline.model.signatures import load
from pipeline.quality import predictions
from pipeline.serving.answering import Answering
from pipeline.serving.app import create_app
from pipeline.serving.batching import Batcher
from pipeline.serving.bodies import Limits
from pipeline.serving.current import Current
from pipeline.serving.metrics import Metrics
from pipeline.serving.request_log import RequestLog
from tests.serving.conftest import ROWS, expected, save

EXPLAIN = "/v1/models/flights:explain"
AVERAGE = sum(map(expected, ROWS)) / len(ROWS)


def client_of(model: Path, log: RequestLog | None = None) -> TestClient:
    metrics, limits = Metrics(), Limits(body_bytes=100_000, instances=1_000)
    current = Current(str(model), "flights", metrics, limits.rows_waiting)
    current.start()
    return TestClient(create_app(Answering(current, metrics, limits, log), look_every=60))


def contributions(row: dict) -> dict[str, float]:
    """Of a sum, each term's distance from its mean."""

    def terms(one: dict) -> dict[str, float]:
        nothing = {"carrier": "", "distance": 0, "seats": None, "temp": None}
        return {name: expected({**nothing, name: one[name]}) for name in one}

    means = {name: sum(terms(one)[name] for one in ROWS) / len(ROWS) for name in row}
    return {name: value - means[name] for name, value in terms(row).items()}


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("explained") / "model", explains=True)


@pytest.fixture(scope="module")
def client(explained):
    with client_of(explained) as client:
        yield client


@pytest.mark.slow
def test_every_row_has_its_answer_the_average_and_the_part_of_each_column(client):
    answer = client.post(EXPLAIN, json={"instances": ROWS})
    assert answer.status_code == 200, answer.text
    explanations = answer.json()["explanations"]
    predictions = client.post(EXPLAIN.replace("explain", "predict"), json={"instances": ROWS}).json()["predictions"]
    assert [one["answer"] for one in explanations] == predictions
    for row, one in zip(ROWS, explanations, strict=True):
        assert one["average"] == pytest.approx(AVERAGE, abs=1e-5)
        assert one["contributions"] == pytest.approx(contributions(row), abs=1e-5)
        assert set(one["errors"]) == set(row)
        assert one["average"] + sum(one["contributions"].values()) == pytest.approx(expected(row), abs=1e-5)
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert client.post(EXPLAIN, json={"inputs": columns}).json()["explanations"] == explanations


def test_vertex_ai_asks_by_parameters_and_tensorflow_serving_by_the_signature(client):
    wanted = client.post(EXPLAIN, json={"instances": ROWS}).json()["explanations"]
    parameters = {"parameters": {"explain": True}}
    assert client.post("/predict", json={"instances": ROWS, **parameters}).json() == {"predictions": wanted}
    without = client.post("/predict", json={"instances": ROWS, "parameters": {"explain": False}})
    assert without.json()["predictions"] == [one["answer"] for one in wanted]
    signature = {"signature_name": "explain"}
    (raw, *_) = client.post("/v1/models/flights:predict", json={"instances": ROWS, **signature}).json()["predictions"]
    assert dict(zip(raw["columns"], raw["contributions"], strict=True)) == wanted[0]["contributions"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"instances": [{**ROWS[0], "distance": "far"}]},
            400,
            "instances[0]: feature 'distance': expected a whole num",
        ),
        ({"instances": []}, 400, "there are no instances"),
        ({"instances": ROWS * 34}, 413, "102 instances; at most 100 in a request"),
        ({"instances": ROWS, "parameters": {"explain": "yes"}}, 400, '"parameters": expected {"explain": true} or fal'),
    ],
)
def test_what_is_wrong_is_said_as_of_predictions(client, body, status, message):
    path = "/predict" if "parameters" in body else EXPLAIN
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)


def test_the_call_is_described_counted_and_told_to_be_a_post(client):
    paths = client.get("/openapi.json").json()["paths"]
    (explain, plain) = (
        paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        for path in (EXPLAIN, EXPLAIN.replace("explain", "predict"))
    )
    assert explain["instances"]["maxItems"] == 100
    assert plain["instances"]["maxItems"] == 1_000
    assert plain["parameters"]["properties"]["explain"]["type"] == "boolean"
    client.post(EXPLAIN, json={"instances": ROWS})
    assert "serve_explain_request_seconds_count" in client.get("/metrics").text
    answer = client.get(EXPLAIN)
    assert answer.status_code == 405
    assert client.post(EXPLAIN, json=answer.json()["example"]).status_code == 200


def test_explained_rows_are_in_the_request_log_with_their_answers_alone(explained, tmp_path):
    with client_of(explained, RequestLog(tmp_path / "log", 1.0)) as client:
        plain = client.post("/predict", json={"instances": ROWS}).json()["predictions"]
        client.post(EXPLAIN, json={"instances": ROWS})
        client.post("/predict", json={"instances": ROWS, "parameters": {"explain": True}})
        client.post("/predict", json={"instances": ROWS, "signature_name": "explain"})
    (file,) = (tmp_path / "log").iterdir()
    logged = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["instance"] for one in logged] == ROWS * 4
    assert [one["prediction"] for one in logged] == plain * 4


def test_a_request_to_explain_does_not_wait_for_those_behind_it(explained):
    asked = []

    class Counted:
        inputs: ClassVar = {}

        def predict(self, columns):
            asked.append(len(columns["a"]))
            return {"a": columns["a"]}

    async def ask(most_rows):
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(Counted(), pool, 500, lambda rows: None, **most_rows)
            await asyncio.gather(*(batcher.predict({"a": np.zeros(rows)}) for rows in (2, 1, 3)))

    asyncio.run(ask({"most_rows": 1}))
    assert asked == [2, 1, 3]
    with client_of(explained) as client, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: client.post(EXPLAIN, json={"instances": ROWS}), range(6)))
        assert {answer.status_code for answer in answers} == {200}
        assert 'serve_rows_per_call_bucket{le="4.0"} 6.0' in client.get("/metrics").text
        assert "serve_rows_per_call_count 6.0" in client.get("/metrics").text


def test_a_foreign_signature_of_that_name_is_called_as_any_other(tmp_path):
    with client_of(save(tmp_path / "model", foreign=True)) as client:
        answer = client.post(EXPLAIN, json={"instances": ROWS})
        assert answer.status_code == 400
        wanted = "the signature 'explain' of this model explains in another way: it does not answer average, columns, "
        assert answer.json()["error"].startswith(wanted)
        assert EXPLAIN not in client.get("/openapi.json").json()["paths"]
        plain, named = (
            client.post("/predict", json={"instances": ROWS * 50, **more})
            for more in ({}, {"signature_name": "explain"})
        )
        assert plain.status_code == 200
        assert plain.json() == named.json()


def test_explanations_of_vertex_ai_are_monitored_by_their_answers(client):
    answers = client.post("/predict", json={"instances": ROWS, "parameters": {"explain": True}}).json()["predictions"]
    found = predictions.from_json(answers, ("on time", "late"), logits=False)
    np.testing.assert_allclose(found.reshape(-1), list(map(expected, ROWS)), rtol=1e-6)


def test_a_model_without_the_signature_says_why_there_is_none(small_model, tmp_path):
    with client_of(small_model) as client:
        answers = [
            client.post(EXPLAIN, json={"instances": ROWS}),
            client.post("/predict", json={"instances": ROWS, "parameters": {"explain": True}}),
        ]
        assert EXPLAIN not in client.get("/openapi.json").json()["paths"]
    for answer in answers:
        assert answer.status_code == 400
        assert "this model has no signature 'explain': it was exported by an earlier release" in answer.json()["error"]
    with pytest.raises(UserError, match="--explain: this model has no signature 'explain'"):
        predict.predict(load(str(small_model)), {}, tmp_path / "answers.csv", explain=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_files_get_a_column_for_each_contribution(explained, tmp_path, kind):
    data, to = tmp_path / "rows.jsonl", tmp_path / f"answers.{kind}"
    many = ROWS * 50  # more than are explained in one call
    data.write_text("".join(json.dumps({**row, "contribution_seats": 1}) + "\n" for row in many))
    files = predict.find_files(str(data))
    predict.predict(load(str(explained)), files, to, ["carrier"], explain=True)
    read = {"csv": pd.read_csv, "parquet": pd.read_parquet, "jsonl": lambda file: pd.read_json(file, lines=True)}
    answers = read[kind](to).to_dict("list")
    assert list(answers) == [
        *("carrier", "label", "probability", "average"),
        *(f"{prefix}_{name}" for prefix in ("contribution", "error") for name in sorted(ROWS[0])),
    ]
    for name in ROWS[0]:
        wanted = [contributions(row)[name] for row in many]
        assert answers[f"contribution_{name}"] == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(UserError, match="--columns contribution_seats: the model's answer has a column of that name"):
        predict.predict(load(str(explained)), files, to, ["contribution_seats"], explain=True)
    assert predict.predict(load(str(explained)), files, tmp_path / "plain.parquet", ["contribution_seats"])[0] == 150
    assert pq.read_schema(tmp_path / "plain.parquet").names == ["contribution_seats", "label", "probability"]
