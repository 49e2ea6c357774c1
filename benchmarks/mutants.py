"""Let cosmic-ray change what matters most, a sample of its mutants in each area, and count those that tests notice.

    python benchmarks/mutants.py [AREA ...] [--sample 40] [--seed 1]

Each mutant is one change (a comparison, a number, a "not", a loop that ends at once, ...) in a copy of the repository,
after which the area's own tests must fail or take three times as long. No two of the sample are at the same place, and
paths ("/") and types ("|") are left alone, which hardly any program survives. Survivors are listed with their line.
Exits 1 when fewer than 85 % are noticed in an area, those that REASONS explains left out. Takes an hour for all.
"""

import argparse
import difflib
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

from benchmarks.mutations import copy_of_the_repository, failing  # noqa: E402

COSMIC_RAY = "cosmic-ray==8.7.0"  # github.com/sixty-north/cosmic-ray, which uv fetches
LEAST = 0.85


@dataclass(frozen=True)
class Area:
    """Modules, and the tests that are there for them."""

    modules: tuple[str, ...]
    tests: str


AREAS = {
    "packaging": Area(("packaging/user_code", "packaging/fingerprints"), "tests/packaging"),
    "validation": Area(("validation/statistics", "validation/rows", "validation/reference"), "tests/validation"),
    "evaluation": Area(
        ("evaluation/verdict", "evaluation/intervals", "evaluation/coverage"),
        "tests/evaluation/test_verdict.py tests/evaluation/test_coverage.py tests/evaluation/test_evaluation.py",
    ),
    "versions": Area(("serving/versions",), "tests/serving/test_versions.py"),
    "pusher": Area(("components/pusher",), "tests/components/test_pusher.py"),
    "checkpoints": Area(("training/checkpoint",), "tests/training/test_checkpoint.py"),
    "canary": Area(("vertex/endpoints/canary",), "tests/vertex/endpoints/test_canary.py"),
}
# Survivors that change nothing one could test, by a part of their line.
REASONS = {
    "hexdigest()[:16]": "a fingerprint may have any length",
    "@functools.cache": "without it the same, but later",
    "sys.argv[1]]()": "the Dockerfile calls it: make rehearse-image",
    "indent=2": "how far a file is indented",
    "size = -1": "any number below that of no statement",
    " is not len(": "small numbers that are equal are one object",
    ' is "': "texts of a program that are equal are one object",
    "[:200]": "how much of an error is quoted",
    "budget = ": "any time that is longer than a push takes",
    "time.sleep(": "how long is waited between two looks",
}


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
        started = time.monotonic()
        if failed := failing(copy, area.tests):
            raise RuntimeError(f"{area.tests} fail before anything is changed: {failed}")
        seconds = time.monotonic() - started
        paths = ", ".join(f'"pipeline/{module}.py"' for module in area.modules)
        (copy / "mutants.toml").write_text(
            f'[cosmic-ray]\nmodule-path = [{paths}]\ntimeout = 0\nexcluded-modules = []\ntest-command = ""\n'
            '[cosmic-ray.distributor]\nname = "local"\n'
        )
        cosmic_ray(copy, "init", "mutants.toml", "mutants.sqlite")
        with sqlite3.connect(copy / "mutants.sqlite") as session:
            chosen = choose(session, sample, seed)
        return [mutant(copy, area.tests, 3 * seconds + 10, *of_one) for of_one in chosen], seconds


def mutant(copy: Path, tests: str, seconds: float, module: str, operator: str, occurrence: int, row: int) -> Mutant:
    """Change a module, run the tests, and put the module back."""
    file = copy / module
    source = file.read_text(encoding="utf-8")
    try:
        cosmic_ray(copy, "apply", module, operator, str(occurrence))
        noticed = bool(failing(copy, tests, seconds=seconds))
        return Mutant(noticed, f"{module}:{row}", changed(source, file.read_text(encoding="utf-8")))
    finally:
        file.write_text(source, encoding="utf-8")


def choose(session: sqlite3.Connection, sample: int, seed: int) -> list[tuple[str, str, int, int]]:
    """Return module, operator, occurrence and row of a sample of a session's mutants, no two at the same place."""
    found = session.execute(
        "SELECT module_path, operator_name, occurrence, start_pos_row, start_pos_col FROM mutation_specs"
        " WHERE operator_name NOT LIKE '%BinaryOperator_Div%' AND operator_name NOT LIKE '%BinaryOperator_BitOr%'"
        " ORDER BY module_path, start_pos_row, start_pos_col, operator_name, occurrence, operator_args"
    ).fetchall()
    random.Random(seed).shuffle(found)
    places = {
        (module, row, column): (module, operator, occurrence, row)
        for module, operator, occurrence, row, column in found
    }
    return sorted(list(places.values())[:sample], key=lambda of_one: (of_one[0], of_one[3]))


def cosmic_ray(copy: Path, *arguments: str) -> None:
    """Call cosmic-ray, which uv keeps in an environment of its own."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "tool", "run", "--quiet", "--from", COSMIC_RAY, "cosmic-ray", *arguments]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)


def changed(before: str, after: str) -> str:
    """Return the changed lines, as they were and as they became."""
    lines = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:2] in ("- ", "+ ")]
    was, became = ([line[2:].strip() for line in lines if line[0] == sign] for sign in "-+")
    return f"{' '.join(was)} -> {' '.join(became)}"


if __name__ == "__main__":
    sys.exit(main())
