"""`python -m pipeline spin STEP` after a run, as a user calls it after an edit."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.cli.terminal import SOON
from tests.e2e.run import Run, call, edit, with_few_features

pytestmark = pytest.mark.slow
SECONDS = 600  # only a process that hangs takes as long


@pytest.fixture(scope="module")
def mine(clone: Path, first: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A separate clone with a run, to be edited."""
    assert first.code == 0, first.text
    return with_few_features(Path(shutil.copytree(clone, tmp_path_factory.mktemp("spin") / "clone", symlinks=True)))


def spin(clone: Path, *arguments: str) -> Run:
    return call(clone, "-m", "pipeline", "spin", *arguments, "--config", "configs/small.py")


def state(clone: Path) -> dict[str, tuple[int, int]]:
    """Every file of the runs except the logs of spin, with its size and time."""
    files = [path for path in (clone / "output").rglob("*") if path.is_file() and not path.match("logs/spin-*.log")]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def test_training_shows_losses_and_metrics_and_keeps_nothing(mine):
    before = state(mine)
    trained = spin(mine, "Trainer", "--rows", "600")
    assert trained.code == 0, trained.text
    assert re.search(r"^  Trainer +ran +[\d.]+ s  60[01] rows$", trained.text, re.MULTILINE), trained.text
    # On a slow machine, the output also has lines about the running step.
    lines = [line for line in trained.text.strip().splitlines() if not re.search(r" running +[\d.]+ s", line)]
    header, first, *_, last = lines[1:]
    assert header.split() == ["step", "epoch", "loss", "learning_rate", "gradient_norm", "auc", "val_auc", "val_loss"]
    assert first.split()[:2] == ["1", "1"]
    assert len(last.split()) == len(header.split())
    assert state(mine) == before


def test_sample_larger_than_the_data_has_all_rows(mine):
    trained = spin(mine, "Trainer", "--rows", "1000000")
    assert trained.code == 0, trained.text
    files = [file for split in ("train", "eval") for file in (mine / "data/flights" / split).glob("*.parquet")]
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    assert re.search(rf"^  Trainer +ran +[\d.]+ s  {rows:,} rows$", trained.text, re.MULTILINE), trained.text


def test_step_without_inputs_fails_with_one_line(mine, tmp_path):
    nothing = spin(mine, "Transform", "--output", str(tmp_path))
    assert nothing.code == 1
    assert f"no run below {tmp_path} has it. Run the pipeline first" in nothing.text
    assert "Traceback" not in nothing.text


@pytest.fixture
def watching(mine: Path) -> Iterator[subprocess.Popen]:
    command = ["-m", "pipeline", "spin", "Transform", "--rows", "500", "--watch", "--config", "configs/small.py"]
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=mine,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.STDOUT,
    )
    with process:
        yield process
        process.kill()


def test_watching_process_answers_each_edit_and_prints_nothing_while_it_waits(mine, watching):
    assert watching.stdout

    def read_until(pattern: str) -> str:
        text = ""
        for line in watching.stdout:
            text += line
            if re.search(pattern, line):
                return text
        raise AssertionError(text)

    text = read_until("^weekday ")
    assert re.search(r"^  Transform +ran +[\d.]+ s  (499|50[01]) rows$", text, re.MULTILINE)
    assert "shouted " not in text
    before = state(mine)
    time.sleep(SOON + 1)

    module = mine / "models/flights.py"
    edit(
        module,
        '    outputs["numbers"] =',
        '    outputs["a_mistake"] = inputs["no such column"]\n    outputs["numbers"] =',
    )
    text = read_until("^  log ")
    running = [line for line in text.splitlines() if " running " in line]
    assert all(line.startswith("  Transform ") for line in running), text
    assert "Transform failed: KeyError: 'no such column'" in text
    assert re.search(r"at   models/flights.py, line \d+, in preprocessing_fn: outputs\[\"a_mistake\"\]", text)

    edit(module, 'outputs["a_mistake"] = inputs["no such column"]', 'outputs["shouted"] = features["temp"] * 2')
    text = read_until("^weekday ")
    (row,) = re.findall(r"^shouted +(.*)$", text, re.MULTILINE)
    assert row.split()[:2] == ["float32", "1"]
    assert state(mine) == before
    watching.send_signal(signal.SIGINT)
    assert watching.wait(SECONDS) == 130
