"""Pipelines of images: digits, which comes with this repository, and one that pipeline new writes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipeline.data.image_checks import facts_of
from pipeline.settings.image_data import Images
from pipeline.training.export import PREDICTIONS
from tests.e2e.run import ROOT, Run, call, copy_repository
from tests.training.processes import Data, finish, run, start, weights

pytestmark = pytest.mark.slow
SIGKILL = -9
SURE = """
from dataclasses import replace

CONFIG = replace(
    CONFIG,
    evaluation=replace(CONFIG.evaluation, coverage=0.9),
    training=replace(CONFIG.training, calibration="temperature"),
)
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this repository, with the script that makes the digits."""
    clone = copy_repository(tmp_path_factory.mktemp("clone"))
    shutil.copy(ROOT / "data/prepare_digits.py", clone / "data")
    with (clone / "configs/digits.py").open("a") as config:
        config.write(SURE)
    return clone


@pytest.fixture(scope="module")
def digits(clone: Path) -> Run:
    """The first run of the digits."""
    return finished(clone, "local_runner.py", "--pipeline", "digits")


def finished(clone: Path, *command: str) -> Run:
    done = call(clone, *command)
    assert done.code == 0, done.text
    return done


def answers(clone: Path, pushed: Run, files: list[Path]) -> list[str]:
    """Returns the classes that the pushed model answers for image files as they are."""
    signature = tf.saved_model.load(str(clone / pushed.pushed_to)).signatures["serving_default"]
    return [
        label.decode() for label in signature(image=tf.constant([file.read_bytes() for file in files]))["label"].numpy()
    ]


def test_digits_are_pushed_with_nearly_all_right_and_answer_png_files(clone, digits):
    assert json.loads((clone / "output/digits/verdict.json").read_text())["metrics"]["accuracy"] > 0.98
    files = [sorted((clone / f"data/digits/{digit}").iterdir())[0] for digit in range(10)]
    given = answers(clone, digits, files)
    assert sum(label == str(digit) for digit, label in enumerate(given)) >= 9
    again = finished(clone, "local_runner.py", "--pipeline", "digits")
    assert not again.ran


def test_sets_of_digits_hold_the_right_one_as_often_as_is_said(clone, digits):
    (examples,) = (clone / "output/digits/artifacts/ExampleGen/examples").iterdir()
    files = sorted(str(file) for file in (examples / "Split-test").iterdir())
    records = [record.numpy() for record in tf.data.TFRecordDataset(files, "GZIP")]
    rows = [tf.train.Example.FromString(record).features.feature for record in records]
    labels = np.array([row["digit"].int64_list.value[0] for row in rows])
    images = tf.constant([row["image"].bytes_list.value[0] for row in rows])
    served = tf.saved_model.load(str(clone / digits.pushed_to)).signatures["serving_default"](image=images)
    within = served["label_set"].numpy()
    assert within.shape == (len(rows), 10)
    share, size = 100 * within[np.arange(len(rows)), labels].mean(), within.sum(axis=1).mean()
    assert f"note: sets for 90 % of the rows: {share:.1f} % reached on test" in digits.text
    assert f"), {size:.3g} classes on average" in digits.text
    assert "note: probabilities calibrated (temperature, a slope of " in digits.text
    assert share > 85


@pytest.mark.long
def test_requests_with_other_answers_than_the_test_split_s_cross_a_limit(clone, digits, tmp_path):
    def monitored(files: list[Path]) -> subprocess.CompletedProcess[str]:
        known = [facts_of(file.read_bytes(), Images()) for file in files]
        signature = tf.saved_model.load(str(clone / digits.pushed_to)).signatures["serving_default"]
        answered = signature(image=tf.constant([file.read_bytes() for file in files]))["probabilities"].numpy()
        log = tmp_path / f"{len(files)}.jsonl"
        about = {"time": "now", "version": int(digits.pushed_to.name)}
        with log.open("w") as lines:
            for facts, probabilities in zip(known, answered.tolist(), strict=True):
                instance = {f"image_{name}": getattr(facts, name) for name in ("format", "width", "height")}
                instance["image_brightness"] = facts.brightness
                entry = {**about, "instance": instance, "prediction": {"probabilities": probabilities}}
                lines.write(json.dumps(entry) + "\n")
        command = [sys.executable, "-m", "pipeline", "monitor", "--pipeline", "digits", "--min-rows", "100"]
        return subprocess.run([*command, "--log", str(log)], cwd=clone, capture_output=True, text=True, check=False)

    files = sorted((clone / "data/digits").glob("*/*.png"))
    same = monitored(files)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "predictions" not in same.stdout
    sevens = monitored([file for file in files if file.parent.name == "7"])
    assert sevens.returncode == 4, sevens.stdout + sevens.stderr
    assert "predictions in serving: L-infinity distance 0." in sevens.stdout
    assert "from those for the test split (7: 9" in sevens.stdout or "(7: 100" in sevens.stdout


def test_training_and_serving_make_the_same_pixels_of_an_image(clone, digits):
    model = tf.saved_model.load(str(clone / digits.pushed_to))
    (run,) = (clone / "output/digits/artifacts/Trainer/model_run").iterdir()
    answered = np.fromfile(run / PREDICTIONS, np.float32).reshape(-1, 10)
    (transformed,) = (clone / "output/digits/artifacts/Transform/transformed_examples").glob("*/Split-eval")
    records = tf.data.TFRecordDataset([str(file) for file in sorted(transformed.iterdir())], "GZIP")
    images = [tf.train.Example.FromString(record.numpy()).features.feature["image"] for record in records]
    served = model.signatures["serving_default"](image=tf.constant([one.bytes_list.value[0] for one in images]))
    np.testing.assert_allclose(served["probabilities"], answered, atol=1e-6)


@pytest.mark.long
def test_a_training_killed_in_the_second_epoch_ends_with_the_same_weights(clone, digits, tmp_path):
    transform = clone / "output/digits/artifacts/Transform"
    (examples,), (graph,) = (list((transform / name).iterdir()) for name in ("transformed_examples", "transform_graph"))
    data = Data([f"{examples}/Split-train/*"], [f"{examples}/Split-eval/*"], str(graph))
    settings = {"label": "digit", "objective": "accuracy", "classes": list("0123456789"), "epochs": 3, "batch_size": 32}
    job = {"model": "digits", "settings": {**settings, "steps_per_call": 4, "checkpoint_steps": 8}}
    run(data, tmp_path / "whole", **job)
    process = start(data, tmp_path / "killed", kill_at=45, execution=0, **job)
    assert finish(process) == [SIGKILL]
    assert "Going on at step 40 of epoch 1" in run(data, tmp_path / "killed", execution=1, **job)
    for ours, theirs in zip(weights(tmp_path / "killed"), weights(tmp_path / "whole"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.long
def test_what_new_writes_for_a_folder_of_images_is_pushed(clone):
    for digit in (0, 1, 7):
        shutil.copytree(clone / f"data/digits/{digit}", clone / f"data/some/number {digit}")
    made = finished(clone, "-m", "pipeline", "new", "some", "--images", "data/some")
    assert "  label     label: 3 classes, number 0" in made.text
    assert "  sizes     8 x 8 pixels, grey" in made.text
    config = clone / "configs/some.py"
    config.write_text(re.sub(r"epochs=\d+", "epochs=12", config.read_text()))
    pushed = finished(clone, "local_runner.py", "--pipeline", "some")
    assert json.loads((clone / "output/some/verdict.json").read_text())["metrics"]["accuracy"] > 0.9
    files = [sorted((clone / f"data/some/number {digit}").iterdir())[5] for digit in (0, 1, 7)]
    assert "number 0" in answers(clone, pushed, files)
