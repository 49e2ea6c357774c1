"""Ctrl-C, SIGTERM and SIGHUP."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.cli.local_run import LocalRun
from pipeline.cli.startup import Interrupted
from pipeline.runs import webhook
from pipeline.runs.webhook import Webhook
from pipeline.settings.config import load_config
from tests.fakes.webhook import KEY, receiving, verified

ROOT = Path(__file__).resolve().parents[2]

# The DoFn's thread is another one, and Beam raises what it wants of what ends it.
WITHIN_BEAM = """
import os, signal, sys, time
import apache_beam as beam
from pipeline.cli import startup

def end(row):
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.5)
    return row

startup.catch_signals()
try:
    try:
        with beam.Pipeline() as pipeline:
            pipeline | beam.Create([1]) | beam.Map(end)
    except Exception:
        pass  # Beam wraps what ends it in an error of its own, and the next line must still know
    startup.check_interruption()
except startup.Interrupted as told:
    print(told)
    sys.exit(told.exit_code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_told_to_end_within_beam_it_ends(name, code):
    program = WITHIN_BEAM.format(name=name)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, f"interrupted ({name})\n"), done.stderr


# Python runs it first.
INTERRUPTED_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{imported}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("imported", ["argparse", "pipeline.errors"])
@pytest.mark.parametrize("command", [["local_runner.py"], ["vertex_runner.py", "rehearse"], ["-m", "pipeline", "new"]])
def test_ctrl_c_while_it_starts_prints_no_traceback(command, imported, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_IMPORT.format(imported=imported))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT
    assert "Traceback" not in done.stderr


@pytest.mark.slow
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


IGNORED = """
import os, signal, sys
from pipeline.cli import startup
for number in startup.SIGNALS:
    signal.signal(number, signal.SIG_IGN)
startup.catch_signals()
startup.catch_ctrl_c()
for number in startup.SIGNALS:
    os.kill(os.getpid(), number)
print("goes on")
"""


def test_what_nohup_or_a_shell_lets_be_ignored_stays_ignored():
    done = subprocess.run([sys.executable, "-c", IGNORED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [["local_runner.py"], ["vertex_runner.py"], ["-m", "pipeline"]])
def test_a_command_that_a_shell_has_put_into_the_background_ignores_ctrl_c_from_the_start(command):
    with subprocess.Popen(
        [sys.executable, *command, "--help"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        for _ in range(20):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        process.communicate()
    assert process.returncode == 0


def test_an_outcome_that_was_announced_stays_when_the_report_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "SECONDS_FOR_AN_ANSWER", 600.0)  # on a busy machine, too, it is sent once
    with receiving() as receiver:
        run = LocalRun(load_config(ROOT / "configs/flights.py"), tmp_path, [], Webhook(receiver.url, KEY))
        run.exit_code, run.outcome = 0, {"failed": [], "blessed": True, "pushed_to": "/serving/1"}

        def announce_and_be_interrupted() -> None:
            with run.announcing_errors():
                run.announce(print)
                raise Interrupted(signal.SIGTERM)

        with pytest.raises(Interrupted):
            announce_and_be_interrupted()
        assert [verified(got, KEY)["data"]["pushed_to"] for got in receiver.got] == ["/serving/1"]
    assert json.loads((tmp_path / "verdict.json").read_text())["exit_code"] == 0


REPORT = """
import os, signal, sys
from pathlib import Path
from pipeline.cli import startup
from pipeline.cli.terminal import redirect_output

startup.catch_signals()
with redirect_output(Path(sys.argv[1])) as screen:
    screen.report(lambda: os.kill(os.getpid(), signal.SIGINT), "a run")
print("ends as the run does")
"""


def test_ctrl_c_during_the_report_leaves_a_finished_run(tmp_path):
    command = [sys.executable, "-c", REPORT, str(tmp_path / "log")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    expected = "no report: interrupted (SIGINT); the run itself is complete\nends as the run does\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
