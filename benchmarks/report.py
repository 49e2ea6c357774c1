"""Cost of the report: its time beside that of the default run.

    python benchmarks/report.py

Runs local_runner.py in a new output folder, then again. Exits 1 when the report of the first run takes more than 10 %
of the rest of that run, or is larger than 3 MB.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
MOST, LARGEST = 0.1, 3_000_000


def main() -> int:
    """Prints the table; returns the exit code."""
    table = Table("run", title="The report", title_justify="left")
    for title in ("in all, s", "report, s", "share", "size, KB"):
        table.add_column(title, justify="right")
    shares, sizes = [], []
    with tempfile.TemporaryDirectory() as output:
        for name in ("first", "nothing changed"):
            started = time.monotonic()
            command = [sys.executable, "local_runner.py", "--output", output]
            process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            seconds = time.monotonic() - started
            if process.returncode:
                sys.exit(f"{' '.join(command)} failed:\n{process.stdout}{process.stderr}")
            log = max(Path(output).glob("logs/*.log")).read_text(encoding="utf-8")
            report = float(re.findall(r"Report written in ([\d.]+) s", log)[-1])
            shares.append(report / (seconds - report))
            sizes.append(max(Path(output).glob("runs/*/report.html")).stat().st_size)
            table.add_row(name, f"{seconds:.1f}", f"{report:.1f}", f"{shares[-1]:.1%}", f"{sizes[-1] / 1e3:.0f}")
    console = Console()
    console.print(table)
    passed = shares[0] <= MOST and max(sizes) < LARGEST
    console.print(
        f"must reach: the report of the first run takes at most {MOST:.0%} of the rest of the run and no report is "
        f"larger than {LARGEST / 1e6:g} MB: {'reached' if passed else 'misses its target'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
