"""Pipelines of images: digits, which comes with this repository, and one that pipeline new writes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.e2e.run import ROOT, Run, copy_repository

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this repository, with the script that makes the digits."""
    clone = copy_repository(tmp_path_factory.mktemp("clone"))
    shutil.copy(ROOT / "data/prepare_digits.py", clone / "data")
    return clone


def call(clone: Path, *command: str) -> Run:
    process = subprocess.run(
        [sys.executable, *command], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert process.returncode == 0, process.stdout
    return Run(process.returncode, process.stdout)


def answers(clone: Path, pushed: Run, files: list[Path]) -> list[str]:
    """Returns the classes that the pushed model answers for image files as they are."""
    signature = tf.saved_model.load(str(clone / pushed.pushed_to)).signatures["serving_default"]
    return [
        label.decode() for label in signature(image=tf.constant([file.read_bytes() for file in files]))["label"].numpy()
    ]


def test_digits_are_pushed_with_nearly_all_right_and_answer_png_files(clone):
    pushed = call(clone, "local_runner.py", "--pipeline", "digits")
    assert json.loads((clone / "output/digits/verdict.json").read_text())["metrics"]["accuracy"] > 0.98
    files = [sorted((clone / f"data/digits/{digit}").iterdir())[0] for digit in range(10)]
    given = answers(clone, pushed, files)
    assert sum(label == str(digit) for digit, label in enumerate(given)) >= 9
    again = call(clone, "local_runner.py", "--pipeline", "digits")
    assert not again.ran


def test_what_new_writes_for_a_folder_of_images_is_pushed(clone):
    for digit in (0, 1, 7):
        shutil.copytree(clone / f"data/digits/{digit}", clone / f"data/some/number {digit}")
    made = call(clone, "-m", "pipeline", "new", "some", "--images", "data/some")
    assert "  label     label: 3 classes, number 0" in made.text
    assert "  sizes     8 x 8 pixels, grey" in made.text
    config = clone / "configs/some.py"
    config.write_text(re.sub(r"epochs=\d+", "epochs=12", config.read_text()))
    pushed = call(clone, "local_runner.py", "--pipeline", "some")
    assert json.loads((clone / "output/some/verdict.json").read_text())["metrics"]["accuracy"] > 0.9
    files = [sorted((clone / f"data/some/number {digit}").iterdir())[5] for digit in (0, 1, 7)]
    assert "number 0" in answers(clone, pushed, files)
