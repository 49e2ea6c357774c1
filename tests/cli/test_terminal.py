"""Output on a real terminal, and in a file."""

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pytest
from rich.cells import cell_len
from rich.console import Console

from pipeline.cli import terminal
from pipeline.cli.printing import Terminal
from pipeline.errors import UserError, message_of
from pipeline.runs.results import Results
from pipeline.runs.step import Step, StepFailed
from pipeline.settings.config import Data, Label, PipelineConfig
from pipeline.settings.gates import BeatsBaseline, Evaluation, Gate, SliceGate
from pipeline.settings.tasks import shown_metrics

ROOT = Path(__file__).resolve().parents[2]
STEPS = """\
import logging, os, sys
from pathlib import Path
from pipeline.cli import terminal
from pipeline.cli.printing import Terminal
from pipeline.progress import Progress

with terminal.redirect_output(Path(sys.argv[1]), verbose="--verbose" in sys.argv) as screen:
    os.write(2, b"noise of C++\\n")
    screen.step_starts("Trainer")
    Progress("search").tell("trial 2 of 6, best auc so far 0.7000")
    Progress("training").tell("epoch 1 of 3, loss 0.5")
    logging.getLogger("pipeline.training").warning("a batch of 9 is too large")
    logging.getLogger("pipeline.training").warning("a batch of 9 is too large")
    logging.getLogger("tensorflow").warning("of no concern")
    sys.stdin.readline()
    screen.line("Trainer", "ran", 1.2, "")
"""


def seen(log: Path, *arguments: str, until: Callable[[str], bool] = lambda text: True, **environment: str) -> str:
    """Return what a terminal of 120 columns gets; the step ends when enough was shown."""
    master, slave = pty.openpty()
    command = [sys.executable, "-c", STEPS, str(log), *arguments]
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment}
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=slave, stderr=slave, env=settings
    ) as process:
        assert process.stdin
        os.close(slave)
        text = b""
        while True:
            if not process.stdin.closed and until(text.decode(errors="ignore")):
                process.stdin.close()
            try:
                some = os.read(master, 65536)
            except OSError:  # the other side has closed
                break
            if not some:
                break
            text += some
        os.close(master)
    assert process.returncode == 0, text.decode()
    return text.decode()


@pytest.mark.slow
def test_a_terminal_shows_the_running_step_with_its_seconds_and_how_far_it_is(tmp_path):
    def seconds(text: str) -> list[float]:
        return [float(found) for found in re.findall(r"Trainer +\S*running +\S* +([\d.]+) s", text)]

    text = seen(tmp_path / "log", until=lambda text: max(seconds(text), default=0.0) >= 1.0)
    assert len(seconds(text)) >= 2
    assert seconds(text) == sorted(seconds(text))
    assert "trial 2 of 6, best auc so far 0.7000; epoch 1 of 3, loss 0.5" in text
    assert text.count("warning: a batch of 9 is too large") == 1
    assert "of no concern" not in text
    assert "noise of C++" not in text
    log = (tmp_path / "log").read_text()
    assert "of no concern" in log
    assert "noise of C++" in log
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text.rstrip().splitlines()[-1].rpartition("\r")[2])
    assert re.fullmatch(r"  Trainer +ran +1\.2 s *", last)


def test_a_log_gets_a_line_of_a_step_that_runs_for_long(monkeypatch):
    monkeypatch.setattr(terminal, "SOON", 0.01)
    reading, writing = os.pipe()
    with os.fdopen(reading) as read, os.fdopen(writing, "w", buffering=1) as write:
        line = terminal.RunningLine(Terminal(file=write))
        line.start("Trainer", "Baselines")
        line.progress("training", "epoch 1 of 3")
        shown = next(text for text in read if "epoch" in text)
        line.stop()
    assert re.fullmatch(r"  Trainer, Baselines +running +\d+\.\d s, +\d+\.\d s  epoch 1 of 3\n", shown)


@pytest.mark.parametrize(
    ("wall", "cpu", "shown"),
    [
        (10.0, 9.0, ""),
        (112.0, 8.0, "CPU 8.0 s, waited 104.0 s"),
        (2.0, 3.9, "CPU 3.9 s"),
        (0.5, 0.1, ""),
        (112.0, None, ""),
    ],
)
def test_cpu_time_is_shown_where_it_differs_from_the_wall_time(wall, cpu, shown):
    assert terminal.cpu_time(Step("Baselines", "ran", wall, {}, None, cpu_seconds=cpu)) == shown


@pytest.mark.slow
def test_no_color_is_honoured(tmp_path):
    color = r"\x1b\[[\d;]*(3[0-7]|9[0-7]|38)[\d;]*m"
    assert re.search(color, seen(tmp_path / "log"))
    assert not re.search(color, seen(tmp_path / "log", NO_COLOR="1"))


@pytest.mark.slow
def test_verbose_shows_the_whole_log_as_well(tmp_path):
    text = seen(tmp_path / "log", "--verbose")
    assert "noise of C++" in text
    assert "of no concern" in text
    assert "Trainer             ran" in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    log = (tmp_path / "log").read_text()
    assert "noise of C++" in log
    assert "epoch 1 of 3, loss 0.5" in log


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_heading_or_number_of_a_table_is_cut_however_narrow_the_terminal(width):
    text = io.StringIO()
    rows = [("overall", "0.7142", "53,991"), ("carrier=\x1b[31mÅ東\n", "-", "1"), ("x" * 100, "0.1", "2")]
    terminal.print_table(Console(file=text, width=width), ("", "average precision", "examples"), rows)
    lines = text.getvalue().splitlines()
    assert lines[0].split() == ["average", "precision", "examples"]
    assert lines[1].split() == ["overall", "0.7142", "53,991"]
    assert lines[2].split() == ["carrier=\\x1b[31mÅ東\\n", "-", "1"]
    assert lines[3].startswith(" xxx")
    assert "x…" in lines[3]
    assert {cell_len(line) for line in lines} == {cell_len(lines[0])}


def test_the_results_of_a_run_are_whole_in_a_file_and_say_what_is_undefined(tmp_path):
    metrics = {
        "overall": dict.fromkeys(shown_metrics("binary"), 0.7142) | {"example_count": 53_991.0},
        "carrier=late": {"recall": 0.5, "calibration": float("nan"), "example_count": 12.0},
    }
    verdict = {
        "blessed": False,
        "pushed_to": None,
        "failed": ["auc on all rows is low"],
        "passed_over": [],
        "notes": [],
        "threshold": 0.3,
        "baselines": {"constant": {"auc": 0.5}, "linear": {"auc": 0.6}, "boosting": {"auc": 0.7044}},
    }
    gates = Evaluation((Gate("auc", 0.9),), threshold=0.3)
    config = PipelineConfig("few", Data("data", files="*.csv"), Label("late"), "models/flights.py", gates)
    text = io.StringIO()
    terminal.Screen(Console(file=text), tmp_path / "log").results(Results(metrics, verdict), config)
    assert text.getvalue().splitlines()[:6] == [
        "",
        "Test split, threshold 0.3",
        "                  AUC  PR AUC  precision  recall  calibration  examples",
        " overall       0.7142  0.7142     0.7142  0.7142       0.7142    53,991",
        " carrier=late       -       -          -  0.5000            -        12",
        "Baselines, AUC: boosting 0.7044, linear 0.6000, constant 0.5000",
    ]


def test_a_refused_model_that_was_not_evaluated_has_its_reasons_and_no_empty_table(tmp_path):
    verdict = {"blessed": False, "pushed_to": None, "failed": ["model check: no"], "passed_over": [], "notes": ["but"]}
    config = PipelineConfig(
        "few", Data("data", files="*.csv"), Label("late"), "models/m.py", Evaluation((Gate("auc", 0.9),))
    )
    text = io.StringIO()
    terminal.Screen(Console(file=text), tmp_path / "log").results(Results({"overall": {}}, verdict), config)
    assert text.getvalue().splitlines() == [
        "",
        "note: but",
        "not blessed: model check: no",
        "not pushed; what was pushed before stays",
    ]


def test_a_failure_is_shown_after_what_refused_the_model_and_before_what_failed_later(tmp_path):
    config = PipelineConfig(
        "few", Data("data", files="*.csv"), Label("late"), "models/m.py", Evaluation((Gate("auc", 0.9),))
    )
    later = StepFailed("Transform", 1.0)
    later.__cause__ = UserError("it breaks, too")
    text = io.StringIO()
    reasons = terminal.Screen(Console(file=text), tmp_path / "log").failure(
        "Evaluator", 2.0, UserError("it breaks"), config, refusals=["model check: no"], others=[later]
    )
    assert reasons == ["model check: no", "Evaluator failed: it breaks", "Transform failed: it breaks, too"]
    lines = text.getvalue().splitlines()
    assert lines[3:6] == ["not blessed: model check: no", *reasons[1:]]


def test_a_model_that_beats_a_baseline_is_blessed_with_both_values(tmp_path):
    verdict = {"blessed": True, "pushed_to": None, "failed": [], "passed_over": [], "notes": []}
    verdict["baselines"] = {"constant": {"rmse": 9.0}, "boosting": {"rmse": 5.5}}
    results = Results({"overall": {"rmse": 5.0, "example_count": 99.0}}, verdict)
    config = PipelineConfig(
        "few", Data("data", files="*.csv"), Label("y", classes=()), "models/m.py", Evaluation((BeatsBaseline("rmse"),))
    )
    text = io.StringIO()
    terminal.Screen(Console(file=text), tmp_path / "log").results(results, config)
    assert "blessed: rmse 5.0000 beats boosting (5.5000)\n" in text.getvalue()


def test_gates_on_slices_that_could_not_be_judged_are_not_counted_as_held(tmp_path):
    gates = Evaluation(
        (Gate("auc", 0.5), *(SliceGate("auc", by=name, floor=0.5) for name in ("origin", "carrier", "dest"))),
        threshold=0.3,
    )
    config = PipelineConfig("few", Data("data", files="*.csv"), Label("late"), "models/flights.py", gates)
    metrics = {"overall": {"auc": 0.7, "example_count": 99.0}}
    verdict = {"blessed": True, "pushed_to": None, "failed": [], "passed_over": [], "notes": [], "warnings": ["look"]}
    text = io.StringIO()
    screen = terminal.Screen(Console(file=text), tmp_path / "log")
    screen.results(Results(metrics, {**verdict, "unjudged": ["auc by dest", "auc by origin"]}), config)
    assert "warning: look\nblessed: auc 0.7000 (floor 0.5), 1 gate on slices, 2 gates on slices not judged\n" in (
        text.getvalue()
    )


@pytest.mark.slow
def test_a_file_gets_plain_lines_only(tmp_path):
    command = [sys.executable, "-c", STEPS, str(tmp_path / "log")]
    text = subprocess.run(command, cwd=ROOT, input="", capture_output=True, text=True, check=True).stdout
    assert text.splitlines() == [
        "    warning: a batch of 9 is too large",
        "  Trainer             ran           1.2 s  ",
    ]


def test_what_the_machine_lacks_is_said_in_words():
    with pytest.raises(OSError, match="space") as full, open("/dev/full", "w", buffering=1) as file:
        file.write("line\n")
    assert message_of(full.value).startswith("the disk is full; free some space (OSError: [Errno 28]")
    with pytest.raises(MemoryError) as much:
        bytearray(1 << 60)
    assert message_of(much.value) == "there is not enough memory (MemoryError: no message)"


def test_a_sentence_from_within_a_step_of_beam_is_shown_as_it_was_said():
    def refuse(row):
        raise UserError("the candidate answers nan")

    with pytest.raises(UserError) as refused, beam.Pipeline() as pipeline:
        _ = pipeline | beam.Create([1]) | "Refuse it" >> beam.Map(refuse)
    assert str(refused.value).endswith("[while running 'Refuse it']")
    assert message_of(refused.value) == "the candidate answers nan"


def test_a_message_of_a_library_is_no_page(tmp_path):
    with pytest.raises(ValueError, match="x") as long:
        raise ValueError("x" * 100_000)
    assert len(message_of(long.value)) < 700
