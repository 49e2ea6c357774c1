"""What the person at the terminal sees; everything else goes to a log file."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pipeline.cli.running_line import RunningLine
from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.gates import Gate
from pipeline.settings.names import printable
from pipeline.settings.repository import shown
from pipeline.settings.tasks import shown_metrics

if TYPE_CHECKING:
    from pipeline.runs.results import Results
    from pipeline.runs.run_graph import Step

# Of what a table shows of a slice's name.
NAME_WIDTH = 60
STATE_STYLES = {
    "ran": "green",
    "ok": "green",
    "cached": "cyan",
    "looked up": "dim",
    "skipped": "dim",
    "not run": "dim",
    "running": "dim",
    "unsure": "yellow",
    "failed": "bold red",
    "cancelled": "bold red",
    "wrong": "bold red",
}


@contextlib.contextmanager
def only_ours(log: Path, verbose: bool = False) -> Iterator[Screen]:
    """Sends all that this process prints, down to TensorFlow's C++ lines, to ``log``; yields what still shows.

    With ``verbose``, it shows as well.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    terminal_out, terminal_err = os.dup(1), os.dup(2)
    with (
        _everything(log, verbose) as file,
        os.fdopen(os.dup(1), "w", encoding="utf-8") as ours,
    ):
        os.dup2(file, 1)
        os.dup2(file, 2)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
        # Among the lines of the log, one that is written over would be lost.
        console = Console(file=ours, markup=False, highlight=False, force_terminal=False if verbose else None)
        try:
            with RunningLine(console) as running, _once(Screen(console, log, running)) as screen:
                yield screen
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(terminal_out, 1)
            os.dup2(terminal_err, 2)
            os.close(terminal_out)
            os.close(terminal_err)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keeps what C++ writes off the terminal."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


@contextlib.contextmanager
def _everything(log: Path, verbose: bool) -> Iterator[int]:
    """Descriptor of what takes all that is printed: the log, or what copies it to the log and to the terminal."""
    with log.open("wb") as file:
        if not verbose:
            yield file.fileno()
            return
        tee = subprocess.Popen(["tee", str(log)], stdin=subprocess.PIPE, start_new_session=True)
        assert tee.stdin
        try:
            yield tee.stdin.fileno()
        finally:
            tee.stdin.close()
            tee.wait()


def print_table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print a table whose lines are as long as they need to be: on a narrow terminal they wrap, and nothing is cut.

    Args:
        console: Where to.
        header: Titles.
        rows: Texts; of the first column no more than ``NAME_WIDTH`` characters are shown, for it may come from data.
        left: How many columns are aligned to the left, the others to the right.
    """
    lines = [list(header), *([_one_line(row[0]), *row[1:]] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = []
        for place, (text, width) in enumerate(zip(line, widths, strict=True)):
            gap = " " * (width - cell_len(text))
            cells.append(text + gap if place < left else gap + text)
        style = "" if number else "bold"
        console.print(Text(f" {'  '.join(cells).rstrip()}", style=style), soft_wrap=True)


def _one_line(text: str) -> str:
    """Text from data, without what a terminal would obey, and not too long."""
    line = printable(text).replace("\n", "\\n")
    return line if len(line) <= NAME_WIDTH else f"{line[: NAME_WIDTH - 1]}…"


class _Warnings(logging.Handler):
    """Shows the warnings of our own code, each once; those of the libraries are in the log."""

    def __init__(self, screen: Screen):
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self._screen.warning(record.getMessage())


@contextlib.contextmanager
def _once(screen: Screen) -> Iterator[Screen]:
    handler = _Warnings(screen)
    logging.getLogger("pipeline").addHandler(handler)
    try:
        yield screen
    finally:
        logging.getLogger("pipeline").removeHandler(handler)


class Screen:
    """The lines of a run: what starts, how each step ended, and what came of it."""

    def __init__(self, console: Console, log: Path, running: RunningLine | None = None):
        self._console = console
        self._log = log
        self._running = running or RunningLine(console)
        self._warned: set[str] = set()

    def start(self, config: PipelineConfig, run_id: str) -> None:
        """Says what is about to run."""
        self._console.print(Text(f"{config.name}, run {run_id}", style="bold"))
        for name, value in (("data", config.data.path), ("module", config.module), ("log", str(self._log))):
            self._console.print(f"  {name:<8}{shown(value)}", soft_wrap=True)
        self._console.print()

    def note(self, text: str) -> None:
        """A line of its own."""
        self._clear_line()
        self._console.print(text, soft_wrap=True)

    def step_starts(self, name: str) -> None:
        """Shows the step that is running; on a terminal only, its final line takes the place."""
        self._running.show(name)

    def step_ends(self, step: Step) -> None:
        """The step's line: name, state, seconds, bad rows, and for a cached step since when nothing has changed."""
        detail = step.reason
        for examples in step.outputs.get("examples", []):
            bad = examples.get_int_custom_property("bad_rows")
            if bad:
                detail = f"{bad:,} bad rows left out, kept in {shown(examples.uri)}/bad_rows  {detail}"
        self.line(step.name, step.state, step.seconds, detail)

    def finding(self, what: str, state: str, text: str, remedy: str) -> None:
        """What a look at one thing came to, and below it what to do."""
        self._console.print(Text.assemble(f"  {what:<17}", (f"{state:<14}", STATE_STYLES[state]), text), soft_wrap=True)
        if remedy:
            self._console.print(f"{'':<33}-> {remedy}", soft_wrap=True)

    def warning(self, sentence: str) -> None:
        """Something that does not end the run; the same one once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            with self._running.aside():
                self._console.print(Text(f"    warning: {sentence}", style="yellow"), soft_wrap=True)

    def failure(self, step: str, seconds: float, cause: BaseException | None, config: PipelineConfig) -> str:
        """The failed step's line and one message with the cause, which it returns, the user's line, and the log."""
        self.line(step, "failed", seconds, "")
        logging.getLogger("pipeline").error("%s failed", step, exc_info=cause)
        self._console.print()
        message = f"{step} failed: {_message(cause)}"
        self._console.print(Text(message, style="bold red"), soft_wrap=True)
        place = _place_in_module(cause, Path(config.module))
        if place:
            self._console.print(f"  at   {place}", soft_wrap=True)
        self._console.print(f"  log  {shown(self._log)}", soft_wrap=True)
        self._console.print("  Nothing was pushed; run again when it is put right, finished steps are kept.")
        return message

    def results(self, results: Results, config: PipelineConfig) -> None:
        """Metrics on the test split, verdict, and where the model lies."""
        columns = shown_metrics(config.label.task)
        threshold = f", threshold {config.evaluation.threshold:g}" if config.label.task == "binary" else ""
        rows = []
        for name, metrics in sorted(results.metrics.items(), key=lambda item: (item[0] != "overall", item[0])):
            # A slice with one class only has no AUC.
            values = [metrics.get(metric, math.nan) for metric in columns]
            texts = [f"{value:.4f}" if math.isfinite(value) else "-" for value in values]
            rows.append((name, *texts, f"{metrics.get('example_count', 0):,.0f}"))
        self._console.print()
        self._console.print(Text(f"Test split{threshold}", style="italic"))
        print_table(self._console, ("", *(metric.title for metric in columns.values()), "examples"), rows)
        self._console.print()
        verdict = results.verdict
        for sentence in [*verdict["passed_over"], *verdict["notes"]]:
            self._console.print(Text(f"note: {sentence}", style="dim"), soft_wrap=True)
        if results.blessed:
            self._console.print(Text(f"blessed: {_held(results, config)}", style="bold green"), soft_wrap=True)
        for sentence in verdict["failed"]:
            self._console.print(Text(f"not blessed: {sentence}", style="bold red"), soft_wrap=True)
        where = (
            f"pushed to {shown(results.pushed_to)}"
            if results.pushed_to
            else "not pushed; the model pushed before stays"
        )
        self._console.print(where, soft_wrap=True)

    def report(self, write: Callable[[], Path]) -> None:
        """Writes the report and says where it lies; a run is none the worse without it."""
        self._running.show("report")
        started = time.monotonic()
        try:
            text = f"report {shown(write())}"
            logging.getLogger("pipeline").info("Report written in %.1f s", time.monotonic() - started)
        except Exception as error:
            logging.getLogger("pipeline").error("No report", exc_info=error)
            text = f"no report could be written: {_message(error)}; the log has more: {shown(self._log)}"
        self._clear_line()
        self._console.print(text, soft_wrap=True)

    def line(self, name: str, state: str, seconds: float, detail: str) -> None:
        """A step's line; one that runs is shown on a terminal only until there is the next line."""
        if state == "running" and self._console.is_terminal:
            self._clear_line()
            self.step_starts(name)
            return
        self._clear_line()
        self._console.print(
            Text.assemble(
                f"  {name:<20}", (f"{state:<10}", STATE_STYLES[state]), f"{seconds:7.1f} s  ", (detail, "dim")
            ),
            soft_wrap=True,
        )

    def _clear_line(self) -> None:
        """Takes away what says on a terminal that a step runs."""
        self._running.clear()


def _held(results: Results, config: PipelineConfig) -> str:
    """The gates over all rows, with their values; the number of the others."""
    overall = results.metrics["overall"]
    parts = []
    for gate in config.evaluation.gates:
        if isinstance(gate, Gate):
            limits = {"floor": gate.floor, "ceiling": gate.ceiling}
            text = ", ".join(f"{name} {limit:g}" for name, limit in limits.items() if limit is not None)
            parts.append(f"{gate.metric} {overall[gate.metric]:.4f}{f' ({text})' if text else ''}")
    others = len(config.evaluation.gates) - len(parts)
    if others:
        parts.append(f"{others} {'gate' if others == 1 else 'gates'} on slices")
    return ", ".join(parts)


def _message(cause: BaseException | None) -> str:
    if cause is None:
        return "no cause was given"
    if isinstance(cause, UserError):
        return str(cause)
    # KerasTuner puts the cause at the end of a long message, Beam into the error that it raised its own from.
    root = cause
    while root.__cause__ is not None:
        root = root.__cause__
    lines = [line.strip() for error in (cause, root) for line in str(error).splitlines() if line.strip()]
    texts = [lines[0], lines[-1]] if lines else ["no message"]
    return f"{type(cause).__name__}: " + " ... ".join(dict.fromkeys(texts))


def _place_in_module(cause: BaseException | None, module: Path) -> str | None:
    """Where in the user's module file the error arose; the wheel keeps its line numbers."""
    frames = traceback.extract_tb(cause.__traceback__) if cause else []
    for frame in reversed(frames):
        if Path(frame.filename).name == module.name and "site-packages" not in frame.filename:
            return f"{shown(module)}, line {frame.lineno}, in {frame.name}: {frame.line}"
    return None
