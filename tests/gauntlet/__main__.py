"""Take awkward tables through everything a newcomer does: new, run, predict, serve.

    python -m tests.gauntlet [NAME ...] [--jobs N]

Each table goes through all commands in a fresh copy of the repository. The result is compared with what the table
expects. Exits 1 when a table ends otherwise. The output of the commands stays in a new folder below TMPDIR, and so
does the copy of a table that failed.
"""

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.gauntlet.commands import run_table
from tests.gauntlet.outcome import Outcome
from tests.gauntlet.tables import TABLES


def main() -> int:
    """Print a line for each table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables (all)")
    parser.add_argument("--jobs", type=int, default=1, help="tables at the same time (1)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - TABLES.keys():
        parser.error(f"no table {', '.join(sorted(unknown))}; expected some of {', '.join(TABLES)}")
    logs = Path(tempfile.mkdtemp(prefix="gauntlet-"))
    print(f"logs: {logs}", flush=True)

    def take(name: str) -> Outcome:
        outcome = run_table(TABLES[name], logs / name)
        if outcome.as_expected:
            shutil.rmtree(logs / name / "copy")
        return outcome

    outcomes = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for future in as_completed([pool.submit(take, name) for name in arguments.names or TABLES]):
            outcomes.append(future.result())
            print(outcomes[-1], flush=True)
    good = sum(outcome.as_expected for outcome in outcomes)
    print(f"target: all tables as expected; measured: {good} of {len(outcomes)}")
    return 0 if good == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
