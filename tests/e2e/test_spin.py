"""`python -m pipeline spin STEP` beside a run, as a user calls it after an edit."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.run import Run, call, edit, with_few_features

pytestmark = pytest.mark.slow
SECONDS = 600  # only a process that hangs takes as long
NOTEBOOK = """
import pipeline

table = pipeline.spin("Evaluator", config="configs/small.py", rows=None)
first = table.iloc[0]
print(table.index[0], f"{first['AUC']:.4f}", first["examples"])
"""


@pytest.fixture(scope="module")
def mine(clone: Path, first: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of its own with a run, to be edited."""
    assert first.code == 0, first.text
    return with_few_features(Path(shutil.copytree(clone, tmp_path_factory.mktemp("spin") / "clone", symlinks=True)))


def spin(clone: Path, *arguments: str) -> Run:
    return call(clone, "-m", "pipeline", "spin", *arguments, "--config", "configs/small.py")


def state(clone: Path) -> dict[str, tuple[int, int]]:
    """Every file of the runs, with its size and time."""
    files = [path for path in (clone / "output").rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def test_each_step_shows_what_it_makes_and_keeps_nothing(mine):
    before = state(mine)
    trained = spin(mine, "Trainer", "--rows", "600")
    assert trained.code == 0, trained.text
    assert re.search(r"^  Trainer +ran +[\d.]+ s  600 rows$", trained.text, re.MULTILINE)
    # On a slow machine a log has lines about the running step, too.
    lines = [line for line in trained.text.strip().splitlines() if not re.search(r" running +[\d.]+ s", line)]
    values, header, first, *_, last = lines[1:]
    assert re.match("  with the values of the last search, whatever build_model's defaults: .*dropout=0", values)
    assert header.split() == ["step", "epoch", "loss", "learning_rate", "gradient_norm", "auc", "val_auc", "val_loss"]
    assert first.split()[:2] == ["1", "1"]
    assert len(last.split()) == len(header.split())

    judged = call(mine, "-c", NOTEBOOK)
    assert judged.code == 0, judged.text
    slice_, auc, examples = judged.text.split()
    report = next((mine / "output/flights/runs").glob("*/report.html")).read_text()
    assert slice_ == "overall"
    assert auc in report  # of all rows, the AUC of the run
    assert float(examples) == sum(pq.read_metadata(file).num_rows for file in (mine / "data/flights/test").iterdir())
    assert state(mine) == before


def test_a_sample_larger_than_the_data_is_all_of_them(mine):
    judged = spin(mine, "Evaluator", "--rows", "1000000")
    assert judged.code == 0, judged.text
    rows = sum(pq.read_metadata(file).num_rows for file in (mine / "data/flights").glob("*/*.parquet"))
    assert re.search(rf"^  Evaluator +ran +[\d.]+ s  {rows:,} rows$", judged.text, re.MULTILINE), judged.text


def test_a_step_that_no_run_has_the_inputs_of_is_a_sentence(mine, tmp_path):
    nothing = spin(mine, "Transform", "--output", str(tmp_path))
    assert nothing.code == 1
    assert f"there is no run below {tmp_path} yet, of which Transform could take its inputs" in nothing.text
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


def test_an_edit_is_answered_by_the_process_that_watches(mine, watching):
    assert watching.stdout

    def read_until(pattern: str) -> str:
        text = ""
        for line in watching.stdout:
            text += line
            if re.search(pattern, line):
                return text
        raise AssertionError(text)

    text = read_until("^ weekday ")
    assert re.search(r"^  Transform +ran +[\d.]+ s  500 rows$", text, re.MULTILINE)
    assert " shouted " not in text
    before = state(mine)

    module = mine / "models/flights.py"
    edit(
        module,
        '    outputs["numbers"] =',
        '    outputs["a_mistake"] = inputs["no such column"]\n    outputs["numbers"] =',
    )
    text = read_until("^  log ")
    assert "Transform failed: KeyError: 'no such column'" in text
    assert re.search(r"at   models/flights.py, line \d+, in preprocessing_fn: outputs\[\"a_mistake\"\]", text)

    edit(module, 'outputs["a_mistake"] = inputs["no such column"]', 'outputs["shouted"] = features["temp"] * 2')
    text = read_until("^ weekday ")
    (row,) = re.findall(r"^ shouted +(.*)$", text, re.MULTILINE)
    assert row.split()[:2] == ["float", "1"]
    assert state(mine) == before
    watching.send_signal(signal.SIGINT)
    assert watching.wait(SECONDS) == 130
