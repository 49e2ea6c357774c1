"""Calls local_runner.py as a user does, and reads what it says."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.preloaded import Preloaded

ROOT = Path(__file__).resolve().parent.parent.parent
# What a clone needs to run; tests and README are here because editing them must re-run nothing.
CODE = (
    "configs",
    "data/prepare_flights.py",
    "models",
    "pipeline",
    "schema",
    "tests/e2e",
    "local_runner.py",
    "requirements-image.lock",
    "requirements.lock",
    "vertex_runner.py",
)

# Only a command that hangs takes as long.
SECONDS = 1800

# The pipelines of this repository.
SHIPPED = ("digits", "flights")

SMALL = """\
from dataclasses import replace
from pathlib import Path
import runpy
from pipeline.config import Evaluation, Gate, SliceGate, Training, Tuning

root = Path(__file__).parent.parent
CONFIG = replace(
    runpy.run_path(str(root / "configs/flights.py"))["CONFIG"],
    tuning=Tuning(trials=2, epochs=1),
    training=Training(epochs=2, batch_size=128),
    evaluation=Evaluation(gates=(Gate("auc", floor=0.5, max_drop=0.1),), slices=("origin",), threshold=0.3),
)
"""


@dataclass(frozen=True)
class Run:
    """Output of a run and its exit code."""

    code: int
    text: str

    @property
    def states(self) -> dict[str, str]:
        """State by step, as printed."""
        return dict(re.findall(r"^  (\w+) +(ran|cached|looked up|failed) +[\d.]+ s", self.text, re.MULTILINE))

    @property
    def run_id(self) -> str:
        """Its name."""
        return re.findall(r"^\w+, run (\S+)$", self.text, re.MULTILINE)[0]

    @property
    def ran(self) -> set[str]:
        """The steps that were executed."""
        return {name for name, state in self.states.items() if state == "ran"}

    @property
    def pushed_to(self) -> Path:
        """The folder it says the model lies in."""
        found = re.search(r"^pushed to (.+)$", self.text, re.MULTILINE)
        assert found, self.text
        return Path(found[1])


def copy_repository(to: Path, flights: Path | None = None) -> Path:
    """A clone to edit, with a config that takes a minute, and with some flights as its data.

    Pipelines that `pipeline new` has made here stay behind: tests make some of their own, perhaps of the same name.
    """
    made = [path.name for path in (ROOT / "schema").iterdir() if path.is_dir() and path.name not in SHIPPED]
    left_out = shutil.ignore_patterns("__pycache__", *made, *(f"{name}.py" for name in made))
    for name in CODE:
        source, copy = ROOT / name, to / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name in ("configs", "models", "schema"):
            shutil.copytree(source, copy, ignore=left_out)
        elif source.is_dir():
            shutil.copytree(source, copy)  # with its byte code, which is valid for files with the same time and size
        else:
            shutil.copy(source, copy)
    (to / "configs/small.py").write_text(SMALL)
    if flights:
        shutil.copytree(flights, to / "data/flights")
    return to


def with_few_features(repository: Path) -> Path:
    """Leaves the derived features out of a clone's flights: for tests of all but the model, as each costs time."""
    with (repository / "models/flights.py").open("a") as module:
        module.write("\n\ndef derived(inputs, features):\n    return {}\n")
    return repository


def users_environment() -> dict[str, str]:
    """Return the variables of a user's shell: without the one that tensorflow_transform sets when it is imported."""
    return {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}


def call(repository: Path, *command: str | Path, preloaded: bool = True) -> Run:
    """Calls Python there; a runner in a process that has TFX imported already, unless not wanted.

    There ``tf.keras`` may be Keras 2, as tensorflow_transform is imported before anybody asks for it.
    """
    script, *arguments = map(str, command)
    environment = users_environment()
    if script in ("local_runner.py", "vertex_runner.py") and preloaded:
        process = Preloaded(script, arguments, repository, environment)
        with process.stdout:
            return Run(text=process.stdout.read(), code=process.wait())
    done = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=repository,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Run(done.returncode, done.stdout)


def run(
    repository: Path,
    *arguments: str | Path,
    runner: str = "local_runner.py",
    config: str = "configs/small.py",
    preloaded: bool = True,
) -> Run:
    """Runs a config there, the small one if none is named; see ``call``."""
    return call(repository, runner, *arguments, "--config", config, preloaded=preloaded)


def runs(repository: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Looks at the runs there."""
    command = [sys.executable, "-m", "pipeline", "runs", *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def edit(file: Path, old: str, new: str) -> None:
    """Replaces a text that is there exactly once."""
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
    file.write_text(text.replace(old, new))
