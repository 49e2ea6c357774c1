"""Break runs in every way a machine does, and check that the next run is right all the same.

    python -m tests.faults [WORD ...] [--jobs N]

A small pipeline (569 tumours, a search, a training, all gates) is killed, interrupted, starved of disk and memory; its
files, its metadata store and its pushed versions are lost, truncated and changed. After each fault every visible
version must be whole, load and answer as the model of the undisturbed run; nothing may hang or end in a traceback; and
the next run must end with the same model and the same metrics. WORDs choose the faults with all of them in their name.
If no fault has them, the names are printed. Exits 1 unless all hold and, when all were tried, there were 200.

With --jobs 2 all of them take an hour on two cores. Full and read-only disks need root, which mounts them, and so does
a clock that is put back, by the program faketime.
"""

import argparse
import os
import queue
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.kinds import Fault, faults
from tests.faults.workplace import Broken, Workplace

LEAST = 200


@dataclass
class Outcome:
    """Outcome of a fault: what was wrong, empty if nothing; the steps that the next run executed; seconds of both."""

    kind: str
    wrong: str
    again: int
    seconds: float


def main() -> int:
    """Print a line for each fault and a table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="in the names of the faults to try (all)")
    parser.add_argument("--jobs", type=int, default=1, help="faults at the same time (1)")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as scratch,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        places = [Workplace(Path(scratch) / str(number)) for number in range(arguments.jobs)]
        list(pool.map(Workplace.prepare, places))
        names = [str(fault) for fault in faults(places[0])]
        chosen = [
            number for number, name in enumerate(names) if all(word.lower() in name.lower() for word in arguments.words)
        ]
        if not chosen:
            parser.error(
                f"no fault has {' and '.join(arguments.words)} in its name; expected some of\n" + "\n".join(names)
            )
        free: queue.Queue[Workplace] = queue.Queue()
        for place in places:
            free.put(place)

        def attempt(number: int) -> Outcome:
            place = free.get()
            try:
                return tried(place, faults(place)[number])
            finally:
                free.put(place)

        return report(list(pool.map(attempt, chosen)), least=0 if arguments.words else LEAST)


def tried(workplace: Workplace, fault: Fault) -> Outcome:
    """Try a fault; print a line."""
    started, again, wrong = time.monotonic(), 0, ""
    if fault.kind in ("disk full", "read-only", "clock") and os.geteuid():
        wrong = "not tried: needs root"
    else:
        try:
            again = len(fault.attempt(workplace).ran)
        except Broken as error:
            wrong = str(error)
        except Exception:
            wrong = traceback.format_exc()
    seconds = time.monotonic() - started
    print(f"{seconds:4.0f} s  {fault}: {wrong or 'survived'}", flush=True)
    return Outcome(fault.kind, wrong, again, seconds)


def report(outcomes: list[Outcome], least: int) -> int:
    """Print what was tried, survived and executed again by kind, and the target; return the exit code."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    table = Table("fault", title="Faults, and the runs after them", title_justify="left")
    for column in ("tried", "survived", "steps executed again", "seconds"):
        table.add_column(column, justify="right")
    for kind, found in by_kind.items():
        again, seconds = (sum(getattr(one, what) for one in found) / len(found) for what in ("again", "seconds"))
        good = sum(not one.wrong for one in found)
        table.add_row(kind, str(len(found)), str(good), f"{again:.1f}", f"{seconds:.0f}")
    console = Console(width=100)
    console.print(table)
    good = sum(not outcome.wrong for outcome in outcomes)
    target = f"all survived{f', at least {least}' if least else ''}"
    console.print(f"target: {target}; measured: {good} of {len(outcomes)}")
    return 0 if good == len(outcomes) >= least else 1


if __name__ == "__main__":
    sys.exit(main())
