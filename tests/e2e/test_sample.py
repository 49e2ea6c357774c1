"""`local_runner.py --sample`, as a user calls it after an edit, beside a run on all rows."""

import json
import os
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.run import Run, run, runs, with_few_features

pytestmark = pytest.mark.slow
ROWS = 2_000


def contents(output: Path) -> dict[str, bytes]:
    """The files of the runs on all rows that a user sees: pushed models, verdict and reports."""
    files = [*output.glob("serving/**/*"), *output.glob("runs/**/*"), output / "verdict.json"]
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_a_sample_runs_in_its_own_folder_and_leaves_the_real_one_alone(clone: Path, first: Run, tmp_path: Path):
    assert first.code == 0, first.text
    mine = with_few_features(Path(shutil.copytree(clone, tmp_path / "clone", symlinks=True)))
    output = mine / "output/flights"
    before = contents(output)
    all_rows = sum(pq.read_metadata(file).num_rows for file in (mine / "data/flights").glob("*/*.parquet"))

    config = mine / "configs/small.py"
    config.write_text(config.read_text().replace("Tuning(trials=2", "Tuning(trials=5"))
    done = run(mine, "--sample", str(ROWS))
    assert "  a search has at most 2 trials\n" in done.text
    (trials,) = output.glob("sample/artifacts/Tuner/tuner_results/*/tuner_results.json")
    assert len(json.loads(trials.read_text())) == 2
    assert done.code in (0, 3), done.text  # so few rows may make a model that is not blessed
    assert re.search(r"^  \(all rows\) +(cached|ran) ", done.text, re.MULTILINE)
    assert re.search(rf"^  a sample of (1,999|2,00[01]) of {all_rows:,} rows: train ", done.text, re.MULTILINE)
    assert {"StatisticsGen", "Transform", "Trainer", "Evaluator"} <= done.ran
    (tested,) = re.findall(r"^ overall .* (\d+)$", done.text, re.MULTILINE)
    (counted,) = re.findall(r"test (\d+)$", done.text, re.MULTILINE)
    assert tested == counted
    assert (output / "sample/verdict.json").is_file()
    assert "report output/flights/sample/runs/" in done.text

    if len(os.sched_getaffinity(0)) > 1:  # then the process that ModelCheck asks was started ahead, and tells nothing
        log = (output / f"sample/logs/{done.run_id}.log").read_text()
        assert "Output of the process that checked the model" not in log
    assert contents(output) == before
    listed = runs(mine, "list", "--config", "configs/small.py")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.count(first.run_id) == 1
    assert done.run_id not in listed.stdout
    assert "sampled" not in listed.stdout

    again = run(mine, "--sample", str(ROWS))
    assert not again.ran, again.text
