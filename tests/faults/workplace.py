"""A copy of the repository with a small pipeline, and its output folder as it was after each step of the first run."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from pipeline.filesystem import digests
from pipeline.model.versions import Versions, changed_since_push
from tests.e2e.run import Run, copy_repository, users_environment
from tests.gauntlet.tables import from_packages
from tests.preloaded import Preloaded

NAME = "tumours"
EMPTY, START, END = "empty folders", "start", "end"
# Of a run or a command, by far the longest; what takes longer hangs.
SECONDS = 800
CONFIG = f"""\
from pipeline.config import Data, Evaluation, Gate, HashSplit, Label, PipelineConfig, Training, Tuning

CONFIG = PipelineConfig(
    name="{NAME}",
    data=Data("data/{NAME}.csv", split_by=HashSplit(shares={{"train": 6, "eval": 2, "test": 2}})),
    label=Label("diagnosis", classes=("benign", "malignant")),
    schema="schema/{NAME}/schema.pbtxt",
    module="models/{NAME}.py",
    tuning=Tuning(trials=2, epochs=1),
    training=Training(epochs=3, batch_size=32, explain_rows=0),
    evaluation=Evaluation(gates=(Gate("auc", floor=0.6, max_drop=0.02),)),
)
"""


class Broken(Exception):
    """After a fault something is not as it must be."""


@dataclass
class Strike:
    """An event in the middle of a run.

    Attributes:
        after: The step whose line it waits for, or START: the first line.
        seconds: Waited from then on.
        act: Called with the process.
    """

    after: str
    seconds: float
    act: Callable[[Any], object]


@dataclass
class Workplace:
    """The folders.

    Attributes:
        folder: Of everything.
        steps: Seconds of each step of the first run, in their order; "start" are those before the first.
        metrics: Of the first run, on the test split.
        answers: Of its model to the rows of the table.
    """

    folder: Path
    steps: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    answers: np.ndarray = field(default_factory=lambda: np.empty(0))
    _answers: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def copy(self) -> Path:
        """The repository."""
        return self.folder / "repository"

    @property
    def output(self) -> Path:
        """The output folder of the runs."""
        return self.folder / "output"

    @property
    def scratch(self) -> Path:
        """TMPDIR of the runs."""
        return self.folder / "tmp"

    @property
    def versions(self) -> Versions:
        """Versions of the model."""
        return Versions(self.output / "serving" / NAME)

    def prepare(self) -> None:
        """Make the repository; run its pipeline once, and keep the output folder as it is after every step."""
        copy_repository(self.copy)
        from_packages.breast_cancer().to_csv(self.copy / f"data/{NAME}.csv", index=False)
        made = self.command("-m", "pipeline", "new", NAME, "--data", f"data/{NAME}.csv", "--label", "diagnosis")
        if made.code:
            raise Broken(made.text)
        (self.copy / f"configs/{NAME}.py").write_text(CONFIG)
        # The first imports write byte code, which all later ones find.
        self.command("local_runner.py", "--help")
        last = time.monotonic()

        def keep(process: Any, line: str) -> None:
            nonlocal last
            if found := re.match(r"  (\w+) +(ran|looked up) ", line) or re.match(f"({NAME}), run", line):
                os.kill(process.pid, signal.SIGSTOP)
                name = START if found[1] == NAME else found[1]
                self.steps[name] = time.monotonic() - last
                self._keep(name)
                os.kill(process.pid, signal.SIGCONT)
                last = time.monotonic()

        first = self.run(on_line=keep)
        if first.code:
            raise Broken(f"the first run ended with {first.code}\n{first.text}")
        self._keep(END)
        self.metrics = self.verdict()["metrics"]
        self.answers = self.answers_of(self.versions.path(self.versions.resolve()))

    def _keep(self, moment: str) -> None:
        shutil.copytree(self.output, self.folder / "moments" / moment, symlinks=True)

    def restore(self, moment: str) -> None:
        """Put the output folder back: to EMPTY, END, START or after a step."""
        for folder in (self.output, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)
        self.scratch.mkdir()
        if moment != EMPTY:
            shutil.copytree(self.folder / "moments" / moment, self.output, symlinks=True)

    def run(
        self,
        *arguments: str | Path,
        strike: Strike | None = None,
        on_line: Callable[[Any, str], None] = lambda process, line: None,
        **options: Any,
    ) -> Run:
        """Run the pipeline to its end, whatever happens to it meanwhile."""
        if "--output" not in arguments:
            arguments = ("--output", self.output, *arguments)
        with self.start("local_runner.py", "--pipeline", NAME, *arguments, **options) as process:
            lines = []
            for line in process.stdout:
                lines.append(line)
                on_line(process, line)
                if strike and (strike.after == START or line.startswith(f"  {strike.after} ")):
                    time.sleep(strike.seconds)
                    strike.act(process)
                    strike = None
        return Run(process.returncode, "".join(lines))

    def command(self, *arguments: str | Path, **options: Any) -> Run:
        """Call Python in the repository, to its end."""
        with self.start(*arguments, **options) as process:
            text = process.stdout.read()
        return Run(process.returncode, text)

    @contextlib.contextmanager
    def start(self, *arguments: str | Path, environment: dict[str, str] | None = None, **options: Any) -> Iterator[Any]:
        """Start Python in the repository, in a separate group of processes; kill what hangs.

        The runner is started with its packages imported, unless it needs another environment or options.

        Raises:
            Broken: it has not ended after SECONDS.
        """
        self.scratch.mkdir(exist_ok=True)
        then = options.pop("preexec_fn", None)

        def as_in_a_terminal() -> None:
            # A shell lets what it starts with & ignore Ctrl-C, and nohup SIGHUP; a run would ignore them, too.
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            if then:
                then()

        variables = {**users_environment(), "TMPDIR": str(self.scratch), **(environment or {})}
        words = list(map(str, arguments))
        if words[0] == "local_runner.py" and not environment and not options and then is None:
            process: Any = Preloaded(words[0], words[1:], self.copy, variables)
        else:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.copy,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=as_in_a_terminal,
                **options,
            )
        with process.stdout:
            hangs = threading.Event()

            def kill() -> None:
                hangs.set()
                send(process, signal.SIGKILL, group=True)

            timer = threading.Timer(SECONDS, kill)
            timer.start()
            try:
                yield process
            except BaseException:
                kill()
                raise
            finally:
                process.wait()
                timer.cancel()
        if hangs.is_set():
            raise Broken(f"{arguments[0]} hangs")

    def verdict(self) -> dict[str, Any]:
        """The verdict of the last run."""
        return dict(json.loads((self.output / "verdict.json").read_text(encoding="utf-8")))

    def answers_of(self, version: Path) -> np.ndarray:
        """Answers of a version to the rows of the table; loaded once whatever its number."""
        key = json.dumps({name: digest for name, digest in digests(version).items() if name != "manifest.json"})
        if key not in self._answers:
            rows = pd.read_csv(self.copy / f"data/{NAME}.csv")
            signature = tf.saved_model.load(str(version)).signatures["serving_default"]
            names = {column.replace(" ", "_"): column for column in rows}
            given = {
                argument: tf.constant(rows[names[argument]].to_numpy("float32"))
                for argument in signature.structured_input_signature[1]
            }
            self._answers[key] = signature(**given)["probability"].numpy()
        return self._answers[key]

    def check_versions(self) -> None:
        """Raise Broken unless every visible version is whole, loads, and answers as the version of the first run."""
        for number in self.versions._folders():
            version = self.versions.path(number)
            if changed := changed_since_push(version):
                raise Broken(f"version {number} is visible and not whole: {changed}")
            if not np.allclose(self.answers_of(version), self.answers, atol=1e-6):
                raise Broken(f"version {number} answers otherwise")

    def check_next_run(self) -> Run:
        """Run again; raise Broken unless model and metrics are as in the first run, and nothing is left over."""
        done = self.run()
        readable(done)
        if done.code:
            raise Broken(f"the next run ended with {done.code}\n{done.text}")
        verdict = self.verdict()
        if verdict["metrics"] != self.metrics:
            raise Broken(f"other metrics in the next run: {verdict['metrics']}")
        if not np.allclose(self.answers_of(Path(verdict["pushed_to"])), self.answers, atol=1e-6):
            raise Broken("the next run pushed another model")
        self.check_versions()
        if left := sorted(path.name for path in self.scratch.iterdir()):
            raise Broken(f"left over in the temporary folder: {', '.join(left)}")
        return done


def readable(ended: Run) -> None:
    """Raise Broken if a user finds a traceback or a line of a kilobyte instead of a sentence."""
    if "Traceback (most recent call last)" in ended.text:
        raise Broken(f"a traceback\n{ended.text}")
    if any(len(line) > 1000 for line in ended.text.splitlines()):
        raise Broken(f"a line of more than 1,000 characters\n{ended.text}")


def send(process: Any, number: signal.Signals, group: bool = False) -> None:
    """Send a signal to a process, or to its whole group as a terminal does."""
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process.pid, number)
