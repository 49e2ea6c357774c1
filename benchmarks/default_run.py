"""The default run, step by step, and what a second run costs when nothing has changed.

    python benchmarks/default_run.py

Runs local_runner.py in a new output folder, then three times more, each time beside the import of TFX alone. Exits 1
when a second run executes a step, or takes more than twice the import (the medians of three).
"""

import re
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


def main() -> int:
    """Prints the table; returns the exit code."""
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
    table.add_row("in all, with imports", f"{seconds:.1f}", f"{statistics.median(agains):.1f} s")
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


def timed(command: list[str]) -> tuple[str, float]:
    """Return what a command prints and the seconds it takes."""
    started = time.monotonic()
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{process.stdout}{process.stderr}")
    return process.stdout, time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
