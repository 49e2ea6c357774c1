"""Record a training by epoch and by step, for people, TensorBoard and the run report; trace some of its steps."""

import csv
import io
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.training.steps import RECORDED

logger = logging.getLogger("pipeline.training")

# What the members of an ensemble lose on the eval split, in words; written by ``run``.
MEMBERS_FILE = "members.txt"
EPOCHS_FILE = "history.csv"
STEPS_FILE = "steps.csv"
# Where the time went and one sentence on that; written by ``diagnosis``.
DIAGNOSIS_FILE = "diagnosis.json"


class Journal:
    """Writes ``history.csv``, a row an epoch, ``steps.csv``, a row a step, and TensorBoard scalars.

    Attributes:
        steps: A row [step, epoch, *RECORDED] for every step; step and epoch count from 0.
        epochs: Metrics by name for every epoch.
    """

    def __init__(self, folder: str | None, tensorboard: str | None = None):
        self._folder = folder
        self.steps: list[list[float]] = []
        self.epochs: list[dict[str, float]] = []
        self._scalars = (
            tf.summary.create_file_writer(f"{tensorboard}/steps") if tensorboard else tf.summary.create_noop_writer()
        )

    def add_steps(self, first: int, epoch: int, records: Sequence[Sequence[float]]) -> None:
        """Add the steps of one call; TensorBoard gets the last of them."""
        self.steps += [[first + place, epoch, *record] for place, record in enumerate(records)]
        if records:
            with self._scalars.as_default(step=first + len(records)):
                for name, value in zip(RECORDED, records[-1], strict=True):
                    tf.summary.scalar(name, value)

    def add_epoch(self, metrics: dict[str, float]) -> None:
        """Add an epoch and write the files."""
        self.epochs.append(metrics)
        if self._folder:
            names = list(dict.fromkeys(name for epoch in self.epochs for name in epoch))
            rows = [[epoch, *(row.get(name, "") for name in names)] for epoch, row in enumerate(self.epochs)]
            self._write(EPOCHS_FILE, ["epoch", *names], rows)
            rows = [[int(step), int(epoch), *record] for step, epoch, *record in self.steps]
            self._write(STEPS_FILE, ["step", "epoch", *RECORDED], rows)
            self._scalars.flush()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"steps": np.asarray(self.steps), "epochs": self.epochs}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take the state from a checkpoint."""
        self.steps, self.epochs = state["steps"].tolist(), state["epochs"]

    def _write(self, name: str, header: list[str], rows: list[list[Any]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        write_file(f"{self._folder}/{name}", text.getvalue())


class Trace:
    """Writes a trace of the steps from the first to before the second of ``steps``, for TensorBoard's profiler."""

    def __init__(self, steps: tuple[int, int] | None, folder: str | None):
        self.stops = steps if steps and folder else ()
        self._folder = folder
        self._runs = self._begun = False

    def at(self, step: int) -> None:
        """Start the trace, or end it, if it is due before a step."""
        if not self.stops:
            return
        first, last = self.stops
        if step == first:
            self._runs = self._begun = True
            tf.profiler.experimental.start(self._folder)
        elif step >= last:
            self._stop()

    def end(self, step: int) -> None:
        """End the trace if it runs; warn of a training that ended at a step before the trace."""
        if self.stops and not self._begun and step < self.stops[0]:
            logger.warning(
                "no trace was written: training.profile=%s begins after the last step, which is %d", self.stops, step
            )
        self._stop()

    def _stop(self) -> None:
        if self._runs:
            self._runs = False
            tf.profiler.experimental.stop()


def write_file(path: str, content: str | bytes) -> None:
    """Write a file here or in a bucket, whole or not at all, with the folders above it."""
    tf.io.gfile.makedirs(path.rpartition("/")[0])
    with tf.io.gfile.GFile(f"{path}.partial", "wb") as file:
        file.write(content)
    tf.io.gfile.rename(f"{path}.partial", path, overwrite=True)
