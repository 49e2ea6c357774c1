"""Terminal of a run: steps, progress, results and warnings, while all other output goes to a log file."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pipeline import progress
from pipeline.cli import startup
from pipeline.cli.printing import LogFormatter, Terminal, assembled
from pipeline.cli.startup import Interrupted
from pipeline.errors import frames_of, message_of
from pipeline.settings.config import PipelineConfig
from pipeline.settings.gates import BeatsBaseline, Gate
from pipeline.settings.repository import shown
from pipeline.settings.tasks import Metric, shown_metrics

if TYPE_CHECKING:
    from pipeline.runs.results import Results
    from pipeline.runs.step import Step, StepFailed

# Seconds between two lines about running steps: on a terminal; elsewhere in the first minute after a start, and later.
REFRESH, SOON, LATER = 0.5, 10.0, 60.0
CPU_FACTOR = 1.5
SHORTEST = 1.0  # seconds; differences between wall and CPU time of shorter steps say nothing
NAME_WIDTH = 60  # characters of a slice's name in a table
STATE_STYLES = {
    **dict.fromkeys(("ran", "ok"), "green"),
    "cached": "cyan",
    **dict.fromkeys(("looked up", "not run", "running"), "dim"),
    "unsure": "yellow",
    **dict.fromkeys(("failed", "cancelled", "wrong"), "bold red"),
}


@contextlib.contextmanager
def redirect_output(log: Path, verbose: bool = False) -> Iterator[Screen]:
    """Redirect all output of this process, TensorFlow's C++ lines too, to a log file; yield the screen."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        _open_log(log, verbose) as file,
        os.fdopen(os.dup(1), "w", encoding="utf-8") as terminal,
        _redirected(file, 1, 2),
    ):
        log_lines = logging.StreamHandler()
        log_lines.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[log_lines], force=True)
        # Among the lines of the log, a line that is written anew would be lost.
        console = Terminal(file=terminal, force_terminal=False if verbose else None)
        screen = Screen(console, log)
        handler, logger = _ScreenHandler(screen), logging.getLogger("pipeline")
        logger.addHandler(handler)
        try:
            yield screen
        finally:
            logger.removeHandler(handler)
            screen.close()


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """Discard what this process writes to stderr, TensorFlow's C++ lines too."""
    with open(os.devnull, "w", encoding="utf-8") as null, _redirected(null.fileno(), 2):
        yield


@contextlib.contextmanager
def _redirected(target: int, *descriptors: int) -> Iterator[None]:
    """Let file descriptors write to another one."""
    sys.stdout.flush()
    sys.stderr.flush()
    copies = [os.dup(descriptor) for descriptor in descriptors]
    try:
        for descriptor in descriptors:
            os.dup2(target, descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip(descriptors, copies, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


@contextlib.contextmanager
def _open_log(log: Path, verbose: bool) -> Iterator[int]:
    """Yield a file descriptor that writes to the log and, with ``verbose``, to the terminal."""
    if not verbose:
        with log.open("wb") as file:
            yield file.fileno()
        return
    with subprocess.Popen(["tee", str(log)], stdin=subprocess.PIPE, start_new_session=True) as tee:
        assert tee.stdin
        yield tee.stdin.fileno()


def print_table(console: Terminal, header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print a table whose lines are as long as they need to be: on a narrow terminal they wrap, and nothing is cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, title in enumerate(header):
        heading = assembled(title if place else f" {title}")
        table.add_column(heading, no_wrap=True, justify="left" if place < left else "right")
    for first, *others in rows:
        name = first if len(first) <= NAME_WIDTH else f"{first[: NAME_WIDTH - 1]}…"
        table.add_row(assembled(f" {name}"), *map(assembled, others))
    table.width = Measurement.get(console, console.options.update(width=10_000), table).maximum
    console.print(table, crop=False)


class _ScreenHandler(logging.Handler):
    """Handler that shows progress and warnings of our own code; those of libraries are in the log only."""

    def __init__(self, screen: Screen):
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(progress.LOGGER):
            self._screen.progress(record.name, record.getMessage())
        elif record.levelno == logging.WARNING:
            self._screen.warning(record.getMessage())


class RunningLine:
    """Names of the running steps, their seconds so far and their progress.

    On a terminal it is the line below all others. Elsewhere it is printed now and then, so that a log shows progress.
    """

    def __init__(self, console: Terminal):
        self._console = console
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._started: dict[str, float] = {}
        self._progress: dict[str, str] = {}

    def start(self, *steps: str) -> None:
        """Show the line for all steps that run."""
        self.stop()
        self._started = {step: self._started.get(step, time.monotonic()) for step in steps}
        self._progress = {}
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        self._stopped.clear()
        self._thread = threading.Thread(target=self._keep_showing, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the line and end its thread, because a process with threads cannot be forked."""
        if self._thread:
            self._stopped.set()
            self._thread.join()
        if self._live:
            self._live.stop()
        self._thread = self._live = None

    def progress(self, topic: str, text: str) -> None:
        """Show how far the step is with one kind of work."""
        self._progress = {**self._progress, topic: text}

    def _keep_showing(self) -> None:
        started = time.monotonic()
        while not self._stopped.wait(REFRESH if self._live else SOON if time.monotonic() - started < LATER else LATER):
            if self._live:
                self._live.refresh()
            else:
                self._console.print(self._render(), soft_wrap=True)

    def _render(self) -> Text:
        seconds = ", ".join(f"{time.monotonic() - started:7.1f} s" for started in self._started.values())
        details = "; ".join(self._progress.values())
        parts = (f"  {', '.join(self._started):<19} ", ("running   ", "dim"), f"{seconds}  ", (details, "dim"))
        return assembled(*parts, no_wrap=True)


class Screen:
    """Lines of a run: its settings, how each step ended, metrics and verdict."""

    def __init__(self, console: Terminal, log: Path):
        self._console = console
        self._log = log
        self._running = RunningLine(console)
        self._steps: list[str] = []  # that run
        self._warned: set[str] = set()

    def start(self, config: PipelineConfig, run_id: str) -> None:
        """Show the run and its settings."""
        self._print(f"{config.name}, run {run_id}", "bold")
        for name, value in (("data", config.data.path), ("module", config.module), ("log", str(self._log))):
            self._print(f"  {name:<8}{shown(value)}")
        self._print()

    def close(self) -> None:
        """Remove the running line."""
        self._running.stop()

    def note(self, text: str) -> None:
        """Show a line."""
        self._running.stop()
        self._print(text)

    def busy(self, work: str) -> None:
        """Show what is being done, until the next line."""
        self._running.start(work)

    def step_starts(self, name: str) -> None:
        """Show one more step that is running."""
        self._steps.append(name)
        self._running.start(*self._steps)

    def step_ends(self, step: Step) -> None:
        """Show the step's line: name, state, seconds, bad rows, why a cached step did not run; and its warnings."""
        from pipeline.runs.results import warnings_of

        self._steps = [name for name in self._steps if name != step.name]
        detail = "  ".join(filter(None, (cpu_time(step), step.reason)))
        for examples in step.outputs.get("examples", []):
            bad = examples.get_int_custom_property("bad_rows")
            if bad:
                detail = f"{bad:,} bad rows left out, kept in {shown(examples.uri)}/bad_rows  {detail}"
        self.line(step.name, step.state, step.seconds, detail)
        startup.check_interruption()
        for sentence in warnings_of(step):
            self.warning(sentence)
        if self._steps:
            self._running.start(*self._steps)

    def line(self, name: str, state: str, seconds: float, detail: str) -> None:
        """Show a step's line; of one that is running, on a terminal only until the next line."""
        if state == "running" and self._console.is_terminal:
            self.busy(name)
            return
        self._running.stop()
        parts = (f"  {name:<20}", (f"{state:<10}", STATE_STYLES[state]), f"{seconds:7.1f} s  ", (detail, "dim"))
        self._print(assembled(*parts))

    def progress(self, topic: str, text: str) -> None:
        """Show how far the running step is, on a terminal only."""
        self._running.progress(topic, text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
        """Show a table; see ``print_table``."""
        self._running.stop()
        print_table(self._console, header, rows, left)

    def finding(self, name: str, state: str, text: str, remedy: str) -> None:
        """Show the result of a check, and below it what to do."""
        self._print(assembled(f"  {name:<17}", (f"{state:<14}", STATE_STYLES[state]), text))
        if remedy:
            self._print(f"{'':<33}-> {remedy}")

    def warning(self, sentence: str) -> None:
        """Show a warning above the running line; the same one once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._print(f"    warning: {sentence}", "yellow")

    def failure(
        self,
        step: str,
        seconds: float,
        cause: BaseException | None,
        config: PipelineConfig,
        *,
        pushed: bool = False,
        kept: bool = True,
        refusals: Sequence[str] = (),
        others: Sequence[StepFailed] = (),
    ) -> list[str]:
        """Show the failed step, its cause, the line of the user's module and the log; return all reasons.

        Before it, because they may be its cause, the reasons for which earlier steps have refused the model
        (``refusals``); after it steps that failed at the same time (``others``).
        """
        failed = {step: cause, **{other.step: other.__cause__ for other in others}}
        self.line(step, "failed", seconds, "")
        for other in others:
            self.line(other.step, "failed", other.seconds, "")
        self._print()
        for reason in refusals:
            self._print(f"not blessed: {reason}", "bold red")
        reasons = list(refusals)
        for name, error in failed.items():
            logging.getLogger("pipeline").error("%s failed", name, exc_info=error)
            reasons.append(f"{name} failed: {message_of(error)}")
            self._print(reasons[-1], "bold red")
            if place := _place_in_module(error, Path(config.module)):
                self._print(f"  at   {place}")
        self._print(f"  log  {shown(self._log)}")
        if kept:
            what = "The model was pushed before" if pushed else "Nothing was pushed"
            self._print(f"  {what}; run again when it is put right, finished steps are kept.")
        return reasons

    def results(self, results: Results, config: PipelineConfig) -> None:
        """Show the metrics on the test split, the verdict, and where the model is."""
        if results.metrics["overall"]:
            self._metrics(results, config)
        self._print()
        for sentence in [*results.verdict["passed_over"], *results.verdict["notes"]]:
            self._print(f"note: {sentence}", "dim")
        for sentence in results.verdict.get("warnings", ()):
            self._print(f"warning: {sentence}", "bold yellow")
        if results.blessed:
            self._print(f"blessed: {_gates_held(results, config)}", "bold green")
        for sentence in results.verdict["failed"]:
            self._print(f"not blessed: {sentence}", "bold red")
        pushed_to = results.pushed_to
        self._print(f"pushed to {shown(pushed_to)}" if pushed_to else "not pushed; what was pushed before stays")

    def _metrics(self, results: Results, config: PipelineConfig) -> None:
        columns = shown_metrics(config.label.task)
        threshold = "" if results.threshold is None else f", threshold {results.threshold:.3g}"
        rows = []
        for name, metrics in sorted(results.metrics.items(), key=lambda item: (item[0] != "overall", item[0])):
            # A slice with one class only has no AUC.
            values = [metrics.get(metric, math.nan) for metric in columns]
            texts = [f"{value:.4f}" if math.isfinite(value) else "-" for value in values]
            rows.append((name, *texts, f"{metrics.get('example_count', 0):,.0f}"))
        self._print()
        self._print(f"Test split{threshold}", "italic")
        print_table(self._console, ("", *(metric.title for metric in columns.values()), "examples"), rows)
        baselines = _baselines(results, *next(iter(columns.items())))
        if baselines:
            self._print(baselines)

    def report(self, write: Callable[[], Path], run: str) -> None:
        """Write the report and show where it is; show an error or a signal, which does not change the outcome."""
        self.busy("report")
        logger, started = logging.getLogger("pipeline"), time.monotonic()
        try:
            file = write()
            of = "" if file.parent.name == run else " (of an earlier run: nothing has changed since)"
            text = f"report {shown(file)}{of}"
            logger.info("Report written in %.1f s", time.monotonic() - started)
        except Interrupted as error:
            text = f"no report: {error}; the run itself is complete"
        except Exception as error:
            logger.error("No report", exc_info=error)
            text = f"no report could be written: {message_of(error)}; the log has more: {shown(self._log)}"
        self.note(text)

    def _print(self, text: str | Text = "", style: str | None = None) -> None:
        self._console.print(text, style=style, soft_wrap=True)


def cpu_time(step: Step) -> str:
    """Return the CPU time of a step that ran, if it differs from the wall time by more than ``CPU_FACTOR``.

    A step that mostly waits (for a processor, a network or another machine) then shows how long it waited.
    """
    wall, cpu = step.seconds, step.cpu_seconds
    if step.state != "ran" or cpu is None or max(wall, cpu) < SHORTEST:
        return ""
    if wall > CPU_FACTOR * cpu:
        return f"CPU {cpu:.1f} s, waited {wall - cpu:.1f} s"
    return f"CPU {cpu:.1f} s" if cpu > CPU_FACTOR * wall else ""


def _baselines(results: Results, name: str, metric: Metric) -> str | None:
    """Return a metric of the simple models in a line, the best kind first."""
    values = {simple: found[name] for simple, found in results.baselines.items() if name in found}
    texts = [f"{simple} {value:.4f}" for simple, value in reversed(values.items())]
    return f"Baselines, {metric.title}: {', '.join(texts)}" if texts else None


def _gates_held(results: Results, config: PipelineConfig) -> str:
    """Return the gates over all rows, with their values, and the number of the others."""
    overall = results.metrics["overall"]
    parts = []
    for gate in config.evaluation.gates:
        if isinstance(gate, Gate):
            limits = {"floor": gate.floor, "ceiling": gate.ceiling}
            text = ", ".join(f"{name} {limit:g}" for name, limit in limits.items() if limit is not None)
            parts.append(f"{gate.metric} {overall[gate.metric]:.4f}{f' ({text})' if text else ''}")
        elif isinstance(gate, BeatsBaseline):
            other = results.baselines[gate.than][gate.metric]
            parts.append(f"{gate.metric} {overall[gate.metric]:.4f} beats {gate.than} ({other:.4f})")
    unjudged = len(results.verdict.get("unjudged", ()))
    judged = len(config.evaluation.gates) - len(parts) - unjudged
    for number, text in ((judged, "on slices"), (unjudged, "on slices not judged")):
        if number:
            parts.append(f"{number} {'gate' if number == 1 else 'gates'} {text}")
    return ", ".join(parts)


def _place_in_module(cause: BaseException | None, module: Path) -> str | None:
    """Return where in the user's module file the error arose; the wheel keeps its line numbers."""
    frames = frames_of(cause) if cause else []
    for frame in reversed(frames):
        if Path(frame.filename).name == module.name and "site-packages" not in frame.filename:
            return f"{shown(module)}, line {frame.lineno}, in {frame.name}: {frame.line}"
    return None
