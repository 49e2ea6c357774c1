"""Run the tests several times next to endless busy processes: none may depend on the speed of the machine.

    python benchmarks/busy_tests.py [--runs 3] [--busy 4] [TESTS ...]

Target: no test fails in any run. Exits 1 otherwise. On two cores a run takes about three times as long as `make test`.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from reference import judge
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = re.compile(r"^=*\s*(.*\b(?:passed|failed|error)\b.*) in [\d.]+s", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """Print a table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="files or folders (all)")
    parser.add_argument("--runs", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--busy", type=int, default=4, help="endless processes next to the tests (%(default)s)")
    arguments = parser.parse_args()
    table = Table(
        "run", "minutes", "result", title=f"Tests next to {arguments.busy} busy processes", title_justify="left"
    )
    failed: list[str] = []
    for number in range(1, arguments.runs + 1):
        started = time.monotonic()
        tests = " ".join(arguments.tests)
        done = subprocess.run(
            ["make", "test", f"ARGS=--busy {arguments.busy} {tests}"], cwd=ROOT, capture_output=True, text=True
        )
        minutes = (time.monotonic() - started) / 60
        results = SUMMARY.findall(done.stdout)
        result = results[-1] if results else (done.stdout + done.stderr).strip().splitlines()[-1]
        print(f"run {number}: {result}, {minutes:.1f} min", flush=True)
        table.add_row(str(number), f"{minutes:.1f}", result)
        failed += FAILED.findall(done.stdout) or ([] if done.returncode == 0 else [f"run {number}"])
    Console().print(table)
    return 0 if judge("no test fails", ", ".join(failed) or "none failed", not failed) else 1


if __name__ == "__main__":
    sys.exit(main())
