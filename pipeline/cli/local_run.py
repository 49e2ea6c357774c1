"""One run on this machine: show its steps, announce its outcome, and keep its record and report.

TFX is imported where it is needed: the command line is checked, and the log in place, before that takes its seconds.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import filesystem
from pipeline.cli import interruption
from pipeline.cli.interruption import Interrupted
from pipeline.cli.printing import say
from pipeline.cli.terminal import Screen, message_of
from pipeline.errors import UserError
from pipeline.evaluation.verdict import FAILED, NOT_BLESSED, PUSHED, whole_outcome
from pipeline.packaging.user_code import searches
from pipeline.processes import Processes, collect_rarely
from pipeline.runs.webhook import Webhook
from pipeline.settings.config import PipelineConfig
from pipeline.settings.repository import REPOSITORY

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline

    from pipeline.runs.record import Record
    from pipeline.runs.results import Results
    from pipeline.runs.run_graph import Schedule
    from pipeline.runs.step import Step

VERDICT = "verdict.json"


def load_libraries() -> None:
    """Import what creates a graph and runs it, which takes seconds."""
    # What is imported stays: to look for garbage among it, now and at the end, is a third of those seconds for nothing.
    gc.disable()
    import tensorflow as tf

    # Who asks for tf.keras first decides which Keras it is. tensorflow_transform would make it Keras 2; module files
    # get Keras 3.
    _ = tf.keras.Model
    import pipeline.graph
    import pipeline.runs.engine
    import pipeline.runs.run_graph  # noqa: F401

    collect_rarely()


@dataclass
class LocalRun:
    """A run and, once it has ended, its outcome.

    Attributes:
        config: WHAT runs.
        output: Folder for artifacts, logs and pushed models.
        command: As typed.
        webhook: Receives the outcome; None: no receiver.
        started: Local time.
        graph: All steps in their order, each with those it depends on; empty until there is a graph.
        steps: Those that ended well, in their order.
        failed: The step that did not, and its seconds.
        results: Metrics and verdict; None when no model was judged.
        exit_code: Of the runner.
        outcome: For verdict.json: the verdict and the metrics; of a failed run "failed" alone, the reasons.
        is_announced: Whether that is in verdict.json, and stays whatever happens to the report.
    """

    config: PipelineConfig
    output: Path
    command: list[str]
    webhook: Webhook | None
    started: datetime = field(default_factory=datetime.now)
    graph: Mapping[str, Sequence[str]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    failed: tuple[str, float] | None = None
    results: Results | None = None
    exit_code: int = FAILED
    outcome: Mapping[str, Any] = field(default_factory=dict)
    is_announced: bool = False
    _record: Record | None = None

    @property
    def name(self) -> str:
        """Return the name of the run, in the metadata store too."""
        return self.started.strftime("%Y-%m-%dT%H-%M-%S")

    @property
    def log(self) -> Path:
        """Return the log file."""
        return self.output / "logs" / f"{self.name}.log"

    def expects_work(self) -> bool:
        """Return whether a step will probably run: no run has ended here, or a file was edited since the last one.

        A guess that decides what is started ahead: a wrong one costs time only.
        """
        verdict = self.output / VERDICT
        data = [] if self.config.data.images else [Path(self.config.data.path)]
        code = [REPOSITORY / "pipeline", REPOSITORY / "configs", Path(self.config.module).parent]
        read = [file for folder in code for file in folder.rglob("*.py")]
        read += [file for path in data for file in (path, *path.rglob("*"))]
        read += [Path(self.config.schema)] if self.config.schema else []
        try:
            if json.loads(verdict.read_text(encoding="utf-8"))["exit_code"] not in (PUSHED, NOT_BLESSED):
                return True
            ended = verdict.stat().st_mtime
            return any(file.stat().st_mtime > ended for file in read)
        except (OSError, LookupError, TypeError, ValueError):
            return True

    @property
    def _has_pushed(self) -> bool:
        """Return whether the Pusher has pushed in this run."""
        return any(
            artifact.get_int_custom_property("pushed")
            for step in self.steps
            if (step.name, step.state) == ("Pusher", "ran")
            for artifact in step.outputs["pushed_model"]
        )

    @contextlib.contextmanager
    def announcing_errors(self) -> Iterator[None]:
        """Announce a UserError or an interruption as the outcome, and raise it again."""
        try:
            yield
        except (UserError, Interrupted) as error:
            if self.is_announced:
                raise
            sentence = str(error)
            if isinstance(error, Interrupted):
                self.exit_code = error.exit_code
                after = f" after {self.steps[-1].name}" if self.steps else ""
                sentence = f"{error}{after}; finished steps are kept, run again to go on"
            self.outcome = {"failed": [sentence]}
            self.announce(say)
            raise

    def execute(self, create: Callable[[], Pipeline], screen: Screen, schedule: Schedule) -> None:
        """Create the graph and run it; show every step, and the results or the step that failed.

        Args:
            create: Creates the graph.
            screen: Shows it.
            schedule: Decides when and where the steps run, see ``run_graph``.

        Raises:
            UserError: the run cannot start, or its results cannot be used.
        """
        from pipeline.runs import store
        from pipeline.runs.results import read_results, warnings_of
        from pipeline.runs.run_graph import run_graph, upstream_of
        from pipeline.runs.step import StepFailed

        running: list[str] = []

        def on_start(name: str) -> None:
            running.append(name)
            screen.step_starts(*running)

        def on_end(step: Step) -> None:
            running.remove(step.name)
            self.steps.append(step)
            screen.step_ends(step)
            interruption.check()
            for sentence in warnings_of(step):
                screen.warning(sentence)
            if running:
                screen.step_starts(*running)

        if self.config.tuning.mode == "search" and not searches(self.config):
            screen.note(f"No Tuner: {self.config.module} has no tuner_fn.")
        try:
            store.check(self.output)
            pipeline = create()
            self.graph = upstream_of(pipeline)
            steps = run_graph(pipeline, self.name, on_start, on_end, schedule=schedule)
            self.results = read_results(steps)
        except UserError:
            raise
        except Exception as error:
            interruption.check()
            cause: BaseException | None = error
            self.failed = ("Pipeline", 0.0)
            if isinstance(error, StepFailed):
                cause, self.failed = error.__cause__, (error.step, error.seconds)
            reason = screen.failure(*self.failed, cause, self.config, pushed=self._has_pushed)
            self.outcome = {"failed": [reason], "failed_step": self.failed[0]}
        else:
            screen.results(self.results, self.config)
            if self.results.pushed_to and any(step.name == "Pusher" and step.state == "cached" for step in self.steps):
                screen.note("  by an earlier run; nothing has changed that would push another model")
            self.exit_code, self.outcome = self.results.exit_code, self.results.outcome

    def announce(self, note: Callable[[str], None]) -> None:
        """Write verdict.json and send it to the webhook; note if that fails, which does not change the outcome."""
        verdict = whole_outcome(self.name, self.exit_code, self.outcome)
        try:
            filesystem.write(self.output / VERDICT, json.dumps(verdict, indent=2) + "\n")
        except OSError as error:
            note(f"note: {VERDICT} could not be written: {error.strerror}")
        self.is_announced = True
        problem = self.webhook and self.webhook.tell(self.config.name, self.name, verdict)
        if problem:
            note(f"note: webhook delivery failed: {problem}")

    def keep_record(self, note: Callable[[str], None]) -> None:
        """Keep the record of the run in the metadata store; note if that fails, which does not change the outcome."""
        from pipeline.runs import record, store

        try:
            places = {name: place for place, name in enumerate(self.graph)}
            self.steps.sort(key=lambda step: places[step.name])  # several may have run at the same time
            self._record = record.make(
                self.name,
                self.command,
                self.config,
                self.started,
                self.exit_code,
                self.outcome,
                self.steps,
                self.failed,
            )
            if (self.output / store.FILE).is_file():
                with store.opened(self.output, write=True) as metadata:
                    record.keep(metadata, self._record)
        except Exception as error:
            note(f"note: the run is missing in `runs list`, its record could not be kept: {message_of(error)}")

    def write_report(self, processes: Processes | None = None) -> Path:
        """Write the report of the run after ``keep_record``, and list it with the others.

        A run that repeats an earlier one without executing a step keeps the report of that one, which shows the same.

        Args:
            processes: To draw some charts at the same time as the others; None: sequentially.

        Returns:
            The file of the report.
        """
        from pipeline.report import index
        from pipeline.runs import store
        from pipeline.runs.record import repeats

        assert self._record
        folder, records = self.output / "runs", store.records(self.output)
        equal = (folder / earlier.run / index.REPORT for earlier in reversed(records) if repeats(self._record, earlier))
        file = next(filter(Path.is_file, equal), None)
        if file is None:
            from pipeline.report import page
            from pipeline.report.finished_run import FinishedRun

            run = FinishedRun(
                self.config, self.steps, folder / self.name, self._record, self.failed, self.results, self.graph
            )
            file = page.write(run, processes)
        index.write(self.output, records)
        return file
