"""The default pipeline on the flights of many years: seconds a row, memory and disk, step by step.

    python benchmarks/scale.py [--times 1 10] [--folder FOLDER] [--memory 8]

Years are made from the real one: each is the flights of 2013 under its own number, from 2100 on once more under the
first ones (the schema has no later ones), with temperatures that differ by noise of half a degree. A slice of few
flights has ten times as many then, and none is really new: the gates on slices are left out. Each size runs once from
an empty output folder, search and report included; then the pushed model answers all rows of the test split, the run is
done again with nothing changed, and ``runs clean`` frees what is no longer needed. Memory is the largest proportional
set size of all processes of a command together, looked at three times a second. What is free decides what the training
keeps in memory, so every command has no more than ``--memory``, where this user may make a control group (root may):
one that needs more is killed. Ten times take about fifteen minutes on two cores.

Must be reached: with the most rows no more than 1.2 times the seconds a row of the fewest, and no more memory than
``--memory`` whatever the rows. Exits 1 when it misses its target.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
FLIGHTS = ROOT / "data/flights"
STEP = re.compile(r"^  (\w+) +ran +([\d.]+) s", re.MULTILINE)
LEAST_SECONDS = 0.5  # of a step that has a separate line
AUC = re.compile(r"\bauc ([\d.]+) \(floor")  # of the verdict; progress lines have an AUC of eval
DEGREES = 0.5
FIRST_YEAR, YEARS = 2013, 88
CONFIG = """\
import runpy
from dataclasses import replace

from pipeline.config import Evaluation, Gate

CONFIG = replace(
    runpy.run_path({path!r})["CONFIG"],
    evaluation=Evaluation(gates=(Gate("auc", floor=0.67),), slices=("origin", "carrier"), threshold=0.3),
)
"""
FLAT = 1.2
# Of control groups: the folder and the file with the limit, of version 1 and 2.
CGROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))


@dataclass
class Found:
    """Measurements of a number of rows: seconds by step and command, the most memory and disk, the AUC."""

    rows: int
    seconds: dict[str, float]
    gib: dict[str, float]
    disk_gb: dict[str, float]
    auc: float


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10], help="the flights of one year")
    parser.add_argument("--folder", type=Path, help="where data and runs go (a temporary folder)")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB that a command may take (%(default)g)")
    arguments = parser.parse_args()
    if not FLIGHTS.is_dir():
        subprocess.run([sys.executable, ROOT / "data/prepare_flights.py", "--output", FLIGHTS], check=True)
    found = []
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(limited(arguments.memory))
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for times in sorted(arguments.times):
            print(f"{times} times the flights", flush=True)
            found.append(measured(years(times, folder / f"flights-{times}"), folder / f"output-{times}", group))
    return report(found, arguments.memory, group is not None)


def years(count: int, to: Path) -> Path:
    """Makes the flights of that many years, a file for each month; returns their folder."""
    for file in sorted(FLIGHTS.glob("*/*.parquet")):
        flights = pq.read_table(file)
        year, temp = (flights.schema.get_field_index(name) for name in ("year", "temp"))
        for number in range(count):
            noise = np.random.default_rng(number).normal(0, DEGREES if number else 0, len(flights)).astype(np.float32)
            made = flights.set_column(year, "year", pc.add(flights["year"], number % YEARS))
            made = made.set_column(temp, flights.schema.field(temp), pc.add(flights["temp"], pa.array(noise)))
            path = to / file.parent.name / f"{FIRST_YEAR + number}-{file.stem.partition('-')[2]}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(made, path)
    return to


@contextlib.contextmanager
def limited(gib: float) -> Iterator[Path | None]:
    """Makes a control group with a limit on memory; yields the file that takes its processes, None if it may not."""
    for root, limit in CGROUPS:
        folder = Path(root, f"scale-{os.getpid()}")
        try:
            folder.mkdir()
            (folder / limit).write_text(str(int(gib * 2**30)))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        try:
            yield folder / "cgroup.procs"
        finally:
            folder.rmdir()
        return
    yield None


def measured(data: Path, output: Path, group: Path | None) -> Found:
    """Runs everything on some data."""
    shutil.rmtree(output, ignore_errors=True)
    config = data.with_suffix(".py")
    config.write_text(CONFIG.format(path=str(ROOT / "configs/flights.py")))
    pipeline = ["local_runner.py", "--config", config, "--data", data, "--output", output]
    seconds, gib, disk = {}, {}, {"data": gigabytes(data)}
    text, seconds["the run"], gib["the run"] = timed(group, *pipeline)
    disk["after the run"] = gigabytes(output)
    _, seconds["predict, rows of test"], gib["predict, rows of test"] = timed(
        group,
        *("-m", "pipeline", "predict", "--config", config, "--output", output, "--data", data / "test"),
        *("--to", output / "answers.parquet"),
    )
    again, seconds["the run again"], gib["the run again"] = timed(group, *pipeline)
    if executed := re.findall(r"^  (\w+) +ran", again, re.MULTILINE):
        sys.exit(f"the run again, with nothing changed, executed {', '.join(executed)}")
    _, seconds["runs clean"], gib["runs clean"] = timed(
        group, *("-m", "pipeline", "runs", "clean", "--config", config, "--output", output, "--keep", "1", "--yes")
    )
    disk["after runs clean"] = gigabytes(output)
    steps = {name: float(took) for name, took in STEP.findall(text) if float(took) >= LEAST_SECONDS}
    steps["report, imports and the rest"] = seconds["the run"] - sum(steps.values())
    rows = sum(pq.read_metadata(file).num_rows for file in data.glob("*/*.parquet"))
    return Found(rows, steps | seconds, gib, disk, float(AUC.findall(text)[0]))


def timed(group: Path | None, *command: str | Path) -> tuple[str, float, float]:
    """Returns what a command prints, its seconds, and the most GiB that it and its children took."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=group and (lambda: group.write_text("0")),  # itself
    )
    with memory_of(process.pid) as most:
        text, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{text}")
    return text, time.monotonic() - started, most[0] / 2**30


@contextlib.contextmanager
def memory_of(pid: int) -> Iterator[list[int]]:
    """Watches a process and its children during the block; yields a list with their most bytes together so far."""
    most, over = [0], threading.Event()

    def watch() -> None:
        parent = psutil.Process(pid)
        while not over.wait(0.3):
            together = 0
            with contextlib.suppress(psutil.Error):
                for process in (parent, *parent.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        together += process.memory_full_info().pss
            most[0] = max(most[0], together)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield most
    finally:
        over.set()
        watching.join()


def gigabytes(folder: Path) -> float:
    """Returns the size of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9


def report(found: list[Found], most_gib: float, is_limited: bool) -> int:
    """Prints what was measured and what must be reached; returns the exit code."""
    fewest, most = found[0], found[-1]
    table = Table("", title="Microseconds a row, by rows", title_justify="left")
    for each in found:
        table.add_column(f"{each.rows:,}", justify="right")
    table.add_column("ratio", justify="right")
    for name in fewest.seconds:
        values = [1e6 * each.seconds.get(name, 0.0) / each.rows for each in found]
        table.add_row(name, *(f"{value:.2f}" for value in values), f"{values[-1] / values[0]:.2f}")
    table.add_section()
    for name in fewest.gib:
        table.add_row(f"GiB, {name}", *(f"{each.gib[name]:.1f}" for each in found), "")
    for name in fewest.disk_gb:
        table.add_row(f"GB of disk, {name}", *(f"{each.disk_gb[name]:.2f}" for each in found), "")
    table.add_row("AUC on test", *(f"{each.auc:.4f}" for each in found), "")
    console = Console()
    console.print(table)
    ratio = (most.seconds["the run"] / most.rows) / (fewest.seconds["the run"] / fewest.rows)
    largest = max(gib for each in found for gib in each.gib.values())
    reached = ratio <= FLAT and largest <= most_gib
    console.print(
        f"must reach: at most {FLAT} times the time a row of the fewest rows ({ratio:.2f} times), and {most_gib:g} GiB "
        f"of memory{'' if is_limited else ', here without a limit,'} with any number of them ({largest:.1f}): "
        f"{'reached' if reached else 'misses its target'}"
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
