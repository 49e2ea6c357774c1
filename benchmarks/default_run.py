"""The default run, step by step, and what a second run costs when nothing has changed.

    python benchmarks/default_run.py [--before COMMIT] [--rounds 3]

Runs local_runner.py in a new output folder, then three times more, each time beside the import of TFX alone. Exits 1
when a second run executes a step, or takes more than twice the import (the medians of three).

With ``--before``, default runs of this state and of an earlier commit alternate, each in a new output folder and with
the packages that are installed; of each step the medians are shown, and the lowest and highest ratio of a round. Exits
1 when this state takes more than 0.6 of the earlier one's time.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
STEP = re.compile(r"^  (\w+) +(ran|cached|looked up) +([\d.]+) s", re.MULTILINE)
RUNS = 3
MOST = 2.0
MOST_OF_BEFORE = 0.6
WHOLE = "in all, with imports"


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="compare with this commit")
    parser.add_argument("--rounds", type=int, default=RUNS, help="of both, to compare (%(default)s)")
    arguments = parser.parse_args()
    return compare(arguments.before, arguments.rounds) if arguments.before else alone()


def compare(commit: str, rounds: int) -> int:
    """Lets this state and an earlier commit run in turns."""
    found: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        subprocess.run(["git", "clone", "--quiet", ROOT, before], check=True)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=before, check=True)
        shutil.copytree(ROOT / "data/flights", before / "data/flights")
        for number in range(rounds):
            for which in ("before", "now") if number % 2 == 0 else ("now", "before"):
                output = Path(folder, f"{which}-{number}")
                command = [sys.executable, "local_runner.py", "--output", str(output)]
                text, seconds = timed(command, before if which == "before" else ROOT)
                steps = {name: float(took) for name, state, took in STEP.findall(text) if state == "ran"}
                found[which].append({**steps, WHOLE: seconds})
                shutil.rmtree(output)
    table = Table("step", title=f"The default run, {commit} and now, {rounds} rounds", title_justify="left")
    for column in ("before, s", "now, s", "ratio", "lowest", "highest"):
        table.add_column(column, justify="right")
    for name in found["now"][0]:
        pairs = [[run.get(name, 0.0) for run in pair] for pair in zip(found["before"], found["now"], strict=True)]
        medians = [statistics.median(several) for several in zip(*pairs, strict=True)]
        ratios = sorted(now / max(earlier, 0.1) for earlier, now in pairs)
        shown = (medians[1] / max(medians[0], 0.1), ratios[0], ratios[-1])
        table.add_row(name, *(f"{median:.1f}" for median in medians), *(f"{ratio:.2f}" for ratio in shown))
    console = Console()
    console.print(table)
    reached = shown[0] <= MOST_OF_BEFORE
    console.print(
        f"must reach: at most {MOST_OF_BEFORE} of the time before ({shown[0]:.2f}): "
        f"{'reached' if reached else 'falls short'}"
    )
    return 0 if reached else 1


def alone() -> int:
    """Measures this state, and runs it again."""
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "local_runner.py", "--output", output]
        first, seconds = timed(command)
        agains, imports = [], []
        for _ in range(RUNS):
            again, again_seconds = timed(command)
            agains.append(again_seconds)
            imports.append(timed([sys.executable, "-c", "from tfx import v1"])[1])

    table = Table("step", title="The default run", title_justify="left")
    table.add_column("first run, s", justify="right")
    table.add_column("second run", justify="right")
    second = {name: state for name, state, _ in STEP.findall(again)}
    for name, _, step_seconds in STEP.findall(first):
        table.add_row(name, step_seconds, second[name])
    table.add_row(WHOLE, f"{seconds:.1f}", f"{statistics.median(agains):.1f} s")
    table.add_row("import of TFX alone", "", f"{statistics.median(imports):.1f} s")
    console = Console()
    console.print(table)

    ratio = statistics.median(agains) / statistics.median(imports)
    executed = [name for name, state in second.items() if state == "ran"]
    passed = ratio <= MOST and not executed
    console.print(
        f"must reach: a second run executes nothing ({', '.join(executed) or 'none'} executed) and takes at most "
        f"{MOST:g} times the import ({ratio:.2f} times): {'reached' if passed else 'falls short'}"
    )
    return 0 if passed else 1


def timed(command: list[str], folder: Path = ROOT) -> tuple[str, float]:
    """Return what a command prints and the seconds it takes."""
    started = time.monotonic()
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{process.stdout}{process.stderr}")
    return process.stdout, time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
