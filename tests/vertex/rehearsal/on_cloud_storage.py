"""Rehearse the job compiled for Vertex AI on gs://, with a Cloud Storage on this machine at Google's addresses.

    python -m tests.vertex.rehearsal.on_cloud_storage --config configs/flights.py --out FOLDER [--data PATH]

Nothing in the job is changed: its addresses are a bucket's, its data is uploaded to the bucket as before a submission,
and its tasks are their containers' commands. Prints the requests to Cloud Storage by task, and writes
``FOLDER/result.json``.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.fakes.cloud_machine import cloud_machine, isolated, task_environment
from tests.fakes.cloud_storage import COPY, DELETE, LIST, LOOK_UP, READ, START, WRITE, CloudStorage

ROOT = Path(__file__).resolve().parents[3]
PROJECT, REGION, BUCKET_NAME, TOKEN = "demo", "us-central1", "demo-bucket", "token-of-the-tasks"
KINDS = {
    "look up": LOOK_UP,
    "list": LIST,
    "read": READ,
    "start of upload": START,
    "write": WRITE,
    "copy": COPY,
    "delete": DELETE,
}
RESULT = "result.json"


@dataclass
class Rehearsal:
    """Outcome of a rehearsal on gs://.

    Attributes:
        states, seconds: By step.
        requests: By step and kind.
        metrics: On the test split.
        addresses: All objects at the end.
        hurried: By object, how often it was written within a second of the last time.
        error: Why it ended early.
    """

    states: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    requests: dict[str, dict[str, int]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    addresses: list[str] = field(default_factory=list)
    hurried: dict[str, int] = field(default_factory=dict)
    error: str = ""


def rehearse(config: Path, out: Path, data: Path | None = None) -> tuple[Rehearsal, str]:
    """Rehearse in namespaces of their own; return how it went, and all that was printed.

    Raises:
        RuntimeError: this machine has no such namespaces, or the job could not be compiled or uploaded.
    """
    module = "tests.vertex.rehearsal.on_cloud_storage"
    command = [sys.executable, "-m", module, "--config", str(config), "--out", str(out), "--inside"]
    out.mkdir(parents=True, exist_ok=True)
    process = subprocess.run(
        isolated(*command, *(["--data", str(data)] if data else [])),
        cwd=ROOT,
        env={**task_environment(), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    result = out / RESULT
    if not result.is_file():
        raise RuntimeError(f"the rehearsal ended with {process.returncode}:\n{process.stdout}")
    return Rehearsal(**json.loads(result.read_text(encoding="utf-8"))), process.stdout


def table(rehearsal: Rehearsal) -> Table:
    """Return the requests of every step."""
    rows = Table("step", title="Requests to Cloud Storage", title_justify="left")
    for name in (*KINDS, "other", "all", "s"):
        rows.add_column(name, justify="right")
    for step, counts in rehearsal.requests.items():
        shown = [counts.get(kind, 0) for kind in KINDS.values()]
        total = sum(counts.values())
        seconds = rehearsal.seconds.get(step)
        rows.add_row(step, *map(str, shown), str(total - sum(shown)), str(total), f"{seconds:.1f}" if seconds else "")
    return rows


def _rehearse_here(config_file: Path, out: Path, data: Path | None) -> Rehearsal:
    """Rehearse on this machine, which ``cloud_machine`` makes one of Google Cloud."""
    from pipeline.errors import UserError
    from pipeline.runs.results import outcome_of
    from pipeline.runs.step import Step, StepFailed
    from pipeline.settings.config import load_config
    from pipeline.settings.target import Target, Vertex
    from pipeline.vertex.cloud import Cloud
    from pipeline.vertex.pipelines import submit
    from pipeline.vertex.pipelines.compile import compile
    from pipeline.vertex.rehearsal import task_runner

    storage = CloudStorage(TOKEN, bucket_reader=False, throttles=True)
    storage.create_bucket(BUCKET_NAME, REGION)
    rehearsal = Rehearsal()
    before = 0

    def start(_: str) -> None:
        nonlocal before
        before = len(storage.requests)

    def end(step: Step) -> None:
        print(f"{step.name} {step.state} {step.seconds:.1f} s", flush=True)
        rehearsal.states[step.name], rehearsal.seconds[step.name] = step.state, step.seconds
        rehearsal.requests[step.name] = dict(Counter(request.kind for request in storage.requests[before:]))

    with cloud_machine(out, storage, PROJECT, TOKEN):
        config = load_config(config_file).with_paths_from(ROOT)
        if data:
            config = replace(config, data=replace(config.data, path=str(data), prepare=None))
        vertex = Vertex(PROJECT, REGION, BUCKET_NAME, f"{REGION}-docker.pkg.dev/{PROJECT}/pipelines/pipeline:1")
        target = Target.on_vertex(vertex, config.name, out / "upload")
        job = json.loads(compile(config, target, out / "job").read_text(encoding="utf-8"))
        submit.upload(out / "job", Cloud.connect(PROJECT, REGION), print)
        try:
            steps = task_runner.run(job, "1", out, Path(config.module), start, end)
            rehearsal.metrics = outcome_of(steps).metrics["overall"]
        except StepFailed as failure:
            rehearsal.error = f"{failure.step}: {failure.__cause__}"
        except UserError as error:
            rehearsal.error = str(error)
    rehearsal.addresses, rehearsal.hurried = storage.addresses(), dict(storage.hurried)
    return rehearsal


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse; return 0, or 1 if a step failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.vertex.rehearsal.on_cloud_storage", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, help="config file")
    parser.add_argument("--out", required=True, type=Path, help="folder for logs and the result")
    parser.add_argument("--data", type=Path, help="data in place of the config's")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside:
        rehearsal = _rehearse_here(given.config, given.out, given.data)
        (given.out / RESULT).write_text(json.dumps(asdict(rehearsal), indent=1), encoding="utf-8")
        return 0
    try:
        rehearsal, text = rehearse(given.config.resolve(), given.out.resolve(), given.data and given.data.resolve())
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(text)
    Console(width=140).print(table(rehearsal))
    print(rehearsal.error or json.dumps(rehearsal.metrics))
    return 1 if rehearsal.error else 0


if __name__ == "__main__":
    sys.exit(main())
