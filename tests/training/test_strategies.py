"""One device, two mirrored ones and two workers learn the same, through the project's own module file."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.training.processes import Data, cluster, finish, logs, losses, run, start

pytestmark = pytest.mark.slow
# Without dropout, whose random numbers differ from replica to replica. A model small enough to be traced quickly.
VALUES = {"dropout": 0.0, "units": 64}
ONE = {
    "model": "flights",
    "settings": {"batch_size": 64, "epochs": 1},
    "hyperparameters": {**VALUES, "learning_rate": 0.01},
}
# Half the batch on each of two replicas; the learning rate doubles by itself.
HALF = {
    "model": "flights",
    "settings": {"batch_size": 32, "epochs": 1},
    "hyperparameters": {**VALUES, "learning_rate": 0.005},
}


def with_strategy(job: dict, name: str) -> dict:
    return {**job, "settings": {**job["settings"], "strategy": name}}


@pytest.fixture(scope="module")
def one_device(transformed: Data, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    folder = tmp_path_factory.mktemp("jobs") / "one"
    run(transformed, folder, **ONE)
    curve = losses(folder)
    assert len(curve) >= 50
    return curve


def answers(saved_model: Path) -> bool:
    """Return whether a new process that knows nothing of us gets probabilities from the model."""
    code = (
        "import sys, tensorflow as tf; answer = tf.saved_model.load(sys.argv[1]).signatures['serving_default'];"
        "specs = answer.structured_input_signature[1];"
        "rows = {n: tf.fill([2], '' if s.dtype == tf.string else tf.constant(1, s.dtype)) for n, s in specs.items()};"
        "p = answer(**rows)['probability'].numpy(); assert ((p > 0) & (p < 1)).all(), p"
    )
    return subprocess.run([sys.executable, "-c", code, str(saved_model)], check=False).returncode == 0


def test_two_mirrored_devices_learn_what_one_learns(transformed, one_device, tmp_path):
    folder = tmp_path / "mirrored"
    said = run(transformed, folder, devices=2, **with_strategy(HALF, "mirrored"))
    assert "Training mirrored on 2 CPUs: asked for." in said
    np.testing.assert_allclose(losses(folder)[:50], one_device[:50], atol=1e-4)
    assert answers(folder / "serving")


def test_two_workers_learn_what_one_device_learns_and_export_one_model(transformed, one_device, tmp_path):
    folders = [tmp_path / "chief", tmp_path / "worker"]
    job = with_strategy(HALF, "auto")
    workers = [
        start(transformed, folder, environment, **job) for folder, environment in zip(folders, cluster(2), strict=True)
    ]
    assert finish(*workers) == [0, 0], logs(folders[0]) + logs(folders[1])
    np.testing.assert_allclose(losses(folders[0])[:50], one_device[:50], atol=1e-4)
    assert answers(folders[0] / "serving")
    diagnosis = json.loads((folders[0] / "Trainer/model_run/7/diagnosis.json").read_text())
    assert diagnosis["seconds"]["summing gradients over the workers"] > 0
    # The second worker leaves no files: no model, no history, no TensorBoard files, no checkpoint.
    assert not [file for file in folders[1].rglob("*") if file.is_file()]


@pytest.mark.long
def test_workers_that_report_progress_at_different_times_train_on(transformed, tmp_path):
    job = {"settings": {"batch_size": 32, "epochs": 1, "strategy": "multi_worker", "steps_per_call": 1}}
    folders = [tmp_path / "often", tmp_path / "seldom"]
    workers = [
        start(transformed, folder, environment, clock=clock, **job)
        for folder, environment, clock in zip(folders, cluster(2), (1000, 0.001), strict=True)
    ]
    assert finish(*workers) == [0, 0], logs(folders[0]) + logs(folders[1])
    often, seldom = (logs(folder).count("epoch 1 of 1, step ") for folder in folders)
    assert often > 10
    assert seldom <= 1


@pytest.mark.long
def test_workers_that_stream_from_uneven_files_end_together(transformed, tmp_path):
    """Dealt out by file, the second worker would wait for an example for ever."""
    files = [file for pattern in transformed.train_files for file in tf.io.gfile.glob(pattern)]
    tf.io.gfile.copy(files[0], str(tmp_path / "all.gz"))
    tf.io.TFRecordWriter(str(tmp_path / "none.gz"), tf.io.TFRecordOptions(compression_type="GZIP")).close()
    data = replace(transformed, train_files=[f"{tmp_path}/*.gz"])
    job = {"settings": {"batch_size": 32, "epochs": 1, "strategy": "multi_worker", "cache": "none"}}
    folders = [tmp_path / "chief", tmp_path / "worker"]
    workers = [start(data, folder, environment, **job) for folder, environment in zip(folders, cluster(2), strict=True)]
    assert finish(*workers) == [0, 0], logs(folders[0]) + logs(folders[1])
    assert all("This worker reads 2 of 2 files" in logs(folder) for folder in folders)


@pytest.mark.long
def test_a_slow_worker_is_named_in_the_log_of_the_chief(transformed, tmp_path):
    job = {"settings": {"batch_size": 160, "epochs": 1, "strategy": "multi_worker"}}  # ten steps
    folders = [tmp_path / "chief", tmp_path / "worker"]
    workers = [
        start(transformed, folder, environment, slow=slow, **job)
        for folder, environment, slow in zip(folders, cluster(2), (0.0, 1.5), strict=True)
    ]
    assert finish(*workers) == [0, 0], logs(folders[0]) + logs(folders[1])
    named = r"Worker 1 \(localhost:\d+\) is slow, and all others wait for it: its part of epoch 0 took \d+\.\d s"
    assert re.search(named, logs(folders[0]))
    assert "is slow" not in logs(folders[1])


@pytest.mark.long
def test_rows_of_tables_are_changed_on_two_devices_and_by_two_workers_as_on_one(transformed, tmp_path):
    def job(strategy: str, replicas: int) -> dict:
        settings = {"batch_size": 64 // replicas, "epochs": 1, "strategy": strategy, "clip_norm": 0.1}
        return {"model": "tables", "settings": settings, "hyperparameters": {"learning_rate": 0.05 / replicas}}

    run(transformed, tmp_path / "one", **job("one_device", 1))
    run(transformed, tmp_path / "mirrored", devices=2, **job("mirrored", 2))
    folders = [tmp_path / "chief", tmp_path / "worker"]
    workers = [
        start(transformed, folder, environment, **job("multi_worker", 2))
        for folder, environment in zip(folders, cluster(2), strict=True)
    ]
    assert finish(*workers) == [0, 0], logs(folders[0]) + logs(folders[1])
    one = losses(tmp_path / "one")
    assert one[-1] < one[0]
    np.testing.assert_allclose(losses(tmp_path / "mirrored"), one, atol=1e-5)
    np.testing.assert_allclose(losses(folders[0]), one, atol=1e-5)
    assert answers(tmp_path / "one/serving")


@pytest.mark.parametrize("kind", [pytest.param("sequential", marks=pytest.mark.long), "subclassed"])
def test_models_that_are_no_graph_of_layers_are_exported_too(transformed, tmp_path, kind):
    folder = tmp_path / kind
    run(transformed, folder, model=kind)
    assert answers(folder / "serving")
