"""Small models that answer in a way one can compute, and know their version."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from starlette.testclient import TestClient

from pipeline.model.export_format import INPUTS
from pipeline.model.versions import Versions
from pipeline.serving.answering import Answering
from pipeline.serving.app import create_app
from pipeline.serving.bodies import Limits
from pipeline.serving.current import Current
from pipeline.serving.metrics import Metrics
from pipeline.serving.request_log import RequestLog
from pipeline.training.explanations import Explainer

DESCRIBED = {
    "carrier": {"type": "text", "required": True},
    "distance": {"type": "integers", "required": True},
    "seats": {"type": "integers", "required": False},
    "temp": {"type": "floats", "required": False},
}
PREDICT = "/v1/models/flights:predict"
LIMITS = Limits(body_bytes=10_000, instances=20, rows_waiting=1_000)
ROWS = [
    {"carrier": "UA", "distance": 1400, "seats": 150, "temp": 39.5},
    {"carrier": "Zürich", "distance": 0, "seats": None, "temp": None},
    {"carrier": "B6", "distance": 2_000, "seats": 0, "temp": -4.0},
]


def expected(row: dict, bias: int = 0) -> float:
    """The answer of a small model, as its export computes it."""
    known = [row[name] for name in ("seats", "temp") if row.get(name) is not None]
    return bias + row["distance"] / 1_000 + sum(known) / 100 + len(row["carrier"].encode()) / 10


def save(folder: Path, bias: float = 0, *, explains: bool = False, foreign: bool = False) -> Path:
    """Writes a small model, whose answers tell ``bias``.

    They may be explained, from ``ROWS`` on; or by a foreign signature of that name, which answers as without it.
    """
    server = tf.Module()

    @tf.function(
        input_signature=[
            {
                "carrier": tf.TensorSpec([None], tf.string, name="carrier"),
                "distance": tf.TensorSpec([None], tf.int64, name="distance"),
                "seats": tf.TensorSpec([None], tf.float64, name="seats"),
                "temp": tf.TensorSpec([None], tf.float32, name="temp"),
            }
        ]
    )
    def rows(given):
        numbers = [tf.cast(given[name], tf.float64) for name in ("seats", "temp")]
        known = tf.add_n([tf.where(tf.math.is_nan(number), tf.zeros_like(number), number) for number in numbers])
        length = tf.cast(tf.strings.length(given["carrier"]), tf.float64)
        answer = bias + tf.cast(given["distance"], tf.float64) / 1_000 + known / 100 + length / 10
        return {
            "probability": tf.cast(answer, tf.float32),
            "label": tf.where(answer > 1, "late", "on time"),
        }

    signatures = {"serving_default": rows} | ({"explain": rows} if foreign else {})
    if explains:
        missing = {"carrier": "", "distance": None, "seats": np.nan, "temp": np.nan}
        (given,) = rows.input_signature
        background = {
            name: tf.constant([missing[name] if row[name] is None else row[name] for row in ROWS], spec.dtype)
            for name, spec in given.items()
        }
        server.explainer = Explainer(rows, "probability", background, {name: name for name in given}, given)
        signatures["explain"] = tf.function(server.explainer, input_signature=rows.input_signature, autograph=False)
    tf.saved_model.save(server, str(folder), signatures=signatures)
    (folder / INPUTS).parent.mkdir(exist_ok=True)
    (folder / INPUTS).write_text(json.dumps(DESCRIBED))
    return folder


def push(versions: Versions, number: int, bias: float, keep: int = 5) -> Path:
    """Pushes a small model."""
    with versions.staging() as staging:
        return versions.publish(save(staging / str(number), bias), number, {"run": f"of {number}"}, keep)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel in no folder of versions."""
    return save(tmp_path_factory.mktemp("small") / "model")


def client_of(versions: Versions, request_log: RequestLog | None = None) -> TestClient:
    metrics = Metrics()
    current = Current(versions, "flights", metrics, LIMITS.rows_waiting)
    current.start()
    vertex = "/v1/endpoints/1/deployedModels/2"
    routes = {"health_route": vertex, "predict_route": f"{vertex}:predict"}
    app = create_app(Answering(current, metrics, LIMITS, request_log), look_every=0.05, **routes)
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    versions = Versions(tmp_path_factory.mktemp("serving") / "flights")
    push(versions, 7, bias=0)
    with client_of(versions) as client:
        yield client
