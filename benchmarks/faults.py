"""Break runs in every way a machine does, and look whether the next run is right all the same.

    python benchmarks/faults.py [WORD ...] [--jobs N] [--results FOLDER] [--list]

A small pipeline (569 tumours, a search, a training, all gates) is killed, told to end, starved of disk and memory; its
files, its metadata store and its pushed versions are lost, truncated and changed. After each fault every visible
version must be whole, load and answer as that of the undisturbed run; nothing may hang or end in a traceback; and the
next run must end with the same model and the same metrics. WORDs choose the faults with all of them in their name.
Exits 1 unless all hold and, when all were tried, there were 200.

With --jobs 2 all of them take an hour on two cores. With --results, what is found is kept there, and what is there is
not tried again; of other code take another folder. Full and read-only disks need root, which mounts them, and so does a
clock that is put back, by the program faketime.
"""

import argparse
import json
import os
import queue
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pipeline.filesystem import write  # noqa: E402
from tests.faults.kinds import Fault, faults  # noqa: E402
from tests.faults.workplace import Broken, Workplace, readable  # noqa: E402

LEAST = 200


@dataclass
class Outcome:
    """Of a fault: what was wrong, empty if nothing; the steps that the next run executed; seconds of both."""

    kind: str
    name: str
    wrong: str
    again: int
    seconds: float


def main() -> int:
    """Print a line for each fault and a table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="in the names of the faults to try (all)")
    parser.add_argument("--jobs", type=int, default=1, help="faults at the same time (1)")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep what is found, and go on from there")
    parser.add_argument("--list", action="store_true", help="name the faults and end, after one undisturbed run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as scratch:
        places: queue.Queue[Workplace] = queue.Queue()
        for number in range(1 if arguments.list else arguments.jobs):
            places.put(Workplace(Path(scratch) / str(number)))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(Workplace.prepare, list(places.queue)))
        chosen = [
            number
            for number, fault in enumerate(faults(places.queue[0]))
            if all(word.lower() in str(fault).lower() for word in arguments.words)
        ]
        if arguments.list:
            print("\n".join(str(faults(places.queue[0])[number]) for number in chosen))
            return 0

        def attempt(number: int) -> Outcome:
            place = places.get()
            try:
                return tried(place, faults(place)[number], arguments.results)
            finally:
                places.put(place)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            outcomes = list(pool.map(attempt, chosen))
    return report(outcomes, whole=not arguments.words)


def tried(workplace: Workplace, fault: Fault, results: Path | None) -> Outcome:
    """Try a fault, unless its outcome is there; print a line."""
    key = "".join(letter if letter.isalnum() else "_" for letter in str(fault))
    kept = results / f"{key}.json" if results else None
    if kept and kept.exists():
        return Outcome(**json.loads(kept.read_text(encoding="utf-8")))
    if fault.kind in ("disk full", "read-only", "clock") and os.geteuid():
        return Outcome(fault.kind, fault.name, "not tried: needs root", 0, 0)
    started, again, wrong = time.monotonic(), 0, ""
    try:
        workplace.restore(fault.moment)
        if ended := fault.strike(workplace):
            readable(ended)
        workplace.check_versions() if fault.kind != "pushed version" else None
        again = fault.judge(workplace).ran
    except Broken as error:
        wrong = str(error)
    except Exception:
        wrong = traceback.format_exc()
    outcome = Outcome(fault.kind, fault.name, wrong, again, time.monotonic() - started)
    print(f"{outcome.seconds:4.0f} s  {fault}: {wrong or 'survived'}", flush=True)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write(kept, json.dumps(asdict(outcome)))
    return outcome


def report(outcomes: list[Outcome], whole: bool) -> int:
    """Print tried, survived and done again by kind, and what must be reached; return the exit code."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    table = Table("fault", title="Faults, and the runs after them", title_justify="left")
    for column in ("tried", "survived", "steps done again", "seconds"):
        table.add_column(column, justify="right")
    for kind, found in by_kind.items():
        again, seconds = (sum(getattr(one, what) for one in found) / len(found) for what in ("again", "seconds"))
        good = sum(not one.wrong for one in found)
        table.add_row(kind, str(len(found)), str(good), f"{again:.1f}", f"{seconds:.0f}")
    console = Console(width=100)
    console.print(table)
    good, enough = sum(not outcome.wrong for outcome in outcomes), len(outcomes) >= LEAST or not whole
    console.print(f"{good} of {len(outcomes)} survived; must reach: all{f', and {LEAST}' if whole else ''}")
    return 0 if good == len(outcomes) and enough else 1


if __name__ == "__main__":
    sys.exit(main())
