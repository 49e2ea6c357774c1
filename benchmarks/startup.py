"""How long each command takes to start, in multiples of the bare import of TensorFlow on the same machine.

    python benchmarks/startup.py [--rounds 3]
    python benchmarks/startup.py --imports

Needs a pushed model and the data: make run. Every round measures each command next to `import tensorflow` or, for the
runner, `import tfx.v1` in a new process; the median of the rounds' ratios is judged. Seconds are for information. Exits
1 when a target is missed.

With ``--imports`` it shows instead which libraries each command has loaded when it ends.
"""

import argparse
import atexit
import contextlib
import os
import re
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
from reference import import_seconds, judge
from rich.console import Console
from rich.table import Table

from pipeline.cli.startup import with_allocation

ROOT = Path(__file__).resolve().parent.parent
TENSORFLOW, TFX = "tensorflow", "tfx.v1"
LOAD = "from pipeline.cli.local_run import load_libraries; load_libraries()"
# Columns of the table of imports: a library, and the module that stands for it.
LIBRARIES = {
    "TensorFlow": "tensorflow",
    "Transform": "tensorflow_transform",
    "TFDV": "tensorflow_data_validation",
    "TFMA": "tensorflow_model_analysis",
    "Beam": "apache_beam",
    "TFX": "tfx.types",
    "Google Cloud": "google.cloud.aiplatform",
    "Kubeflow": "kfp",
    "scikit-learn": "sklearn.ensemble",
    "pandas": "pandas",
    "Matplotlib": "matplotlib.figure",
}


@dataclass(frozen=True)
class Command:
    """A command and its target.

    Attributes:
        arguments: After the interpreter; {folder} is a temporary folder with rows to read.
        most: Multiple of the import of ``unit`` that it may take; None: shown only.
        unit: Module whose import is the unit.
        until_healthy: Whether it is measured until its server answers, and then ended.
    """

    arguments: tuple[str, ...]
    most: float | None
    unit: str = TENSORFLOW
    until_healthy: bool = False


COMMANDS = {
    "predict, 100 rows": Command(
        ("-m", "pipeline", "predict", "--data", "{folder}/100.parquet", "--to", "{folder}/out.parquet", "--replace"),
        most=1.6,
    ),
    "serve, until healthy": Command(("-m", "pipeline", "serve", "--port", "0"), most=1.8, until_healthy=True),
    "new, 1,000 rows": Command(
        ("-m", "pipeline", "new", "startup_benchmark", "--data", "{folder}/1000.csv", "--label", "late", "--replace"),
        most=1.6,
    ),
    "runs list": Command(("-m", "pipeline", "runs", "list"), most=0.3),
    "schema diff": Command(("-m", "pipeline", "schema", "diff"), most=None),
    "local_runner.py --help": Command(("local_runner.py", "--help"), most=0.1),
    "the runner's imports": Command(("-c", LOAD), most=0.5, unit=TFX),
    "second run, nothing changed": Command(("local_runner.py",), most=0.6, unit=TFX),
}
MADE_BY_NEW = ("configs/startup_benchmark.py", "models/startup_benchmark.py", "schema/startup_benchmark")


def main() -> int:
    """Print a table; return the exit code."""
    if sys.argv[1:2] == ["--record"]:
        return record(Path(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--imports", action="store_true", help="show what each command imports")
    arguments = parser.parse_args()
    with rows() as folder:
        for name in ("new, 1,000 rows", "second run, nothing changed"):  # nothing has changed in the next one
            took(name, folder)
        return imports(folder) if arguments.imports else startup(folder, arguments.rounds)


def startup(folder: str, rounds: int) -> int:
    """Measure and judge every command."""
    units: dict[str, list[float]] = {name: [] for name in COMMANDS}
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            units[name].append(import_seconds(command.unit))
            seconds[name].append(took(name, folder))
    table = Table("command", "s", "unit", "unit, s", "ratio", "from", "to", title_justify="left")
    ratios = {}
    for name, command in COMMANDS.items():
        found = sorted(mine / unit for mine, unit in zip(seconds[name], units[name], strict=True))
        ratios[name] = statistics.median(found)
        numbers = [f"{number:.2f}" for number in (statistics.median(units[name]), ratios[name], found[0], found[-1])]
        table.add_row(name, f"{statistics.median(seconds[name]):.2f}", f"import {command.unit}", *numbers)
    Console(width=120).print(table)
    verdicts = [
        judge(
            f"{name}: ≤ {command.most:g} times import {command.unit}",
            f"{ratios[name]:.2f}",
            ratios[name] <= command.most,
        )
        for name, command in COMMANDS.items()
        if command.most is not None
    ]
    return 0 if all(verdicts) else 1


def imports(folder: str) -> int:
    """Show what each command has loaded when it ends."""
    table = Table("command", "modules", *LIBRARIES, title_justify="left")
    for name in COMMANDS:
        file = Path(folder, "modules")
        took(name, folder, (__file__, "--record", str(file)))
        modules = set(file.read_text().split())
        table.add_row(name, f"{len(modules):,}", *("x" if module in modules else "" for module in LIBRARIES.values()))
    Console(width=160).print(table)
    return 0


def record(file: Path, arguments: list[str]) -> int:
    """Run Python with arguments in this process, and write the names of the loaded modules to a file."""
    pid = os.getpid()
    # A runner ends without the handlers of atexit where it forks.
    atexit.register(lambda: os.getpid() == pid and file.write_text("\n".join(sys.modules)))
    flag, *rest = arguments
    if flag == "-c":
        exec(rest[0])
    elif flag == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(flag, run_name="__main__")
    return 0


def took(name: str, folder: str, before: tuple[str, ...] = ()) -> float:
    """Run a command; return its seconds, those until its server answers if it has one."""
    command = COMMANDS[name]
    line = [sys.executable, *before, *(argument.format(folder=folder) for argument in command.arguments)]
    environment = with_allocation(os.environ) | {"PYTHONPATH": str(ROOT)}  # or the runner would start itself again
    started = time.monotonic()
    with subprocess.Popen(
        line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        if command.until_healthy:
            output = next((line for line in process.stdout if "answers at" in line), "")
            found = re.search(r"http://[\w.:]+", output)
            if not found:
                sys.exit(f"{name} has no server: {output}")
            with urllib.request.urlopen(f"{found[0]}/health", timeout=60) as answer:
                assert answer.status == 200
            seconds = time.monotonic() - started
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
        else:
            output = process.stdout.read()
            process.wait()
            seconds = time.monotonic() - started
    if process.returncode not in (0, 3):  # 3: the schema differs from the data
        sys.exit(f"{name} failed:\n{output}")
    return seconds


@contextlib.contextmanager
def rows() -> Iterator[str]:
    """Yield a folder with rows of the flights to read; remove what the commands write into the repository."""
    file = next((ROOT / "data/flights/eval").glob("*.parquet"), None)
    if file is None or not (ROOT / "output/flights/serving").is_dir():
        sys.exit("no pushed model of the flights; run: make run")
    table = pyarrow.parquet.ParquetFile(file).read()
    with tempfile.TemporaryDirectory() as folder:
        pyarrow.parquet.write_table(table.slice(0, 100), f"{folder}/100.parquet")
        pyarrow.csv.write_csv(table.slice(0, 1_000), f"{folder}/1000.csv")
        try:
            yield folder
        finally:
            for path in MADE_BY_NEW:
                (shutil.rmtree if (ROOT / path).is_dir() else Path.unlink)(ROOT / path)


if __name__ == "__main__":
    sys.exit(main())
