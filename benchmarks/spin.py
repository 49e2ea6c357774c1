"""Measure the time from an edit to an answer: of every step on 5,000 rows, and of one watched step on 2,000.

    python benchmarks/spin.py [--edits 5] [--samples 3]

Uses the flights, after ExampleGen has read all rows once, as after any first run. Each edit changes a number in a copy
of the module file: a bound in preprocessing_fn for Transform, a default in build_model for the Trainer. One `import
tfx.v1` in a new process comes before each sample and each edit. Targets, of the medians: a sample takes at most 2.0
imports, and an answer after an edit at most 0.12 imports. Exits 1 when a target is missed. The seconds are for
information only.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from reference import import_seconds, judge
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
FLIGHTS = ROOT / "data/flights"
# In imports of TFX.
SAMPLE_TARGET, EDIT_TARGET = 2.0, 0.12
# For each step: the text that an edit replaces, and the template of its replacement.
EDITS = {
    "Transform": ("tf.clip_by_value(scaled, -3.0, 3.0)", "tf.clip_by_value(scaled, -3.{}, 3.0)"),
    "Trainer": ("default=0.1)", "default=0.1{})"),
}
CONFIG = """\
import runpy
from dataclasses import replace

CONFIG = replace(runpy.run_path({path!r})["CONFIG"], module={module!r})
"""


@dataclass(frozen=True)
class Row:
    """Seconds of one kind of answer, and of the imports between them."""

    name: str
    seconds: list[float]
    imports: list[float]
    target: float | None = None

    @property
    def ratio(self) -> float:
        """Median time in imports."""
        return statistics.median(self.seconds) / statistics.median(self.imports)


def main() -> int:
    """Print the table and the verdicts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=5, help="number of edits for each step (%(default)s)")
    parser.add_argument("--samples", type=int, default=3, help="number of runs on a sample (%(default)s)")
    arguments = parser.parse_args()
    if not FLIGHTS.is_dir():
        subprocess.run([sys.executable, ROOT / "data/prepare_flights.py", "--output", FLIGHTS], check=True)
    with tempfile.TemporaryDirectory() as folder:
        module, config = Path(folder, "models/flights.py"), Path(folder, "spin.py")
        module.parent.mkdir()
        source = (ROOT / "models/flights.py").read_text()
        module.write_text(source)
        config.write_text(CONFIG.format(path=str(ROOT / "configs/flights.py"), module=str(module)))
        flags = ["--config", str(config), "--output", f"{folder}/output"]
        run_sample(flags, 4_000)  # reads all rows
        imports, samples = [], []
        for _ in range(arguments.samples):
            shutil.rmtree(f"{folder}/output/sample")  # a sample starts from nothing
            imports.append(import_seconds())
            samples.append(run_sample(flags, 5_000))
        rows = [Row("every step on 5,000 rows", samples, imports, SAMPLE_TARGET)]
        flags[-1] += "/sample"
        for step in EDITS:
            rows += spin(step, flags, module, source, arguments.edits)
    return report(rows)


def run_sample(flags: list[str], rows: int) -> float:
    """Run every step on a sample; return the seconds."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "local_runner.py", "--sample", str(rows), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 3):  # the model of so few rows may not be blessed
        sys.exit(done.stdout + done.stderr)
    return time.monotonic() - started


def spin(step: str, flags: list[str], module: Path, source: str, edits: int) -> list[Row]:
    """Time a watching process, from its start to the first answer and from each edit to the next answer."""
    old, new = EDITS[step]
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in the module file"
    seconds, imports = [], []
    command = [sys.executable, "-m", "pipeline", "spin", step, "--watch", *flags]
    started = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        for number in range(edits + 1):
            if number:
                imports.append(import_seconds())  # the process waits for an edit meanwhile
                started = time.monotonic()
                module.write_text(source.replace(old, new.format(number)))
            text = ""
            for line in process.stdout:
                text += line
                if re.match(rf"  {step} +ran ", line):
                    break
            else:
                sys.exit(text)
            seconds.append(time.monotonic() - started)
        process.kill()
    module.write_text(source)
    return [
        Row(f"spin {step}, from the start", seconds[:1], imports),
        Row(f"spin {step}, after an edit", seconds[1:], imports, EDIT_TARGET),
    ]


def report(rows: list[Row]) -> int:
    """Print the table and the verdicts; return the exit code."""
    table = Table("", title="From an edit to an answer", title_justify="left")
    for column in ("median s", "from", "to", "import s", "imports"):
        table.add_column(column, justify="right")
    for row in rows:
        numbers = (statistics.median(row.seconds), min(row.seconds), max(row.seconds), statistics.median(row.imports))
        table.add_row(row.name, *(f"{number:.1f}" for number in numbers), f"{row.ratio:.3f}")
    Console().print(table)
    met = [
        judge(f"{row.name}, at most {row.target:g} imports", f"{row.ratio:.3f}", row.ratio <= row.target)
        for row in rows
        if row.target
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
