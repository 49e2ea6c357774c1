"""A newcomer's tables, each through everything: new, run, predict, serve.

    python benchmarks/gauntlet.py [NAME ...] [--jobs N] [--only-new] [--keep FOLDER]

Takes each table of tests/e2e/gauntlet_tables through all commands in a fresh copy of the repository and compares
what comes of it with what is expected. Exits 1 when one of them ends otherwise.
"""

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.e2e.gauntlet import Outcome, new_only, run_table, tables  # noqa: E402


def main() -> int:
    """Print a line for each table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of tables (all)")
    parser.add_argument("--jobs", type=int, default=1, help="tables at the same time (1)")
    parser.add_argument("--only-new", action="store_true", help="run pipeline new alone")
    parser.add_argument("--keep", type=Path, help="folder for what each table printed (a new one under /tmp)")
    arguments = parser.parse_args()
    chosen = tables(arguments.names)
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="gauntlet-"))
    keep.mkdir(parents=True, exist_ok=True)
    print(f"logs: {keep}")

    outcomes = []
    if arguments.only_new:
        outcomes = new_only(chosen, Path(tempfile.mkdtemp(dir=keep, prefix="only-new-")))
        for outcome in outcomes:
            print(outcome)
    else:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for future in as_completed([pool.submit(run, table, keep) for table in chosen]):
                outcomes.append(future.result())
                print(outcomes[-1], flush=True)
    good = sum(outcome.as_expected for outcome in outcomes)
    print(f"{good} of {len(outcomes)} tables as expected (must reach: all)")
    return 0 if good == len(outcomes) else 1


def run(table, keep: Path) -> Outcome:
    """Take a table through all commands; keep its logs, and of a failure the copy of the repository too."""
    folder = keep / table.name
    shutil.rmtree(folder, ignore_errors=True)
    outcome = run_table(table, folder)
    (folder / "outcome.txt").write_text(f"{outcome}\n", encoding="utf-8")
    if outcome.as_expected:
        shutil.rmtree(folder / "copy")
    return outcome


if __name__ == "__main__":
    sys.exit(main())
