"""TensorFlow Serving's gRPC calls, asked with its own stubs from another process, as its example clients do."""

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from pipeline.model.signatures import read_signatures
from pipeline.model.versions import Versions
from tests.serving.command import COMMAND, ROOT, ask, serve
from tests.serving.conftest import ROWS, expected, push

pytestmark = pytest.mark.slow
TOKEN = "a token of sixteen letters"
DTYPES = {"carrier": tf.string, "distance": tf.int64, "seats": tf.float64, "temp": tf.float32}


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    http: str
    grpc: str
    folder: Path
    log: Path

    @property
    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.grpc)

    def predict(self, request: Any, **how: Any) -> Any:
        with self.channel as channel:
            return prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, 300.0, **how)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    versions, log = Versions(tmp_path_factory.mktemp("serving") / "flights"), tmp_path_factory.mktemp("log")
    folder = push(versions, 7, bias=0)
    with running("--model", versions.folder, "--request-log", log, "--max-instances", "20") as (process, http, port):
        yield Server(process, http, port, folder, log)


@contextlib.contextmanager
def running(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run a server in a separate process; yield the process and its HTTP and gRPC addresses."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--grpc-port", "0", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process:
        http, by_grpc = process.stderr.readline(), process.stderr.readline()
        assert "gRPC calls are answered at" in by_grpc, http + by_grpc
        yield process, http.split(" answers at ")[1].split("/v1/")[0], by_grpc.split()[-1]
        process.kill()


def request_of(rows: list[dict], **changed: Any) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "flights"
    request.model_spec.signature_name = "serving_default"
    for name, dtype in DTYPES.items():
        values = [np.nan if row[name] is None else row[name] for row in rows]
        request.inputs[name].CopyFrom(tf.make_tensor_proto(changed.get(name, values), dtype))
    return request


def test_rows_get_the_answers_that_http_gives(server):
    by_http = ask(f"{server.http}/v1/models/flights:predict", {"inputs": {n: [r[n] for r in ROWS] for n in ROWS[0]}})
    response = server.predict(request_of(ROWS))
    # Where TensorFlow Serving writes them, and its examples read.
    assert list(response.outputs["probability"].float_val) == pytest.approx(by_http["outputs"]["probability"])
    assert [text.decode() for text in response.outputs["label"].string_val] == by_http["outputs"]["label"]
    assert tf.make_ndarray(response.outputs["probability"]).tolist() == pytest.approx([expected(row) for row in ROWS])
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("flights", 7, "serving_default")


def test_a_client_that_waits_for_several_answers_and_wants_one_output_gets_it(server):
    requests = [request_of([row]) for row in ROWS * 10]
    for request in requests:
        request.output_filter.append("probability")
    with server.channel as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        answers = [future.result() for future in [stub.Predict.future(request, 300.0) for request in requests]]
    assert {tuple(answer.outputs) for answer in answers} == {("probability",)}
    assert [answer.outputs["probability"].float_val[0] for answer in answers] == pytest.approx(
        [expected(row) for row in ROWS * 10]
    )


def test_the_log_and_the_metrics_count_them_as_requests_by_http(server):
    rows = [*ROWS[:2], {**ROWS[2], "temp": 39.1}]
    server.predict(request_of(rows))
    ask(f"{server.http}/v1/models/flights:predict", {"instances": rows})
    (file,) = server.log.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    by_grpc, by_http = lines[-6:-3], lines[-3:]
    assert [{**line, "time": None} for line in by_grpc] == [{**line, "time": None} for line in by_http]
    assert by_grpc[2]["instance"]["temp"] == 39.1, "a float32 with its own digits"
    with urllib.request.urlopen(f"{server.http}/metrics", timeout=300) as answer:
        metrics = answer.read().decode()
    assert 'serve_requests_total{status="OK"}' in metrics
    assert 'serve_requests_total{status="200"}' in metrics


def test_the_metadata_are_the_signatures_of_the_saved_model(server):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "flights"
    with server.channel as channel:
        response = prediction_service_pb2_grpc.PredictionServiceStub(channel).GetModelMetadata(request, 300.0)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert signatures.signature_def["serving_default"] == read_signatures(str(server.folder))["serving_default"]
    assert response.model_spec.version.value == 7


def test_the_status_is_available(server):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "flights"
    with server.channel as channel:
        (version,) = (
            model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, 300.0).model_version_status
        )
    assert (version.version, version.state) == (7, get_model_status_pb2.ModelVersionStatus.AVAILABLE)


def tensor(dtype: int, *shape: int, **values: Any) -> Any:
    made = tf.make_tensor_proto(0.0)
    made.Clear()
    made.dtype = dtype
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    for name, value in values.items():
        getattr(made, name).extend(value) if isinstance(value, list) else setattr(made, name, value)
    return made


def change(name: str, to: Any) -> Any:
    return lambda request: request.inputs[name].CopyFrom(to)


INT64, FLOAT, DOUBLE, STRING = types_pb2.DT_INT64, types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_STRING
WRONG = {
    "another type": (
        change("temp", tensor(DOUBLE, 3, double_val=[1, 2, 3])),
        "expected a tensor of DT_FLOAT, got DT_D",
    ),
    "no type": (change("temp", tensor(99, 3)), "expected a tensor of DT_FLOAT, got 99"),
    "another shape": (
        change("temp", tensor(FLOAT, 3, 1, float_val=[1, 2, 3])),
        r"expected the shape \[rows\], got \[3, 1\]",
    ),
    "a size below 0": (change("temp", tensor(FLOAT, -3)), r"expected the shape \[rows\], got \[-3\]"),
    "fewer rows": (
        change("temp", tensor(FLOAT, 2, float_val=[1, 2])),
        "features of different length: 'temp' has 2 values, 'seats' has 3",
    ),
    "one value for a billion rows": (change("temp", tensor(FLOAT, 1 << 30, float_val=[1])), "over 5,242,880 values"),
    "one text for all rows": (change("carrier", tensor(STRING, 3, string_val=[b"UA"])), "expected 3 texts, got 1"),
    "bytes of other values": (
        change("temp", tensor(FLOAT, 3, tensor_content=b"12345")),
        "'temp': its values do not match its shape",
    ),
    "a number that is none": (
        change("temp", tensor(FLOAT, 3, float_val=[1, float("inf"), 2])),
        r"instances\[1\]: feature 'temp': expected a number, or null where it is missing, got inf",
    ),
    "half a seat": (
        change("seats", tensor(DOUBLE, 3, double_val=[1, 2, 0.5])),
        r"instances\[2\]: feature 'seats': .*0.5",
    ),
    "an unknown input": (change("wind", tensor(FLOAT, 3)), "no input 'wind'; the signature has carrier, distance"),
    "a missing input": (lambda request: request.inputs.pop("seats"), "there is no input seats; where a row has no"),
    "an unknown output": (
        lambda request: request.output_filter.append("class"),
        "no output 'class'; the signature has",
    ),
    "another signature": (
        lambda request: setattr(request.model_spec, "signature_name", "classify"),
        "no signature 'classify'; the model has serving_default",
    ),
}


@pytest.mark.parametrize(
    "written",
    [
        {"float_val": [70.0, 70.0, 70.0]},
        {"float_val": [70.0]},
        {"tensor_content": np.float32([70, 70, 70]).tobytes()},
        {"tensor_content": np.float32([70, 70, 70]).tobytes(), "float_val": [1.0, 2.0, 3.0]},
    ],
    ids=["values", "one for all", "bytes", "bytes before values"],
)
def test_values_may_be_written_in_every_way_that_tensorflow_reads(server, written):
    request = request_of(ROWS[:3])
    request.inputs["temp"].CopyFrom(tensor(FLOAT, 3, **written))
    answers = server.predict(request).outputs["probability"].float_val
    assert list(answers) == pytest.approx([expected({**row, "temp": 70.0}) for row in ROWS[:3]])


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_request_is_an_invalid_argument_that_says_what_is_wrong(server, wrong):
    make, message = WRONG[wrong]
    request = request_of(ROWS)
    make(request)
    with pytest.raises(grpc.RpcError, match=message) as refused:
        server.predict(request)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert len(server.predict(request_of(ROWS)).outputs["label"].string_val) == 3


@pytest.mark.parametrize("rows", [0, 21])
def test_no_rows_and_too_many_are_invalid_arguments(server, rows):
    with pytest.raises(grpc.RpcError, match="instances") as refused:
        server.predict(request_of(ROWS[:1] * rows))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_another_model_or_version_is_not_found_and_a_label_not_implemented(server):
    for change_spec, code in (
        ({"name": "taxi"}, grpc.StatusCode.NOT_FOUND),
        ({"version": {"value": 8}}, grpc.StatusCode.NOT_FOUND),
        ({"version_label": "canary"}, grpc.StatusCode.UNIMPLEMENTED),
    ):
        request = request_of(ROWS)
        request.model_spec.MergeFrom(type(request.model_spec)(**change_spec))
        with pytest.raises(grpc.RpcError) as refused:
            server.predict(request)
        assert refused.value.code() == code
    request = request_of(ROWS)
    request.model_spec.version.value = 7
    assert server.predict(request).model_spec.version.value == 7


def test_a_request_that_is_too_large_is_refused_by_its_size(server):
    request = request_of(ROWS, carrier=["x" * (5 << 20)] * 3)
    with pytest.raises(grpc.RpcError) as refused:
        server.predict(request)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_calls_of_estimators_say_what_to_call_instead(server):
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "flights"
    with server.channel as channel, pytest.raises(grpc.RpcError, match="ask the same with Predict") as refused:
        prediction_service_pb2_grpc.PredictionServiceStub(channel).Classify(request, 300.0)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_taken_port_is_said_before_anything_is_loaded(server):
    port = server.grpc.rpartition(":")[2]
    second = serve("--model", server.folder, "--port", "0", "--grpc-port", port)
    assert second.returncode == 1
    assert second.stderr.startswith(f"pipeline serve: cannot listen on 127.0.0.1, port {port}: ")
    assert "choose another with --grpc-port" in second.stderr


def test_with_a_token_nobody_else_is_answered_and_told_to_end_it_ends_with_0(server):
    with running("--model", server.folder, PIPELINE_SERVE_TOKEN=TOKEN) as (process, _, address):
        guarded = Server(process, "", address, server.folder, server.log)
        for metadata in ((), (("authorization", "Bearer another token of letters"),)):
            with pytest.raises(grpc.RpcError, match="expected the metadata authorization: Bearer") as refused:
                guarded.predict(request_of(ROWS), metadata=metadata)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        request = request_of(ROWS)
        request.model_spec.name = server.folder.parent.name
        assert guarded.predict(request, metadata=(("authorization", f"Bearer {TOKEN}"),)).outputs
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
