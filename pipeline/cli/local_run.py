"""One run on this machine, in four parts: the steps on the terminal, the announced outcome, the record, and the report.

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
from pipeline.cli import startup
from pipeline.cli.printing import say
from pipeline.cli.startup import Interrupted
from pipeline.cli.terminal import Screen
from pipeline.errors import UserError, message_of
from pipeline.packaging.user_code import searches
from pipeline.processes import Processes, collect_rarely
from pipeline.quality.verdict import FAILED, NOT_BLESSED, PUSHED, whole_outcome
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
    """A run and, once it has ended, its outcome."""

    config: PipelineConfig
    output: Path
    command: list[str]  # as typed
    webhook: Webhook | None
    started: datetime = field(default_factory=datetime.now)
    graph: Mapping[str, Sequence[str]] = field(default_factory=dict)  # all steps, each with those it depends on
    steps: list[Step] = field(default_factory=list)  # that succeeded
    failed: tuple[str, float] | None = None  # the step that did not, and its seconds
    results: Results | None = None
    exit_code: int = FAILED
    outcome: Mapping[str, Any] = field(default_factory=dict)  # for verdict.json; of a failed run, only the reasons
    is_announced: bool = False  # from then on, the outcome no longer changes
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
        """Guess whether a step will run: the last run has failed, or a file is newer. A wrong guess costs time only."""
        verdict, data, code = self.output / VERDICT, Path(self.config.data.path), Path(self.config.module).parent
        folders = [REPOSITORY / "pipeline", REPOSITORY / "configs", code]
        files = [file for folder in folders for file in folder.rglob("*.py")]
        files += [Path(self.config.schema)] if self.config.schema else []
        files += [] if self.config.data.images else [data, *data.rglob("*")]
        try:
            if json.loads(verdict.read_text(encoding="utf-8"))["exit_code"] not in (PUSHED, NOT_BLESSED):
                return True
            ended = verdict.stat().st_mtime
            return any(file.stat().st_mtime > ended for file in files)
        except (OSError, LookupError, TypeError, ValueError):
            return True

    def execute(self, create: Callable[[], Pipeline], screen: Screen, schedule: Schedule) -> None:
        """Create the graph and run it as the schedule says; show the steps, and the results or the error."""
        from pipeline.runs import store
        from pipeline.runs.results import read_results, refusals_of
        from pipeline.runs.run_graph import run_graph, upstream_of
        from pipeline.runs.step import StepFailed

        def on_end(step: Step) -> None:
            self.steps.append(step)
            screen.step_ends(step)

        if self.config.tuning.mode == "search" and not searches(self.config):
            screen.note(f"No Tuner: {self.config.module} has no tuner_fn.")
        try:
            store.check(self.output)
            pipeline = create()
            self.graph = upstream_of(pipeline)
            self.results = read_results(run_graph(pipeline, self.name, screen.step_starts, on_end, schedule=schedule))
        except UserError:
            raise
        except Exception as error:
            startup.check_interruption()
            cause: BaseException | None = error
            others: Sequence[StepFailed] = ()
            self.failed = ("Pipeline", 0.0)
            if isinstance(error, StepFailed):
                cause, self.failed, others = error.__cause__, (error.step, error.seconds), error.others
            pushed, refusals = self._pushed("ran"), refusals_of(self.steps)
            reasons = screen.failure(*self.failed, cause, self.config, pushed=pushed, refusals=refusals, others=others)
            self.outcome = {"failed": reasons, "failed_step": self.failed[0]}
        else:
            screen.results(self.results, self.config)
            if self.results.pushed_to and self._pushed("cached"):
                screen.note("  by an earlier run; nothing has changed that would push another model")
            self.exit_code, self.outcome = self.results.exit_code, self.results.outcome

    def _pushed(self, state: str) -> bool:
        """Return whether the Pusher has pushed a model, in this run ("ran") or in an earlier one ("cached")."""
        return any(
            artifact.get_int_custom_property("pushed")
            for step in self.steps
            if (step.name, step.state) == ("Pusher", state)
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
            of_run = (self.name, self.command, self.config, self.started, self.exit_code, self.outcome)
            self._record = record.make(*of_run, self.steps, self.failed)
            if (self.output / store.FILE).is_file():
                with store.opened(self.output, write=True) as metadata:
                    record.keep(metadata, self._record)
        except Exception as error:
            note(f"note: the run is missing in `runs list`, its record could not be kept: {message_of(error)}")

    def write_report(self, processes: Processes | None) -> Path:
        """Write the report after ``keep_record``, and list it with the others; return its file.

        A run that repeats an earlier one without executing a step keeps the report of that one, which shows the same.
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

            own = folder / self.name
            run = FinishedRun(self.config, self.steps, own, self._record, self.failed, self.results, self.graph)
            file = page.write(run, processes)
        index.write(self.output, records)
        return file
