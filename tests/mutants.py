"""Change lines of important behaviour, and count the changes that the tests notice.

    python -m tests.mutants [AREA ...] [--sample 40]

Each mutant is one change in a copy of the repository, after which the tests of its area must fail or take three times
as long. In the area "edits" the changes are those below, and all must be noticed. In the other areas cosmic-ray makes
them (a comparison, a number, a "not", a loop that ends early, ...). No two of a sample are at the same place, and paths
("/") and types ("|") are left alone, which hardly any program survives. Of these, 85 % must be noticed, without the
survivors that REASONS explains. Survivors are listed with their line. Exits 1 below that. Takes an hour for all.
"""

import argparse
import difflib
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.e2e.run import ROOT, edit

COSMIC_RAY = "cosmic-ray==8.7.0"  # github.com/sixty-north/cosmic-ray, which uv fetches
EDITED = "edits"
LEAST = 0.85


@dataclass(frozen=True)
class Edit:
    """An edit: a text that is in a file exactly once is replaced, and these tests fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


EDITS = (
    Edit(
        "the Evaluator judges on eval",
        "pipeline/components/evaluator.py",
        'files = files_of(artifact_utils.get_single_instance(inputs["examples"]), "test")\n',
        'files = files_of(artifact_utils.get_single_instance(inputs["examples"]), "eval")\n',
        "tests/components/test_evaluator.py",
    ),
    Edit(
        "Transform analyses eval too",
        "pipeline/graph.py",
        'analyze=["train"]',
        'analyze=["train", "eval"]',
        "tests/test_graph.py",
    ),
    Edit(
        "Transform without a fingerprint of its code",
        "pipeline/components/base.py",
        'self.exec_properties["code"] = fingerprint_of(Path(inspect.getfile(type(self))))',
        'self.exec_properties["code"] = type(self).__name__ == "Transform" or fingerprint_of('
        "Path(inspect.getfile(type(self))))",
        "tests/components/test_base.py",
    ),
    Edit(
        "the Evaluator without a fingerprint of its code",
        "pipeline/components/base.py",
        'self.exec_properties["code"] = fingerprint_of(Path(inspect.getfile(type(self))))',
        'self.exec_properties["code"] = type(self).__name__ == "Evaluator" or fingerprint_of('
        "Path(inspect.getfile(type(self))))",
        "tests/components/test_base.py",
    ),
    *(
        Edit(
            f"the version of {package} is not in the wheel's fingerprint",
            "pipeline/packaging/fingerprints.py",
            'VERSIONS_THAT_COUNT = ("keras", "keras-tuner", "tensorflow", "tensorflow-transform", "tfx")',
            f'VERSIONS_THAT_COUNT = tuple({{"keras", "keras-tuner", "tensorflow", "tensorflow-transform", "tfx"}}'
            f' - {{"{package}"}})',
            "tests/packaging/test_user_code.py",
        )
        for package in ("tensorflow", "keras", "tfx")
    ),
    Edit(
        "callbacks begin anew after a restart",
        "pipeline/training/loop.py",
        "            vars(callback).update(values)\n",
        "            pass\n",
        "tests/training/test_resume.py",
    ),
    Edit(
        "a version is copied into place",
        "pipeline/model/versions.py",
        "staged.rename(self.path(number))",
        "shutil.copytree(staged, self.path(number))",
        "tests/model/test_versions.py",
    ),
    Edit(
        "an old version is deleted in place",
        "pipeline/model/versions.py",
        "self.path(old).rename(self.folder / STAGING / str(old))",
        "shutil.rmtree(self.path(old))",
        "tests/model/test_versions.py",
    ),
    Edit(
        "a refused row fails its whole batch",
        "pipeline/serving/batching.py",
        "isinstance(error, tf.errors.OpError) and len(batch) > 1:",
        "isinstance(error, tf.errors.OpError) and len(batch) > 1_000_000:",
        "tests/serving/test_batching.py",
    ),
    Edit(
        "no batches",
        "pipeline/serving/batching.py",
        "while self._queue and (joint",
        "while self._queue and False and (joint",
        "tests/serving/test_batching.py",
    ),
    Edit(
        "never 503",
        "pipeline/serving/batching.py",
        "            raise Overloaded\n",
        "            pass\n",
        "tests/serving/test_batching.py",
    ),
    Edit(
        "--log-share is ignored",
        "pipeline/serving/request_log.py",
        "self._share >= 1 or",
        "self._share >= 0 or",
        "tests/serving/test_batching.py",
    ),
    Edit(
        "the canary ignores its own rows",
        "pipeline/vertex/endpoints/canary.py",
        '{"our rows": probed, "all requests"',
        '{"all requests"',
        "tests/vertex/endpoints/test_canary.py",
    ),
    Edit(
        "no row is checked alone",
        "pipeline/components/model_probe.py",
        "                self.check_single_rows(signature, outputs)\n",
        "",
        "tests/components/test_model_check.py tests/components/test_model_probe.py",
    ),
    Edit(
        "signatures may disagree",
        "pipeline/components/model_probe.py",
        "        self.compare_signatures(outputs_by_signature)\n",
        "",
        "tests/components/test_model_check.py tests/components/test_model_probe.py",
    ),
    Edit(
        "a search without the defaults first",
        "pipeline/training/tuning.py",
        "if not self.start_order:",
        "if not self.start_order and False:",
        "tests/training/test_oracle.py",
    ),
    Edit(
        "runs clean forgets older pushed models",
        "pipeline/runs/cleaning.py",
        "_judged_by(store, [*pushed, *blessings[-1:]])",
        "_judged_by(store, [*blessings[-1:]])",
        "tests/runs/test_cleaning.py",
    ),
)


@dataclass(frozen=True)
class Area:
    """Modules, and the tests that are there for them."""

    modules: tuple[str, ...]
    tests: str


AREAS = {
    "packaging": Area(("packaging/user_code", "packaging/fingerprints"), "tests/packaging"),
    "data checks": Area(("quality/statistics", "quality/rows", "quality/reference"), "tests/quality"),
    "verdict": Area(
        ("quality/verdict", "quality/intervals", "quality/predictions"),
        "tests/quality/test_verdict.py tests/quality/test_coverage.py tests/quality/test_evaluation.py",
    ),
    "versions": Area(("model/versions",), "tests/model/test_versions.py"),
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


NOTICED, EXPLAINED, SURVIVED = "noticed by", "survives:", "NOT NOTICED"


@dataclass(frozen=True)
class Change:
    """A change of a copy of the repository: its name, the file, what changes it, and the tests that must notice."""

    name: str
    file: str
    tests: str
    make: Callable[[], object]


def main() -> int:
    """Print a line for each mutant, and a table; return the exit code."""
    names = [EDITED, *AREAS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"{', '.join(names)} (all)")
    parser.add_argument("--sample", type=int, default=40, help="mutants of an area (40)")
    arguments = parser.parse_args()
    if unknown := set(arguments.areas) - set(names):
        parser.error(f"no area {', '.join(sorted(unknown))}; expected some of {', '.join(names)}")
    chosen = arguments.areas or names
    table = Table("area", title="Mutants", title_justify="left")
    for column in ("tried", "noticed", "explained", "share", "target"):
        table.add_column(column, justify="right")
    enough = True
    with ThreadPoolExecutor(2) as pool:
        for area, found in zip(chosen, pool.map(lambda area: mutants(area, arguments.sample), chosen), strict=True):
            noticed, explained = (sum(verdict == one for one in found) for verdict in (NOTICED, EXPLAINED))
            share, least = noticed / max(len(found) - explained, 1), 1.0 if area == EDITED else LEAST
            enough &= share >= least
            table.add_row(area, str(len(found)), str(noticed), str(explained), f"{share:.0%}", f"{least:.0%}")
    console = Console(width=120)
    console.print(table)
    console.print(f"target in each area: {'met' if enough else 'missed'}")
    return 0 if enough else 1


def mutants(area: str, sample: int) -> list[str]:
    """Try a sample of an area's mutants, and print a line for each; return NOTICED, EXPLAINED or SURVIVED of each."""
    verdicts, limits = [], {}
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as scratch:
        copy = copy_of_the_repository(Path(scratch) / "repository")
        for change in edited(copy, sample) if area == EDITED else generated(copy, AREAS[area], sample):
            if change.tests not in limits:
                limits[change.tests] = limit(copy, change.tests)
            file = copy / change.file
            source = file.read_text(encoding="utf-8")
            try:
                change.make()
                test = failing(copy, change.tests, limits[change.tests])
                line = changed(source, file.read_text(encoding="utf-8"))
            finally:
                file.write_text(source, encoding="utf-8")
            reason = next((why for part, why in REASONS.items() if part in line and area != EDITED), "")
            verdicts.append(NOTICED if test else EXPLAINED if reason else SURVIVED)
            print(f"{area}: {change.name}: {line}: {verdicts[-1]} {test or reason}".rstrip(), flush=True)
    return verdicts


def edited(copy: Path, sample: int) -> list[Change]:
    """Return a sample of EDITS."""
    return [
        Change(one.name, one.file, one.tests, partial(edit, copy / one.file, one.old, one.new))
        for one in random.Random(1).sample(EDITS, min(sample, len(EDITS)))
    ]


def generated(copy: Path, area: Area, sample: int) -> list[Change]:
    """Return a sample of the mutants that cosmic-ray makes of an area's modules, no two at the same place."""
    paths = ", ".join(f'"pipeline/{module}.py"' for module in area.modules)
    (copy / "mutants.toml").write_text(
        f'[cosmic-ray]\nmodule-path = [{paths}]\ntimeout = 0\nexcluded-modules = []\ntest-command = ""\n'
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    cosmic_ray(copy, "init", "mutants.toml", "mutants.sqlite")
    with sqlite3.connect(copy / "mutants.sqlite") as session:
        found = session.execute(
            "SELECT module_path, operator_name, occurrence, start_pos_row, start_pos_col FROM mutation_specs"
            " WHERE operator_name NOT LIKE '%BinaryOperator_Div%' AND operator_name NOT LIKE '%BinaryOperator_BitOr%'"
            " ORDER BY module_path, start_pos_row, start_pos_col, operator_name, occurrence, operator_args"
        ).fetchall()
    random.Random(1).shuffle(found)
    places = {(module, row, column): (module, row, *how) for module, *how, row, column in found}
    return [
        Change(f"{module}:{row}", module, area.tests, partial(cosmic_ray, copy, "apply", module, operator, str(number)))
        for module, row, operator, number in sorted(list(places.values())[:sample])
    ]


def copy_of_the_repository(copy: Path) -> Path:
    """Copy the files that Git knows, as they are now."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def cosmic_ray(copy: Path, *arguments: str) -> None:
    """Call cosmic-ray, which uv keeps in a separate environment."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "tool", "run", "--quiet", "--from", COSMIC_RAY, "cosmic-ray", *arguments]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)


def changed(before: str, after: str) -> str:
    """Return the changed lines, as they were and as they became."""
    lines = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:2] in ("- ", "+ ")]
    was, became = ([line[2:].strip() for line in lines if line[0] == sign] for sign in "-+")
    return f"{' '.join(was)} -> {' '.join(became)}"


def limit(copy: Path, tests: str) -> float:
    """Return the seconds after which the tests count as failing: three times as long as without a change.

    Raises:
        RuntimeError: they fail without a change.
    """
    started = time.monotonic()
    if failed := failing(copy, tests, None):
        raise RuntimeError(f"{tests} fail before anything is changed: {failed}")
    return 3 * (time.monotonic() - started) + 10


def failing(copy: Path, tests: str, seconds: float | None) -> str:
    """Return the name of the first test that fails, or nothing; that they have not ended in time counts as failing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", *tests.split()]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"they run for more than {seconds:.0f} s"
    if not done.returncode:
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if lines:
        # "FAILED file::test - why", or "ERROR file" where the file cannot be imported.
        return lines[0].split(" - ")[0].split("::")[-1]
    # Such as a module that no longer compiles, of which pytest tells on the other channel.
    return (done.stdout + done.stderr)[-2000:].strip() or f"exit code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
