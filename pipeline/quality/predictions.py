"""Describe predictions: how often intervals contain the label, and drift from those for the test split."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.quality.findings import Finding
from pipeline.quality.intervals import wilson
from pipeline.quality.statistics import Statistics, features_of, too_far
from pipeline.quality.tfma_config import as_measured
from pipeline.settings.gates import DataChecks
from pipeline.settings.tasks import ANSWERS, HIGH, LABEL_SET, LOW, Task, task_of

# Their column in statistics and findings.
NAME = "predictions"
# Of more, evenly taken ones are described: they move no share by a thousandth.
MOST_ROWS = 1_000_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Covered:
    """How many labels lie within their intervals or sets."""

    rows: int = 0
    covered: int = 0
    size: float = 0.0  # sum of the widths of intervals, in the unit of the label, or of the classes in sets
    of_sets: bool = False

    @classmethod
    def of(cls, labels: np.ndarray, outputs: Mapping[str, Any]) -> "Covered":
        """Count the rows of a batch: labels or class numbers [rows] or [rows, 1], and the model's outputs by name."""
        labels, rows = np.reshape(labels, -1), len(labels)
        if LABEL_SET in outputs:
            sets = outputs[LABEL_SET]
            return cls(rows, int(sets[np.arange(rows), labels.astype(int)].sum()), float(sets.sum()), True)
        low, high = (np.asarray(outputs[name], np.float64).reshape(-1) for name in (LOW, HIGH))
        return cls(rows, int(((low <= labels) & (labels <= high)).sum()), float((high - low).sum()))

    def __add__(self, other: "Covered") -> "Covered":
        sums = self.rows + other.rows, self.covered + other.covered, self.size + other.size
        return Covered(*sums, self.of_sets or other.of_sets)

    def sentence(self, target: float, fitted_on: int) -> str:
        """Compare the share of covered rows with the target; ``fitted_on`` rows of eval have decided the bounds."""
        z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        within = wilson(self.covered, self.rows, z)
        assert within  # there are rows
        share, mean = self.covered / self.rows, self.size / self.rows
        kind, size = ("sets", f"{mean:.3g} classes") if self.of_sets else ("intervals", f"{mean:.4g} wide")
        sentence = (
            f"{kind} for {100 * target:g} % of the rows: {100 * share:.1f} % reached on test ({100 * CONFIDENCE:g} % "
            f"interval {100 * within[0]:.1f} to {100 * within[1]:.1f} %), {size} on average"
        )
        deviation = math.sqrt(target * (1 - target) * (1 / self.rows + 1 / fitted_on))
        if share < target - z * deviation:
            sentence += "; that is less by more than chance, so test differs from eval"
        return sentence


def values_of(answers: np.ndarray) -> np.ndarray:
    """Return a finite number for each row, float32: the answer, or the place of the most probable of several classes.

    Takes answers as the metrics need them: [rows], [rows, 1] or, of several classes, probabilities [rows, classes].
    """
    answers = answers if answers.ndim == 2 else answers[:, np.newaxis]
    answers = answers[np.isfinite(answers).all(axis=1)]
    values = answers.argmax(axis=1) if answers.shape[1] > 1 else answers[:, 0]
    return values.astype(np.float32)


def statistics_of(values: np.ndarray, classes: Sequence[str]) -> Statistics:
    """Return the statistics of what ``values_of`` returns; the places of several classes become their names."""
    values = values[:: 1 + len(values) // MOST_ROWS]
    column = pa.array(values)
    if task_of(len(classes)) == "multiclass":
        values = values[values < len(classes)]  # ModelCheck refuses a model that answers more
        column = pa.array([name.encode() for name in classes], pa.large_binary()).take(
            pa.array(values.astype(np.int64))
        )
    lists = pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1), pa.int32()), column)
    return stats_impl.generate_statistics_in_memory(pa.RecordBatch.from_arrays([lists], [NAME]))


def from_json(predictions: Sequence[Any], classes: Sequence[str], logits: bool) -> np.ndarray:
    """Return the server's answers from JSON as ``values_of`` takes them, without those that are not predictions."""
    task = task_of(len(classes))
    rows = [_numbers(answer, task, len(classes)) for answer in predictions]
    width = max([1, *map(len, rows)])
    known = [row for row in rows if len(row) == width]
    return np.asarray(as_measured(np.array(known).reshape(-1, width), task, logits))


def drift(of_requests: Statistics, of_test: Statistics, checks: DataChecks, split: str) -> Iterator[Finding]:
    """Find that predictions lie too far from those for the test split, by TFDV's distances."""
    mine, theirs = (features_of(statistics)[NAME] for statistics in (of_requests, of_test))
    schema = schema_pb2.Schema()
    feature = schema.feature.add(name=NAME)
    if mine.HasField("num_stats"):
        feature.type = schema_pb2.FLOAT
        feature.skew_comparator.jensen_shannon_divergence.threshold = checks.max_prediction_drift
    else:
        feature.type = schema_pb2.BYTES
        feature.skew_comparator.infinity_norm.threshold = checks.max_prediction_drift
    anomalies = tfdv.validate_statistics(of_requests, schema, serving_statistics=of_test)
    for info in anomalies.drift_skew_info:
        for measured, found in too_far(info.skew_measurements, mine, theirs, "those for the test split"):
            allowing = min(1, measured.value * 1.1)  # no distance is larger
            yield Finding(
                "prediction_drift",
                split,
                NAME,
                found,
                f"at most {checks.max_prediction_drift:g}",
                f"train again; accept it: DataChecks(max_prediction_drift={allowing:.2g}) in the config",
            )


def _numbers(answer: Any, task: Task, classes: int) -> list[float]:
    """Return the numbers of one answer; none where it is no prediction of this task."""
    if isinstance(answer, dict) and "contributions" in answer:
        answer = answer.get("answer", answer)  # explained, as Vertex AI logs it
    answer = answer.get(ANSWERS[task]) if isinstance(answer, dict) else answer
    values = answer if isinstance(answer, list) else [answer]
    numbers = [float(value) for value in values if isinstance(value, (int, float))]
    widths = {"regression": (1,), "binary": (1, 2), "multiclass": (classes,)}[task]
    return numbers if len(numbers) == len(values) and len(values) in widths else []
