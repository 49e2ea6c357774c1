"""Ctrl-C, SIGTERM and SIGHUP."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The DoFn's thread is another one, and Beam raises what it wants of what ends it.
WITHIN_BEAM = """
import os, signal, sys, time
import apache_beam as beam
from pipeline.cli import interruption

def end(row):
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.5)
    return row

interruption.catch_signals()
try:
    try:
        with beam.Pipeline() as pipeline:
            pipeline | beam.Create([1]) | beam.Map(end)
    except Exception:
        pass
    interruption.check()
except interruption.Interrupted as told:
    print(told)
    sys.exit(told.exit_code)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_told_to_end_within_beam_it_ends(name, code):
    program = WITHIN_BEAM.format(name=name)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, f"interrupted ({name})\n"), done.stderr


@pytest.mark.parametrize("imported", ["argparse", "pipeline.errors"])
@pytest.mark.parametrize("command", [["local_runner.py"], ["vertex_runner.py", "rehearse"], ["-m", "pipeline", "new"]])
def test_ctrl_c_while_it_starts_prints_no_traceback(command, imported):
    verbose = {"PYTHONPROFILEIMPORTTIME": "1"}  # a line for each import
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, **verbose}, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        for line in process.stderr:
            if line.endswith(f" {imported}\n"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in rest


def test_ctrl_c_while_tensorflow_is_imported_is_the_outcome(tmp_path):
    with subprocess.Popen(
        [sys.executable, "local_runner.py", "--output", tmp_path], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        while not list(tmp_path.glob("logs/*")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == 130
    sentence = "local_runner.py: interrupted (SIGINT); finished steps are kept, run again to go on"
    assert errors.splitlines()[-1] == sentence
    assert json.loads((tmp_path / "verdict.json").read_text())["exit_code"] == 130
