"""The data steps with 1, 2 and 4 workers of Beam in processes of their own: how the work is dealt.

    python benchmarks/beam_workers.py [--times 4] [--workers 1 2 4] [--folder FOLDER]

The default pipeline on the flights of some years (made as by ``scale.py``), without a search and with a short training,
with Beam's FnApiRunner and a shard for each month, so that every worker finds some. A
job starts its workers anew, and they import TensorFlow and TFX. The work of a worker is its processor time beyond that
of these imports, which is measured here, too; docs/scale.md reckons with it. Processor time says how a job would scale
with a core for each worker, whatever cores this machine has and what else it does; seconds on the clock are shown for
the user of this machine.

Must be reached: of the work that one worker does alone in Transform and in the Evaluator, the busiest of several does
at most 1.6 times its share (0.8 with two, 0.4 with four): shards are never dealt quite evenly, and each worker builds
its own graphs. Exits 1 when it misses its target. About ten minutes on two free cores.
"""

import argparse
import contextlib
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from scale import FLIGHTS, ROOT, years

STEPS = ("ExampleGen", "StatisticsGen", "Transform", "Evaluator")
STEP = re.compile(r"^  (\w+) +ran +([\d.]+) s")
WORKER = "apache_beam.runners.worker.sdk_worker_main"
JUDGED, MOST_OF_SHARE = ("Transform", "Evaluator"), 1.6
IMPORTS = "import pipeline.components.transform, pipeline.components.evaluator"
CONFIG = """\
import runpy
from dataclasses import replace

from pipeline.config import Evaluation, Gate, Training, Tuning

WHOLE = runpy.run_path({path!r})["CONFIG"]
CONFIG = replace(
    WHOLE,
    data=replace(WHOLE.data, shard_mb=2),
    tuning=Tuning("off"),
    training=Training(epochs=1, batch_size=8192),
    evaluation=Evaluation(gates=(Gate("auc", floor=0.5),), slices=("origin", "carrier"), threshold=0.3),
)
"""


# No user's command does that: with several workers this runner of Beam loses rows, unless it is told to send nothing by
# the clock (docs/decisions/0028).
RUN = """\
import runpy, sys

from apache_beam.runners.portability.fn_api_runner import worker_handlers

from pipeline.settings import target

worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
workers = sys.argv.pop(1)
target.IN_PROCESS = (
    "--runner=FnApiRunner", "--direct_running_mode=multi_processing", f"--direct_num_workers={workers}",
    "--sdk_container_image=none",
)
sys.argv[0] = "local_runner.py"
runpy.run_path("local_runner.py", run_name="__main__")
"""


@dataclass
class Found:
    """Seconds by step; and by step a list of its jobs, each with the processor seconds of its workers."""

    seconds: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, list[list[float]]] = field(default_factory=dict)


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=4, help="years of flights")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--folder", type=Path, help="where data and runs go (a temporary folder)")
    arguments = parser.parse_args()
    if not FLIGHTS.is_dir():
        subprocess.run([sys.executable, ROOT / "data/prepare_flights.py", "--output", FLIGHTS], check=True)
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = years(arguments.times, folder / f"flights-{arguments.times}")
        config = folder / "short.py"
        config.write_text(CONFIG.format(path=str(ROOT / "configs/flights.py")))
        found = {
            workers: measured(config, data, folder / f"output-{workers}", workers)
            for workers in sorted({1, *arguments.workers})
        }
        rows = sum(pq.read_metadata(file).num_rows for file in data.glob("*/*.parquet"))
    return report(found, rows)


def measured(config: Path, data: Path, output: Path, workers: int) -> Found:
    """Runs the pipeline with so many workers."""
    print(f"{workers} workers", flush=True)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(workers), "--config", config, "--data", data, "--output", output],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    found, lines, over = Found(), [], threading.Event()
    seen: dict[int, tuple[float, float]] = {}  # when a worker was first seen, and its processor time so far
    watching = threading.Thread(target=watch, args=(process.pid, seen, over), daemon=True)
    watching.start()
    before = time.monotonic()
    assert process.stdout
    for line in process.stdout:
        lines.append(line)
        if step := STEP.match(line):
            now = time.monotonic()
            found.seconds[step[1]] = float(step[2])
            # Workers of a job begin together, and those of the next when they have ended.
            busy = [busy for first, busy in sorted(seen.values()) if before <= first < now]
            found.jobs[step[1]] = [busy[at : at + workers] for at in range(0, len(busy), workers)]
            before = now
    over.set()
    watching.join()
    if process.wait():
        sys.exit(f"the run with {workers} workers ended with {process.returncode}:\n{''.join(lines)}")
    return found


def watch(pid: int, seen: dict[int, tuple[float, float]], over: threading.Event) -> None:
    """Looks at the workers among the children of a process, until it is over."""
    parent = psutil.Process(pid)
    while not over.wait(0.2):
        with contextlib.suppress(psutil.Error):
            for child in parent.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.pid in seen or (WORKER in child.cmdline() and "python" in child.name()):
                        times = child.cpu_times()
                        first = seen.get(child.pid, (time.monotonic(), 0.0))[0]
                        seen[child.pid] = first, times.user + times.system


def importing() -> float:
    """Returns the processor seconds of the imports of a worker."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def busiest(jobs: list[list[float]], start: float) -> float:
    """Returns the work of the busiest worker of each job, together."""
    return sum(max(0.0, max(job) - start) for job in jobs)


def report(found: dict[int, Found], rows: int) -> int:
    """Prints what was measured and what must be reached; returns the exit code."""
    start = importing()
    console = Console()
    table = Table("", title="Seconds on the clock", title_justify="left")
    work = Table(
        "", title=f"Work of the busiest worker, seconds beyond the {start:.1f} of imports", title_justify="left"
    )
    for workers in found:
        table.add_column(f"{workers} workers", justify="right")
        work.add_column(f"{workers} workers", justify="right")
    work.add_column("one, µs a row", justify="right")
    short = []
    for step in STEPS:
        table.add_row(step, *(f"{each.seconds[step]:.1f}" for each in found.values()))
        alone = busiest(found[1].jobs[step], start)
        row = []
        for workers in found:
            part = busiest(found[workers].jobs[step], start)
            row.append(f"{part:.1f} ({part / alone:.2f})" if alone else "-")
            if step in JUDGED and part > MOST_OF_SHARE / workers * alone:
                short.append(f"{step} with {workers}")
        work.add_row(step, *row, f"{1e6 * alone / rows:.1f}")
    console.print(table)
    console.print(work)
    console.print(
        f"must reach: the busiest of several workers of {' and '.join(JUDGED)} does at most {MOST_OF_SHARE} times its "
        f"share: {'falls short: ' + ', '.join(short) if short else 'reached'}"
    )
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
