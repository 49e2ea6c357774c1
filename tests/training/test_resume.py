"""A training that is killed goes on where it was, and ends as if nothing had happened."""

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.data.shard_files import write_records
from tests.training.processes import Data, cluster, finish, logs, losses, run, start, weights

pytestmark = pytest.mark.slow
JOB = {"settings": {"epochs": 3, "steps_per_call": 4, "checkpoint_steps": 8}}
SIGKILL = -9


@pytest.fixture(scope="module")
def uninterrupted(transformed: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs") / "uninterrupted"
    run(transformed, folder, **JOB)
    return folder


@pytest.mark.long
def test_killed_at_random_steps_it_ends_with_the_same_weights(transformed, uninterrupted, tmp_path):
    steps = len(losses(uninterrupted))
    kills = sorted(random.Random(4).sample(range(9, steps - 4), 3))
    folder = tmp_path / "killed"
    for execution, kill in enumerate(kills):
        process = start(transformed, folder, execution=execution, kill_at=kill, **JOB)
        assert finish(process) == [SIGKILL]
        assert not (folder / "serving").exists()
    said = run(transformed, folder, execution=len(kills), **JOB)
    assert "Going on at step" in said
    np.testing.assert_allclose(losses(folder, len(kills)), losses(uninterrupted), atol=1e-5)
    for ours, theirs in zip(weights(folder), weights(uninterrupted), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert (folder / "serving/saved_model.pb").exists()
    assert not list((folder / "Trainer/checkpoints").glob("*"))


def with_both_labels(data: Data, folder: Path) -> Data:
    """The data, with each eval row once as late and once as on time: no threshold has a precision above one half."""
    rows = []
    files = tf.io.gfile.glob(data.eval_files)
    for record in tf.data.TFRecordDataset(files, compression_type="GZIP").as_numpy_iterator():
        for label in (0, 1):
            example = tf.train.Example.FromString(record)
            example.features.feature["late"].int64_list.value[:] = [label]
            rows.append(example.SerializeToString())
    write_records(rows, str(folder / "eval.gz"), str(folder))
    return replace(data, eval_files=[str(folder / "eval.gz")])


def test_a_training_without_a_threshold_in_the_end_is_not_repeated_when_less_is_asked_for(transformed, tmp_path):
    transformed = with_both_labels(transformed, tmp_path)
    folder = tmp_path / "asked"
    impossible = {"threshold": {"precision": 1.0, "recall": None}, "epochs": 1}
    process = start(transformed, folder, settings={**impossible, "calibration": "sigmoid"})
    assert finish(process) == [1]
    assert "no threshold reaches a precision of 1 on the eval split" in logs(folder)
    said = run(transformed, folder, execution=1, settings={**impossible, "threshold": 0.5})
    assert "Going on at" in said
    assert (folder / "serving/saved_model.pb").exists()


def test_a_coverage_that_the_eval_split_is_too_small_for_is_refused_before_the_training(transformed, tmp_path):
    process = start(transformed, tmp_path / "covered", settings={"coverage": 0.9999})
    assert finish(process) == [1]
    assert re.search(
        r"coverage of 0.9999 needs 10,000 rows of the eval split, which has \d+: ask", logs(tmp_path / "covered")
    )
    assert not list((tmp_path / "covered").rglob("steps.csv"))


def test_a_worker_that_is_killed_ends_with_the_same_weights(transformed, tmp_path):
    """The one that is left ends too, as the machines' manager expects, and both are started again."""
    job = {"settings": {**JOB["settings"], "epochs": 1, "strategy": "multi_worker", "batch_size": 32}}

    def start_both(shared: Path, execution: int, **second) -> list:
        chief_at, worker_at = cluster(2)
        common = {"shared": str(shared), "execution": execution, **job}
        return [
            start(transformed, shared / "chief", chief_at, **common),
            start(transformed, shared / "worker", worker_at, **common, **second),
        ]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finish(*start_both(whole, 0)) == [0, 0], logs(whole / "chief")
    chief, worker = start_both(killed, 0, kill_at=37)
    assert finish(worker) == [SIGKILL], logs(killed / "worker")
    assert finish(chief) != [0]
    assert finish(*start_both(killed, 1)) == [0, 0], logs(killed / "chief")

    assert "Going on at step 32 of epoch 0" in logs(killed / "chief")
    assert "Going on at step 32 of epoch 0" in logs(killed / "worker")
    np.testing.assert_allclose(losses(killed, 1), losses(whole, 0), atol=1e-5)
    for ours, theirs in zip(weights(killed / "chief"), weights(whole / "chief"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert not list((killed / "Trainer/checkpoints").glob("*"))
