"""What the server refuses, and what it says then: one clear message for a bad request."""

import json

import numpy as np
import pytest

from pipeline.model.features import Refused, from_columns, from_instances
from pipeline.model.inputs import Input
from tests.serving.conftest import PREDICT, ROWS

BAD = [
    ({"carier": "UA", "distance": 1}, "unknown feature 'carier'; did you mean 'carrier'?"),
    ({"distance": 1}, "feature 'carrier' is missing; expected text"),
    ({"carrier": None, "distance": 1}, "feature 'carrier' is missing; expected text"),
    ({"carrier": 7, "distance": 1}, "feature 'carrier': expected text, got 7"),
    ({"carrier": ["UA"], "distance": 1}, "feature 'carrier': expected text, got a list"),
    (
        {"carrier": {"b64": "?"}, "distance": 1},
        "feature 'carrier': expected text, got '?', which is no base64: ",
    ),
    ({"carrier": "UA", "distance": 1.5}, "feature 'distance': expected a whole number, got 1.5"),
    ({"carrier": "UA", "distance": "1"}, "feature 'distance': expected a whole number, got '1'"),
    ({"carrier": "UA", "distance": 7, "temp": True}, "feature 'temp': expected a number"),
    (
        {"carrier": "UA", "distance": 2**63},
        "feature 'distance': expected a whole number, got 9223372036854775808, which",
    ),
    ({"carrier": "UA", "distance": 1, "temp": "warm"}, "feature 'temp': expected a number, or null"),
    (
        {"carrier": "UA", "distance": 1, "temp": 1e39},
        "feature 'temp': expected a number, or null where it is missing, got 1e+39,",
    ),
    ("UA", "expected an object of features and their values, got 'UA'"),
]


@pytest.mark.parametrize(("instance", "message"), BAD)
def test_a_bad_instance_is_refused_with_its_number_and_feature(client, instance, message):
    answer = client.post(PREDICT, json={"instances": [ROWS[0], instance]})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"instances[1]: {message}")


def test_an_unknown_feature_of_a_wide_model_gets_thirty_names_and_the_number_of_the_others():
    inputs = {f"c{number}": Input(f"c{number}", "floats", False, np.dtype("float32")) for number in range(1000)}
    message = r"'xyz': the model does not take it; leave it out, or use one of c0, c1, .*, and 970 more$"
    with pytest.raises(Refused, match=message):
        from_instances([{"xyz": 1}], inputs)


TRACTS = {
    name: Input(name, "floats", False, np.dtype("float32")) for name in ("dropoff_census_tract", "fare", "tip_seconds")
}


def test_a_name_that_the_row_has_already_is_not_suggested():
    whole = dict.fromkeys(TRACTS, 1.0)
    with pytest.raises(Refused, match=r"'pickup_census_tract': the model does not take it; leave it out$"):
        from_instances([{**whole, "pickup_census_tract": 2.0}], TRACTS)
    with pytest.raises(Refused, match=r"'pickup_census_tract': the model does not take it; leave it out$"):
        from_columns({name: [value] for name, value in whole.items()} | {"pickup_census_tract": [2.0]}, TRACTS)
    part = {"dropoff_census_tract": 1.0, "fare": 1.0, "pickup_census_tract": 2.0}
    with pytest.raises(Refused, match=r"'pickup_census_tract': .*; leave it out, or use one of tip_seconds$"):
        from_instances([part], TRACTS)


def test_a_mistyped_name_is_answered_with_the_nearest_that_the_row_lacks():
    with pytest.raises(Refused, match=r"unknown feature 'dropof_census_tract'; did you mean 'dropoff_census_tract'\?$"):
        from_instances([{"dropof_census_tract": 1.0, "fare": 1.0}], TRACTS)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the body is no JSON"),
        (b"\xff\xfe", 400, "the body is no JSON"),
        (b"[" * 9_000, 400, "the body is no JSON"),
        (b'{"instances": [' + b"9" * 5_000 + b"]}", 400, "the body is no JSON"),
        (b"[]", 400, "the body is no JSON object"),
        (b"{}", 400, 'expected either "instances" or "inputs"'),
        (b'{"instances": {}}', 400, '"instances" is not a list'),
        (b'{"instances": []}', 400, "there are no instances"),
        (b'{"inputs": {}}', 400, "there are no instances"),
        (b'{"inputs": {"carrier": ["UA"], "distance": [1, 2]}}', 400, "features of different length: 'carrier' has 1"),
        (b'{"inputs": {"carrier": "UA"}}', 400, "feature 'carrier': expected a list of values"),
        (b'{"instances": [{}], "signature_name": "nix"}', 400, "no signature 'nix'; the model has serving_default"),
        (b'{"instances": [{}], "signature_name": []}', 400, "no signature '[]'; the model has serving_default"),
        (b'{"instances": [{}], "signature_name": ""}', 400, "instances[0]: feature 'carrier' is missing"),
        (json.dumps({"instances": ROWS * 7}).encode(), 413, "21 instances; at most 20 in a request"),
        (b" " * 10_001, 413, "the body is larger than 10,000 bytes"),
    ],
)
def test_a_bad_body_is_refused_with_what_was_expected(client, body, status, message):
    answer = client.post(PREDICT, content=body)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/v1/models/trains:predict", 404, "no model 'trains'; this server has 'flights'"),
        ("POST", "/v1/models/flights/versions/6:predict", 404, "version '6' is not served; 7 is"),
        ("GET", "/v1/models/flights/versions/six", 404, "version 'six' is not served; 7 is"),
        ("GET", "/nowhere", 404, "nothing is at /nowhere; GET /openapi.json describes the predict call"),
        ("POST", "/metrics", 405, "POST is not answered at /metrics; use GET, HEAD"),
        ("POST", "/v1/models/flights:guess", 404, "no call :guess; there is POST /v1/models/flights:predict"),
    ],
)
def test_what_is_not_there_is_said(client, method, path, status, message):
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["error"]) == (status, message)


@pytest.mark.parametrize("path", [PREDICT, "/v1/models/flights/versions/7:predict"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_predict_by_another_method_is_told_to_post_an_example_that_is_answered(client, method, path):
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"
    assert answer.json()["error"] == f"{method} is not answered here; use POST with a body such as the example"
    assert set(answer.json()["example"]["instances"][0]) == set(ROWS[0])
    assert client.post(path, json=answer.json()["example"]).status_code == 200


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/models/flights:classify", ":classify is left out; ask the same with POST /v1/models/flights:predict"),
        (
            "/v1/models/flights/versions/7:regress",
            ":regress is left out; ask the same with POST /v1/models/flights/versions/7:predict",
        ),
        *(
            (
                f"/v1/models/flights/labels/stable{ending}",
                "labels of versions are left out; ask /v1/models/flights or /v1/models/flights/versions/NUMBER",
            )
            for ending in ("", ":predict", "/metadata")
        ),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_tensorflow_serving_has_and_this_server_has_not_is_said(client, method, path, message):
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()) == (501, {"error": message})
