"""From an edit to an answer: every step on 5,000 rows, and one step on 2,000 in a process that watches the module file.

    python benchmarks/spin.py [--edits 5]

On the flights, whose ExampleGen has run before, as after any first run. The module file is a copy in which a number is
another after each edit, of the clipping in preprocessing_fn for Transform and of a default in build_model for the
Trainer. Must be reached, in the median: a sample within 30 seconds, and an answer within 2 seconds after an edit.
Exits 1 when it falls short. The last column, by which nothing is judged, is in imports of TFX, taken in between: the
same machine takes 7 to 17 seconds for one, by what else it does.
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
FLIGHTS = ROOT / "data/flights"
MOST_OF_SAMPLE, MOST = 30.0, 2.0
ALONE, ON_SAMPLE = "the import of TFX alone", "every step on 5,000 rows"
# Of each step: the text that an edit replaces, and what makes it another one each time.
EDITS = {
    "Transform": ("tf.clip_by_value(scaled, -3.0, 3.0)", "tf.clip_by_value(scaled, -3.{}, 3.0)"),
    "Trainer": ("default=0.1)", "default=0.1{})"),
}
CONFIG = """\
import runpy
from dataclasses import replace

CONFIG = replace(runpy.run_path({path!r})["CONFIG"], module={module!r})
"""


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=5, help="of each step (%(default)s)")
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
        sampled(flags, 4_000)  # reads all rows
        took: dict[str, list[float]] = {ALONE: [imported()], ON_SAMPLE: []}
        for _ in range(3):
            shutil.rmtree(f"{folder}/output/sample")  # nothing of it is kept
            took[ON_SAMPLE].append(sampled(flags, 5_000))
            took[ALONE].append(imported())
        flags[-1] += "/sample"
        for step in EDITS:
            first, *after = answers(step, flags, module, source, arguments.edits)
            took[f"spin {step}, started"] = [first]
            took[f"spin {step}, after an edit"] = after
            took[ALONE].append(imported())
    return report(took)


def imported() -> float:
    """Returns the seconds of a process that only imports TFX: how fast the machine is now."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import tfx.v1"], cwd=ROOT, capture_output=True, check=True)
    return time.monotonic() - started


def sampled(flags: list[str], rows: int) -> float:
    """Runs every step on a sample; returns the seconds."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "local_runner.py", "--sample", str(rows), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 3):  # so few rows may make a model that is not blessed
        sys.exit(done.stdout + done.stderr)
    return time.monotonic() - started


def answers(step: str, flags: list[str], module: Path, source: str, edits: int) -> list[float]:
    """Returns the seconds from the start to the first answer, and from each edit to the next."""
    old, new = EDITS[step]
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in the module file"
    started, found = time.monotonic(), []
    command = [sys.executable, "-m", "pipeline", "spin", step, "--watch", *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        for number in range(edits + 1):
            text = ""
            for line in process.stdout:
                text += line
                if re.match(rf"  {step} +ran ", line):
                    break
            else:
                sys.exit(text)
            found.append(time.monotonic() - started)
            time.sleep(1)  # it shows the table, and looks
            started = time.monotonic()
            module.write_text(source.replace(old, new.format(number + 1)))
        process.kill()
    module.write_text(source)
    return found


def report(took: dict[str, list[float]]) -> int:
    """Prints the seconds and what they must be; returns the exit code."""
    table = Table("", "median s", "from", "to", "at most", "imports")
    alone = statistics.median(took[ALONE])
    ok = True
    for name, seconds in took.items():
        most = MOST if "edit" in name else MOST_OF_SAMPLE if name == ON_SAMPLE else None
        middle = statistics.median(seconds)
        ok = ok and (most is None or middle <= most)
        numbers = (middle, min(seconds), max(seconds))
        limit = "" if most is None else f"{most:.0f}"
        table.add_row(name, *(f"{number:.1f}" for number in numbers), limit, f"{middle / alone:.2f}")
    Console().print(table)
    print("all reached" if ok else "falls short")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
