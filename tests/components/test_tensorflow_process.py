"""The process that is started ahead of the check of a model."""

import base64
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf

from pipeline.components import model_check, tensorflow_process
from pipeline.components.tensorflow_process import started_ahead

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core no process is started ahead"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Export a model that doubles its only column."""
    folder = tmp_path_factory.mktemp("model")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples):
        return {"prediction": 2 * tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]}

    tf.saved_model.save(tf.Module(), str(folder), signatures={"serving_default": serve})
    return folder


def report_of(model: Path, timeout: float = 300, row: bytes | None = None) -> dict[str, Any]:
    value = tf.train.Feature(float_list=tf.train.FloatList(value=[3.0]))
    row = row or tf.train.Example(features=tf.train.Features(feature={"x": value})).SerializeToString()
    settings = {"label": "y", "classes": [], "threshold": 0.5, "tolerance": 1e-3, "timeout": timeout}
    rows = {"examples": [base64.b64encode(row).decode()], "training": None, "optional": [], "text": [], "columns": {}}
    return model_check.run_probe({**settings, **rows, "answer": "prediction", "model": str(model)})


def ahead() -> psutil.Process:
    (process,) = [
        child for child in psutil.Process().children() if tensorflow_process.__file__ in " ".join(child.cmdline())
    ]
    return process


def test_it_answers_the_first_request_and_a_new_one_the_next(model, caplog):
    caplog.set_level("INFO", "pipeline")
    with started_ahead():
        process = ahead()
        first = report_of(model)
        assert not caplog.records  # only the output of a new process is logged
        process.wait(300)
        second = report_of(model)
        assert "Output of the process that checked the model" in caplog.text
    assert first["problems"] == second["problems"] == []
    assert first["rows"] == second["rows"] == [{"instance": {"x": 3.0}, "answer": {"prediction": [6.0]}}]


def test_where_it_has_ended_a_new_one_is_asked(model):
    with started_ahead():
        process = ahead()
        process.send_signal(signal.SIGKILL)
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert report_of(model)["problems"] == []


def test_a_long_request_arrives_where_beam_has_set_a_default_timeout(model):
    # apache_beam.internal.gcp.auth does: a socket of then answers "would block" to more than its buffer holds
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes(4 << 20)]))
    example = tf.train.Example(features=tf.train.Features(feature={"unused": value}))
    example.features.feature["x"].float_list.value.append(3.0)
    default = socket.getdefaulttimeout()
    socket.setdefaulttimeout(60)
    try:
        report = report_of(model, row=example.SerializeToString())
    finally:
        socket.setdefaulttimeout(default)
    assert report["problems"] == []


def test_one_that_does_not_answer_in_time_is_ended(model):
    with started_ahead():
        process = ahead()
        report = report_of(model, timeout=0.01)
        assert report["problems"] == ["the exported model has not answered within 0.01 seconds"]
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def test_one_that_nobody_asks_ends_with_the_run():
    with started_ahead():
        process = ahead()
    assert not process.is_running()
    assert tensorflow_process.take_ahead() is None


def test_where_the_new_one_ends_without_an_answer_too_its_last_words_are_the_reason(model):
    with started_ahead():
        report = report_of(model, row=b"no example")
    (problem,) = report["problems"]
    assert problem.startswith("the process that checks the exported model ended with code 1: ")
    assert "DecodeError" in problem
