"""The default run: step by step, again with nothing changed, next to other work, to an earlier commit or to TFX alone.

    python benchmarks/default_run.py
    python benchmarks/default_run.py --engines [--rounds 3]
    python benchmarks/default_run.py --busy 2 [--rounds 3]
    python benchmarks/default_run.py --before COMMIT [--at-most 1.05] [--rounds 3]

Without options: a run in a new output folder, then three more, each next to the import of TFX. The second run must
execute nothing and take at most 0.6 of the import.

With ``--busy N``: runs alternate without and with N endless single-threaded processes next to them, on a terminal. With
one such process for each core the run must take at most 2.5 times as long as without, and its output must never stand
still for more than 10 seconds.

With ``--engines``: runs with the fast and the stock engine alternate. The stock engine must take at least 1.5 times as
long, and the AUC of the two may differ by 0.005.

With ``--before``: runs of this state and of an earlier commit alternate, with the installed packages. This state must
take at most ``--at-most`` times as long.

Ratios are medians over the rounds; seconds are for information. Exits 1 when a target is missed.
"""

import argparse
import contextlib
import os
import pty
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from reference import import_seconds, judge
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
STEP = re.compile(r"^  (\w+) +(ran|cached|looked up) +([\d.]+) s", re.MULTILINE)
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
RUNS = 3
AUC = re.compile(r"\bauc ([\d.]+) \(floor")
MOST_OF_IMPORT, MOST_OF_QUIET, LONGEST_PAUSE = 0.6, 2.5, 10.0
LEAST_OF_FAST, MOST_AUC_DIFFERENCE = 1.5, 0.005
WHOLE, PAUSE = "in all, with imports", "longest pause of the output"


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--busy", type=int, metavar="N", help="compare with a run next to N endless processes")
    others.add_argument("--engines", action="store_true", help="compare the fast with the stock engine")
    others.add_argument("--before", metavar="COMMIT", help="compare with this commit")
    parser.add_argument("--at-most", type=float, default=1.05, help="of the commit's time (%(default)s)")
    parser.add_argument("--rounds", type=int, default=RUNS, help="of both, to compare (%(default)s)")
    arguments = parser.parse_args()
    if arguments.busy:
        return next_to_others(arguments.busy, arguments.rounds)
    if arguments.engines:
        return engines(arguments.rounds)
    return compare(arguments.before, arguments.rounds, arguments.at_most) if arguments.before else alone()


def alone() -> int:
    """Measure this state, and run it again."""
    with tempfile.TemporaryDirectory() as output:
        first = run(output)
        again, imports = [], []
        for _ in range(RUNS):
            again.append(run(output))
            imports.append(import_seconds())
    table = Table("step", "first run, s", "second run", title="The default run", title_justify="left")
    states = {name: state for name, state, _ in STEP.findall(again[-1].text)}
    for name, seconds in first.steps.items():
        table.add_row(name, f"{seconds:.1f}", states[name])
    seconds = statistics.median(each.seconds for each in again)
    table.add_row(WHOLE, f"{first.seconds:.1f}", f"{seconds:.1f} s")
    table.add_row("import of TFX", "", f"{statistics.median(imports):.1f} s")
    Console().print(table)
    executed = [name for name, state in states.items() if state == "ran"]
    ratio = statistics.median(each.seconds / unit for each, unit in zip(again, imports, strict=True))
    met = judge("the second run executes nothing", ", ".join(executed) or "nothing executed", not executed)
    met &= judge(
        f"the second run takes at most {MOST_OF_IMPORT} of import tfx.v1", f"{ratio:.2f}", ratio <= MOST_OF_IMPORT
    )
    return 0 if met else 1


def next_to_others(processes: int, rounds: int) -> int:
    """Let runs alternate without and with endless processes."""
    found: dict[str, list[Run]] = {"quiet": [], "busy": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for which in ("quiet", "busy"):
                with busy(processes if which == "busy" else 0):
                    found[which].append(run(f"{folder}/{which}-{number}"))
                shutil.rmtree(f"{folder}/{which}-{number}")
    ratio = show(f"The default run, alone and next to {processes} endless processes", found)
    cores = len(os.sched_getaffinity(0))
    longest = max(each.pause for each in found["busy"])
    met = judge(
        f"at most {MOST_OF_QUIET} of the quiet time with {cores} endless processes on {cores} cores",
        f"{ratio:.2f}",
        ratio <= MOST_OF_QUIET,
    )
    met &= judge(f"no pause of the output over {LONGEST_PAUSE:.0f} s", f"{longest:.1f} s", longest <= LONGEST_PAUSE)
    return 0 if met else 1


def engines(rounds: int) -> int:
    """Let runs with the fast and the stock engine alternate."""
    found: dict[str, list[Run]] = {"fast": [], "stock": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for engine in ("fast", "stock") if number % 2 == 0 else ("stock", "fast"):
                found[engine].append(run(f"{folder}/{engine}-{number}", ROOT, "--engine", engine))
    ratio = show("The default run with each engine", found)
    scores = [statistics.mean(float(AUC.findall(each.text)[-1]) for each in runs) for runs in found.values()]
    met = judge(f"stock takes at least {LEAST_OF_FAST} of the time", f"{ratio:.2f}", ratio >= LEAST_OF_FAST)
    met &= judge(
        f"the mean AUC differs by at most {MOST_AUC_DIFFERENCE}",
        "fast {:.4f}, stock {:.4f}".format(*scores),
        abs(scores[0] - scores[1]) <= MOST_AUC_DIFFERENCE,
    )
    return 0 if met else 1


def compare(commit: str, rounds: int, at_most: float) -> int:
    """Let this state and an earlier commit run in turns."""
    found: dict[str, list[Run]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        subprocess.run(["git", "clone", "--quiet", ROOT, before], check=True)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=before, check=True)
        shutil.copytree(ROOT / "data/flights", before / "data/flights")
        for number in range(rounds):
            for which in ("before", "now") if number % 2 == 0 else ("now", "before"):
                output = f"{folder}/{which}-{number}"
                found[which].append(run(output, before if which == "before" else ROOT))
                shutil.rmtree(output)
    ratio = show(f"The default run, {commit} and now", found)
    return 0 if judge(f"at most {at_most:g} of the time before", f"{ratio:.2f}", ratio <= at_most) else 1


def show(title: str, found: "dict[str, list[Run]]") -> float:
    """Print the medians of two kinds of runs, step by step; return the ratio of their whole times."""
    one, other = found
    table = Table("step", title=f"{title}, {len(found[one])} rounds", title_justify="left")
    for column in (f"{one}, s", f"{other}, s", "ratio", "lowest", "highest"):
        table.add_column(column, justify="right")
    for name in [*found[other][0].steps, WHOLE, PAUSE]:
        pairs = [
            [each.steps.get(name, 0.0) if name not in (WHOLE, PAUSE) else each.whole[name] for each in pair]
            for pair in zip(found[one], found[other], strict=True)
        ]
        ratios = sorted(second / max(first, 0.1) for first, second in pairs)
        ratio = statistics.median(ratios)
        if name == WHOLE:
            whole = ratio
        medians = [statistics.median(several) for several in zip(*pairs, strict=True)]
        shown = (ratio, ratios[0], ratios[-1])
        table.add_row(name, *(f"{median:.1f}" for median in medians), *(f"{number:.2f}" for number in shown))
    Console().print(table)
    return whole


class Run:
    """A run on a terminal.

    Attributes:
        text: What it printed, without control codes.
        seconds: From start to end.
        pause: The longest time, in seconds, in which nothing it showed changed.
    """

    def __init__(self, text: str, seconds: float, pause: float):
        self.text, self.seconds, self.pause = text, seconds, pause
        self.steps = {name: float(took) for name, state, took in STEP.findall(text) if state == "ran"}
        self.whole = {WHOLE: seconds, PAUSE: pause}


def run(output: str, folder: Path = ROOT, *options: str) -> Run:
    """Run the pipeline on a terminal."""
    command = [sys.executable, "local_runner.py", "--output", output, *options]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
    main_end, its_end = pty.openpty()
    started = changed = time.monotonic()
    text, pause = "", 0.0
    with subprocess.Popen(command, cwd=folder, stdout=its_end, stderr=its_end, env=environment) as process:
        os.close(its_end)
        with contextlib.suppress(OSError):  # the other end has closed
            while chunk := os.read(main_end, 65536).decode(errors="replace"):
                text += chunk
                if CONTROL.sub("", chunk).strip():
                    pause, changed = max(pause, time.monotonic() - changed), time.monotonic()
    os.close(main_end)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{text}")
    lines = (CONTROL.sub("", line).rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n"))
    return Run("\n".join(lines), time.monotonic() - started, max(pause, time.monotonic() - changed))


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Let endless single-threaded processes run until the end of the block."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
