"""Let cosmic-ray change what matters most, a sample of its mutants in each area, and count those that tests notice.

    python benchmarks/mutants.py [AREA ...] [--sample 40] [--seed 1]

Each mutant is one change (a comparison, a number, a "not", a loop that ends at once, ...) in a copy of the repository,
after which the area's own tests must fail or take three times as long. No two of the sample are at the same place, and
paths ("/") and types ("|") are left alone, which hardly any program survives. Survivors are listed with their line.
Exits 1 when fewer than 85 % are noticed in an area, those that REASONS explains left out. Takes an hour for all.
"""

import argparse
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.mutations import copy_of_the_repository  # noqa: E402

COSMIC_RAY = "cosmic-ray==8.7.0"  # github.com/sixty-north/cosmic-ray, which uv fetches
LEAST = 0.85


@dataclass(frozen=True)
class Area:
    """Modules, and the tests that are there for them."""

    modules: tuple[str, ...]
    tests: str


AREAS = {
    "packaging": Area(("packaging/user_code", "packaging/fingerprints"), "tests/packaging/test_user_code.py"),
    "validation": Area(("validation/statistics", "validation/rows", "validation/reference"), "tests/validation"),
    "evaluation": Area(("evaluation/verdict", "evaluation/intervals", "evaluation/coverage"), "tests/evaluation"),
    "versions": Area(("serving/versions",), "tests/serving/test_versions.py"),
    "pusher": Area(("components/pusher",), "tests/components/test_pusher.py"),
    "checkpoints": Area(("training/checkpoint",), "tests/training/test_resume.py tests/training/test_loop.py"),
    "canary": Area(("vertex/endpoints/canary",), "tests/vertex/endpoints/test_canary.py"),
}
# Survivors that change nothing one could test, by a part of their line.
REASONS: dict[str, str] = {}


@dataclass(frozen=True)
class Mutant:
    """A mutant: whether tests have noticed it, and its line."""

    noticed: bool
    place: str
    line: str


def main() -> int:
    """Print the survivors and a table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"{', '.join(AREAS)} (all)")
    parser.add_argument("--sample", type=int, default=40, help="mutants of an area (40)")
    parser.add_argument("--seed", type=int, default=1, help="another takes others (1)")
    arguments = parser.parse_args()
    if unknown := set(arguments.areas) - AREAS.keys():
        parser.error(f"no area {', '.join(sorted(unknown))}; expected some of {', '.join(AREAS)}")
    chosen = arguments.areas or list(AREAS)
    table = Table("area", title="Mutants", title_justify="left")
    for column in ("tried", "noticed", "explained", "share", "seconds for the tests"):
        table.add_column(column, justify="right")
    enough = True
    with ThreadPoolExecutor(2) as pool:
        tried = pool.map(lambda area: mutants(AREAS[area], arguments.sample, arguments.seed), chosen)
        for area, (found, seconds) in zip(chosen, tried, strict=True):
            survivors = [mutant for mutant in found if not mutant.noticed]
            explained = [mutant for mutant in survivors if any(part in mutant.line for part in REASONS)]
            for mutant in survivors:
                reason = next((why for part, why in REASONS.items() if part in mutant.line), "NOBODY NOTICES")
                print(f"{area}: {mutant.place}: {mutant.line}: {reason}", flush=True)
            counted = len(found) - len(explained)
            share = (counted - len(survivors) + len(explained)) / max(counted, 1)
            enough &= share >= LEAST
            numbers = (len(found), len(found) - len(survivors), len(explained))
            table.add_row(area, *map(str, numbers), f"{share:.0%}", f"{seconds:.1f}")
    console = Console(width=120)
    console.print(table)
    console.print(f"must reach: {LEAST:.0%} in each area: {'reached' if enough else 'MISSED'}")
    return 0 if enough else 1


def mutants(area: Area, sample: int, seed: int) -> tuple[list[Mutant], float]:
    """Try a sample of an area's mutants; return them, and the seconds that its tests take."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as scratch:
        copy = copy_of_the_repository(Path(scratch) / "repository")
        command = f"{sys.executable} -m pytest -x -q --no-header {area.tests}"
        started = time.monotonic()
        subprocess.run(command.split(), cwd=copy, check=True, capture_output=True)
        seconds = time.monotonic() - started
        paths = ", ".join(f'"pipeline/{module}.py"' for module in area.modules)
        (copy / "mutants.toml").write_text(
            f"[cosmic-ray]\nmodule-path = [{paths}]\ntimeout = {3 * seconds + 10:.0f}\nexcluded-modules = []\n"
            f'test-command = "{command}"\n[cosmic-ray.distributor]\nname = "local"\n'
        )
        cosmic_ray(copy, "init", "mutants.toml", "mutants.sqlite")
        with sqlite3.connect(copy / "mutants.sqlite") as session:
            keep(session, sample, seed)
        cosmic_ray(copy, "exec", "mutants.toml", "mutants.sqlite")
        with sqlite3.connect(copy / "mutants.sqlite") as session:
            results = session.execute(
                "SELECT test_outcome, module_path, start_pos_row, diff FROM work_results JOIN mutation_specs"
                " USING (job_id) ORDER BY 2, 3"
            ).fetchall()
    return [
        Mutant(outcome != "SURVIVED", f"{path}:{row}", changed(diff)) for outcome, path, row, diff in results
    ], seconds


def keep(session: sqlite3.Connection, sample: int, seed: int) -> None:
    """Leave a sample of a session's mutants, no two of them at the same place."""
    found = session.execute(
        "SELECT job_id, module_path, start_pos_row, start_pos_col FROM mutation_specs WHERE operator_name NOT LIKE"
        " '%BinaryOperator_Div%' AND operator_name NOT LIKE '%BinaryOperator_BitOr%'"
        " ORDER BY module_path, start_pos_row, start_pos_col, operator_name, occurrence, operator_args"
    ).fetchall()
    random.Random(seed).shuffle(found)
    places = {tuple(place): job for job, *place in found}
    kept = list(places.values())[:sample]
    for table in ("mutation_specs", "work_items"):
        session.execute(f"DELETE FROM {table} WHERE job_id NOT IN ({', '.join('?' * len(kept))})", kept)


def cosmic_ray(copy: Path, *arguments: str) -> None:
    """Call cosmic-ray, which uv keeps in an environment of its own."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "tool", "run", "--quiet", "--from", COSMIC_RAY, "cosmic-ray", *arguments]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)


def changed(diff: str) -> str:
    """Return the changed line of a diff, as it was and as it became."""
    lines = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    before, after = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")
    return f"{' '.join(before)} -> {' '.join(after)}"


if __name__ == "__main__":
    sys.exit(main())
