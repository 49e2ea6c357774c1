"""Change a line of important behaviour, and look whether its tests notice.

    python benchmarks/mutations.py [WORD ...]

Each mutation is one edit in a copy of the repository. Its tests pass before it and must fail after it. WORDs choose the
mutations with all of them in their name. Exits 1 when one goes unnoticed.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
MOST_SECONDS = 900


@dataclass(frozen=True)
class Mutation:
    """An edit: a text that is in a file exactly once is replaced, and these tests, file and words of ``-k``, fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    words: str = ""


MUTATIONS = (
    Mutation(
        "the Evaluator judges on eval",
        "pipeline/components/evaluator.py",
        'files = files_of(artifact_utils.get_single_instance(inputs["examples"]), "test")\n',
        'files = files_of(artifact_utils.get_single_instance(inputs["examples"]), "eval")\n',
        "tests/components/test_evaluator.py",
    ),
    Mutation(
        "Transform analyses eval too",
        "pipeline/graph.py",
        'analyze=["train"]',
        'analyze=["train", "eval"]',
        "tests/test_graph.py",
    ),
    Mutation(
        "Transform without a fingerprint of its code",
        "pipeline/components/base.py",
        'self.exec_properties["code"] = fingerprint_of(Path(inspect.getfile(type(self))))',
        'self.exec_properties["code"] = type(self).__name__ == "Transform" or fingerprint_of('
        "Path(inspect.getfile(type(self))))",
        "tests/components/test_base.py",
    ),
    Mutation(
        "the Evaluator without a fingerprint of its code",
        "pipeline/components/base.py",
        'self.exec_properties["code"] = fingerprint_of(Path(inspect.getfile(type(self))))',
        'self.exec_properties["code"] = type(self).__name__ == "Evaluator" or fingerprint_of('
        "Path(inspect.getfile(type(self))))",
        "tests/components/test_base.py",
    ),
    *(
        Mutation(
            f"the version of {package} is not in the wheel's fingerprint",
            "pipeline/packaging/fingerprints.py",
            'VERSIONS_THAT_COUNT = ("keras", "keras-tuner", "tensorflow", "tensorflow-transform", "tfx")',
            f'VERSIONS_THAT_COUNT = tuple({{"keras", "keras-tuner", "tensorflow", "tensorflow-transform", "tfx"}}'
            f' - {{"{package}"}})',
            "tests/packaging/test_user_code.py",
        )
        for package in ("tensorflow", "keras", "tfx")
    ),
    Mutation(
        "callbacks begin anew after a restart",
        "pipeline/training/loop.py",
        "            vars(callback).update(values)\n",
        "            pass\n",
        "tests/training/test_resume.py",
    ),
    Mutation(
        "a version is copied into place",
        "pipeline/model/versions.py",
        "staged.rename(self.path(number))",
        "shutil.copytree(staged, self.path(number))",
        "tests/model/test_versions.py",
    ),
    Mutation(
        "an old version is deleted in place",
        "pipeline/model/versions.py",
        "self.path(old).rename(self.folder / STAGING / str(old))",
        "shutil.rmtree(self.path(old))",
        "tests/model/test_versions.py",
    ),
    Mutation(
        "a refused row fails its whole batch",
        "pipeline/serving/batching.py",
        "isinstance(error, tf.errors.OpError) and len(batch) > 1:",
        "isinstance(error, tf.errors.OpError) and len(batch) > 1_000_000:",
        "tests/serving/test_batching.py",
    ),
    Mutation(
        "no batches",
        "pipeline/serving/batching.py",
        "while self._queue and (joint",
        "while self._queue and False and (joint",
        "tests/serving/test_batching.py",
    ),
    Mutation(
        "never 503",
        "pipeline/serving/batching.py",
        "            raise Overloaded\n",
        "            pass\n",
        "tests/serving/test_batching.py",
    ),
    Mutation(
        "--log-share is ignored",
        "pipeline/serving/request_log.py",
        "self._share >= 1 or",
        "self._share >= 0 or",
        "tests/serving/test_batching.py",
    ),
    Mutation(
        "the canary ignores its own rows",
        "pipeline/vertex/endpoints/canary.py",
        '{"our rows": probed, "all requests"',
        '{"all requests"',
        "tests/vertex/endpoints/test_canary.py",
    ),
    Mutation(
        "no row is asked alone",
        "pipeline/components/model_probe.py",
        "                self.check_single_rows(name, signature, outputs)\n",
        "",
        "tests/components/test_model_check.py tests/components/test_model_probe.py",
    ),
    Mutation(
        "signatures may disagree",
        "pipeline/components/model_probe.py",
        "        self.compare_signatures(outputs_by_signature)\n",
        "",
        "tests/components/test_model_check.py tests/components/test_model_probe.py",
    ),
    Mutation(
        "a search without the defaults first",
        "pipeline/training/oracle.py",
        "if not self.start_order:",
        "if not self.start_order and False:",
        "tests/training/test_oracle.py",
    ),
    Mutation(
        "runs clean forgets older pushed models",
        "pipeline/runs/cleaning.py",
        "_judged_by(store, [*pushed, *blessings[-1:]])",
        "_judged_by(store, [*blessings[-1:]])",
        "tests/runs/test_cleaning.py",
    ),
)


def main() -> int:
    """Print a line for each mutation; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="in the names of the mutations (all)")
    words = parser.parse_args().words
    chosen = [one for one in MUTATIONS if all(word.lower() in one.name.lower() for word in words)]
    table = Table("mutation", "tests", "noticed by", "seconds", title="Mutations", title_justify="left")
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        copy = copy_of_the_repository(Path(scratch) / "repository")
        healthy: dict[tuple[str, str], str] = {}
        for mutation in chosen:
            started = time.monotonic()
            key = (mutation.tests, mutation.words)
            if key not in healthy:
                healthy[key] = failing(copy, *key)
            noticed = "" if healthy[key] else mutated(copy, mutation)
            verdict = f"fails without it: {healthy[key]}" if healthy[key] else noticed or "NOBODY"
            unnoticed += not noticed
            table.add_row(mutation.name, mutation.tests, verdict, f"{time.monotonic() - started:.0f}")
            print(f"{mutation.name}: {verdict}", flush=True)
    console = Console(width=160)
    console.print(table)
    console.print(f"{len(chosen) - unnoticed} of {len(chosen)} noticed; must reach: all")
    return 1 if unnoticed else 0


def copy_of_the_repository(copy: Path) -> Path:
    """Copy the files that Git knows, as they are now."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def mutated(copy: Path, mutation: Mutation) -> str:
    """Return the first test that fails with a mutation, or nothing."""
    file = copy / mutation.file
    source = file.read_text(encoding="utf-8")
    if source.count(mutation.old) != 1:
        sys.exit(f"{mutation.name}: {mutation.old!r} is {source.count(mutation.old)} times in {mutation.file}")
    file.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        return failing(copy, mutation.tests, mutation.words)
    finally:
        file.write_text(source, encoding="utf-8")


def failing(copy: Path, tests: str, words: str = "", seconds: float = MOST_SECONDS) -> str:
    """Return the name of the first test that fails, or nothing; that they have not ended in time counts as failing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", *tests.split(), "-k", words]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"they have not ended after {seconds:.0f} s"
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
