"""Read from a run what its steps took, and on how many rows."""

import csv
from pathlib import Path

from tensorflow_metadata.proto.v0 import statistics_pb2

from pipeline import filesystem
from pipeline.costs.measured import StepRun
from pipeline.errors import UserError
from pipeline.runs.store import Run
from pipeline.settings.config import SPLITS


def timings(run: Run) -> dict[str, StepRun]:
    """Return rows and seconds of the steps of a run; of a cached step, those of the execution that made its artifacts.

    What only looks something up takes no time worth counting.
    """
    rows = sum(rows_of(run).values())
    return {
        name: StepRun(rows, seconds, _epochs(run) if name == "Trainer" else 0)
        for name, seconds in run.seconds_of_steps.items()
    }


def rows_of(run: Run) -> dict[str, int]:
    """Return the rows of a run by split, as its statistics have counted them.

    Raises:
        UserError: it has none.
    """
    artifact = run.artifact("StatisticsGen", "statistics")
    if artifact is None:
        raise UserError(f"run {run.name} has not come as far as counting its rows; run it again")
    rows = {}
    for split in SPLITS:
        (file,) = filesystem.find_files(artifact.uri, f"Split-{split}/*")
        statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(filesystem.read_bytes(file))
        rows[split] = int(statistics.datasets[0].num_examples)
    return rows


def _epochs(run: Run) -> int:
    """Return how many epochs the Trainer trained; 0 where it kept no history."""
    artifact = run.artifact("Trainer", "model_run")
    history = Path(artifact.uri) / "history.csv" if artifact else None
    if not history or not history.is_file():
        return 0
    with history.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.DictReader(file))
