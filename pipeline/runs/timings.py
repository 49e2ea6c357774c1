"""Read the times of a finished run's steps, its rows, and the speed of its training."""

import csv
from pathlib import Path

from tensorflow_metadata.proto.v0 import statistics_pb2

from pipeline import filesystem
from pipeline.costs.advice import Measured
from pipeline.errors import UserError
from pipeline.runs.store import Run
from pipeline.settings.config import SPLITS

HISTORY = "history.csv"  # pipeline/training/history.py, which imports TensorFlow


def measured(run: Run) -> Measured:
    """Return the times of a finished run; of a cached step, the times of the execution that made its artifacts."""
    artifact = run.artifact("Trainer", "model_run")
    history = Path(artifact.uri) / HISTORY if artifact else None
    epochs: list[dict[str, str]] = []
    if history and history.is_file():
        with history.open(encoding="utf-8", newline="") as file:
            epochs = list(csv.DictReader(file))
    return Measured(
        run=run.name,
        rows=_rows_of(run),
        cores=int(run.record.machine["cores"]),
        seconds=run.seconds_of_steps,
        examples_per_second=tuple(float(epoch["examples_per_second"]) for epoch in epochs),
        accelerated=any(float(epoch.get("accelerator_used") or 0) for epoch in epochs),
    )


def _rows_of(run: Run) -> dict[str, int]:
    artifact = run.artifact("StatisticsGen", "statistics")
    if artifact is None or not Path(artifact.uri).is_dir():
        raise UserError(f"the statistics of run {run.name} are gone; run it again")
    rows = {}
    for split in SPLITS:
        (file,) = filesystem.find_files(artifact.uri, f"Split-{split}/*")
        statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(filesystem.read_bytes(file))
        rows[split] = int(statistics.datasets[0].num_examples)
    return rows
