"""ExampleGen in several processes of one machine."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="processes are forked on Linux, with two cores"
)
# Runs in a separate process, like a step: TensorFlow is loaded but has not computed anything.
SCRIPT = """
import glob, os, shutil, sys
from dataclasses import replace
import tensorflow as tf
from apache_beam import Pipeline
from pipeline.components import arrow_example_gen
from pipeline.data import shards
from pipeline.data.blocks import has_blocks, read_blocks
from pipeline.fast import example_gen
from pipeline.processes import processes

def job(uri):
    os.makedirs(uri)
    files = tuple(("single", f"{sys.argv[1]}/{name}") for name in sorted(os.listdir(sys.argv[1])))
    return shards.Job(
        files=files, format="csv", output_splits=("train", "eval"), shares=(2, 1), hash_column=None, time_column=None,
        types={}, max_bad_rows=0.5, label="", classes={}, weight=None, uri=uri, images=None, paths=False,
        folder=sys.argv[1], patterns={"single": "*"}, last_spans=None, shard_mb=int(sys.argv[3]), spans={},
        test_span=None, kept="", code="", stamps={},
    )

with processes() as workers:
    example_gen.write_side_by_side(workers, replace(job(sys.argv[2] + "/side"), blocks=True))
files = glob.glob(sys.argv[2] + "/side/Split-*/*")
assert all(has_blocks(file) for file in files), "decoded by a later step"
stored = {file: list(read_blocks(file)) for file in files}
shutil.rmtree(sys.argv[2] + "/side/blocks", ignore_errors=True)
assert stored == {file: list(read_blocks(file)) for file in files}
with Pipeline() as pipeline:
    arrow_example_gen.write_examples(pipeline, job(sys.argv[2] + "/beam"))
"""


def found(folder: Path) -> dict[str, str]:
    """Return the digests of all files, by name."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_examples_are_the_same_bytes_as_by_beam(tmp_path, damaged):
    data = tmp_path / "data of a year"
    data.mkdir()
    for month in range(7):
        rows = [f"{month},{row},{row / 7},word {row % 5}" for row in range(3_000)]
        rows[10] = "1,2" if month == 3 else rows[10]  # a bad row
        (data / f"month {month}.csv").write_text("\n".join(["month,row,number,the word", *rows]) + "\n")
    if damaged:
        (data / "month 7.csv").write_text("another,header\n1,2\n")
        (data / "month 8.csv").write_text("month,row\n1,2,3\n" * 5)
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(data), str(tmp_path), "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr
    side, beam = found(tmp_path / "side"), found(tmp_path / "beam")
    assert side == beam
    summary = json.loads((tmp_path / "side/summary.json").read_text())
    assert bool(summary["problems"]) is damaged
    if not damaged:
        assert len(side) > 3
        assert sum(summary["rows"].values()) == 7 * 3_000 - 1
        assert summary["bad_rows"] == 1
