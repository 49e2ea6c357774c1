"""Compare the predictions for requests with those for the test split, by which the model was judged."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.evaluation.tfma_config import as_measured
from pipeline.settings.gates import DataChecks
from pipeline.settings.tasks import ANSWERS, Task, task_of
from pipeline.validation.findings import Finding
from pipeline.validation.statistics import MEASURES, Statistics, compared, features_of

# Their column in statistics and findings.
NAME = "predictions"
# Of more, evenly taken ones are described: they move no share by a thousandth.
MOST_ROWS = 1_000_000


def values_of(answers: np.ndarray) -> np.ndarray:
    """Return a number for each row, float32: the answer, or the place of the most probable of several classes.

    Args:
        answers: As the metrics need them: [rows], [rows, 1] or, of several classes, probabilities [rows, classes]. Rows
            with NaN or infinity are left out.
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
    """Return answers of the server, as JSON has them, as the metrics need them, without what is no prediction.

    Args:
        predictions: Of each row an output, or outputs by name; None where there is none.
        classes: In words; empty where the label is a number.
        logits: Whether the model answers logits.

    Returns:
        As ``values_of`` takes them.
    """
    task = task_of(len(classes))
    rows = [_numbers(answer, task, len(classes)) for answer in predictions]
    width = max([1, *map(len, rows)])
    known = [row for row in rows if len(row) == width]
    return np.asarray(as_measured(np.array(known).reshape(-1, width), task, logits))


def drift(of_requests: Statistics, of_test: Statistics, checks: DataChecks, split: str) -> Iterator[Finding]:
    """Find that predictions lie too far from those for the test split.

    The distance is TFDV's: Jensen-Shannon of numbers, L-infinity of classes.

    Args:
        of_requests: By ``statistics_of``.
        of_test: The same of the test split.
        checks: The limit.
        split: Name for the requests.
    """
    limit = checks.max_prediction_drift
    mine, theirs = (features_of(statistics)[NAME] for statistics in (of_requests, of_test))
    schema = schema_pb2.Schema()
    feature = schema.feature.add(name=NAME)
    if mine.HasField("num_stats"):
        feature.type = schema_pb2.FLOAT
        feature.skew_comparator.jensen_shannon_divergence.threshold = limit
    else:
        feature.type = schema_pb2.BYTES
        feature.skew_comparator.infinity_norm.threshold = limit
    anomalies = tfdv.validate_statistics(of_requests, schema, serving_statistics=of_test)
    for measured in (measured for info in anomalies.drift_skew_info for measured in info.skew_measurements):
        if measured.value > limit:
            allowing = min(1, measured.value * 1.1)  # no distance is larger
            found = f"{MEASURES[measured.type]} distance {measured.value:.3f} from those for the test split"
            yield Finding(
                "prediction_drift",
                split,
                NAME,
                found + compared(mine, theirs),
                f"at most {limit:g}",
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
