"""What only the model itself can tell: its answers to the test split, and what they depend on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.reading import files
from pipeline.reading.tfrecord_files import read_records

logger = logging.getLogger("pipeline.report")

# More rows move no curve by the width of its line.
MOST_ROWS = 100_000
BATCH = 4_096
# Rows times features times repeats that are asked for the importance of features: about five seconds on two cores.
QUESTIONS = 120_000
MOST_IMPORTANCE_ROWS, REPEATS = 2_000, 3
CURVE, BINS, WRONG = 200, 10, 5


def score(examples: str, model: str, baseline: str | None, label: str, threshold: float, total: int) -> dict[str, Any]:
    """Asks a model, and the one it is compared with, the test split.

    Args:
        examples: Folder of the artifact with the split "test".
        model: Folder of a SavedModel.
        baseline: The same; None where there is none.
        label: Column of 0 and 1.
        threshold: Probability from which a row counts as class 1.
        total: Rows of the split; of more than ``MOST_ROWS``, evenly taken ones are asked.

    Returns:
        For JSON: "rows" asked, "of" how many; "curves" by "new" and "baseline" (``curves_of``); "confusion" counts;
        "importance" by feature: the mean loss of AUC and its standard deviation when the feature's values are dealt
        anew among "importance_rows" rows (Breiman 2001, Fisher et al. 2019); "wrong": of each class, the rows
        with the largest error; "notes".
    """
    records = _records(examples, total)
    rows = [tf.train.Example.FromString(record) for record in records]
    labels = np.asarray([_label(row, label) for row in rows])
    signature = _signature(model)
    probabilities = _ask(signature, records)
    found: dict[str, Any] = {
        "rows": len(records),
        "of": total,
        "curves": {"new": curves_of(labels, probabilities)},
        "confusion": _confusion(labels, probabilities, threshold),
        "notes": [],
    }
    if baseline:
        try:
            found["curves"]["baseline"] = curves_of(labels, _ask(_signature(baseline), records))
        except Exception as error:
            logger.info("The baseline does not answer.", exc_info=error)
            found["notes"].append("The baseline does not answer the rows of today, so its curves are missing.")
    found |= _importance(signature, rows, labels, label)
    found["wrong"] = [
        {"label": int(labels[place]), "probability": float(probabilities[place]), "features": _values(rows[place])}
        for place in _most_wrong(labels, probabilities)
    ]
    return found


def curves_of(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
    """Curves of a model over labels [rows] of 0 and 1 and probabilities [rows].

    Returns:
        "auc"; "roc": [false positive rates, true positive rates]; "precision_recall": [recalls, precisions]; the last
        three None where a class is missing; "calibration": [mean probabilities, shares of class 1, counts] of ten parts
        of equal size.
    """
    order = np.argsort(-probabilities, kind="stable")
    sorted_labels, sorted_probabilities = labels[order], probabilities[order]
    # Rows with the same probability change sides together.
    last: np.ndarray = np.flatnonzero(np.append(np.diff(sorted_probabilities) != 0, True))
    hits = np.cumsum(sorted_labels)[last]
    alarms: np.ndarray = last + 1
    positives, negatives = labels.sum(), len(labels) - labels.sum()
    parts = [part for part in np.array_split(order[::-1], BINS) if len(part)]
    found: dict[str, Any] = {
        "auc": None,
        "roc": None,
        "precision_recall": None,
        "calibration": [
            [float(probabilities[part].mean()) for part in parts],
            [float(labels[part].mean()) for part in parts],
            [len(part) for part in parts],
        ],
    }
    if positives and negatives:
        false_rate: np.ndarray = np.append(0.0, (alarms - hits) / negatives)
        true_rate: np.ndarray = np.append(0.0, hits / positives)
        found["auc"] = float(np.trapezoid(true_rate, false_rate))
        found["roc"] = _thinned(false_rate, true_rate)
        found["precision_recall"] = _thinned(hits / positives, hits / alarms)
    return found


def auc(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Area under the ROC curve of labels [rows] of 0 and 1; NaN where a class is missing."""
    area = curves_of(labels, probabilities)["auc"]
    return float("nan") if area is None else float(area)


def _thinned(xs: np.ndarray, ys: np.ndarray) -> list[list[float]]:
    keep = np.unique(np.linspace(0, len(xs) - 1, CURVE).round().astype(int))
    return [xs[keep].tolist(), ys[keep].tolist()]


def _records(examples: str, total: int) -> list[bytes]:
    step = max(1, -(-total // MOST_ROWS))
    kept, seen = [], 0
    for file in files.find(f"{examples}/Split-test", {"test": "*"}).by_split["test"]:
        for batch in read_records(file, BATCH):
            kept += batch[(-seen) % step :: step]
            seen += len(batch)
    return kept


def _label(row: tf.train.Example, label: str) -> float:
    value = row.features.feature[label]
    return float(next(iter(value.int64_list.value or value.float_list.value)))


def _signature(model: str) -> Any:
    """What takes serialized tf.Examples; it lives as long as the model it keeps."""
    loaded = tf.saved_model.load(model)
    signature = loaded.signatures["predict" if "predict" in loaded.signatures else "serving_default"]
    signature.keeps = loaded
    return signature


def _ask(signature: Any, records: Sequence[bytes]) -> np.ndarray:
    """Probabilities of class 1 [rows]."""
    (name,) = signature.structured_input_signature[1]
    parts: list[np.ndarray] = []
    for start in range(0, len(records), BATCH):
        answer = signature(**{name: tf.constant(list(records[start : start + BATCH]))})
        value = answer["probability"] if "probability" in answer else next(iter(answer.values()))
        parts.append(np.reshape(value.numpy(), -1))
    return np.concatenate(parts).astype(float)


def _most_wrong(labels: np.ndarray, probabilities: np.ndarray) -> list[int]:
    """Places of the rows with the largest error, the same number of each class."""
    order = np.argsort(-np.abs(labels - probabilities), kind="stable")
    return [int(place) for one in (1, 0) for place in order[labels[order] == one][:WRONG]]


def _confusion(labels: np.ndarray, probabilities: np.ndarray, threshold: float) -> dict[str, int]:
    said = probabilities >= threshold
    return {
        "true_positives": int((said & (labels == 1)).sum()),
        "false_positives": int((said & (labels == 0)).sum()),
        "true_negatives": int((~said & (labels == 0)).sum()),
        "false_negatives": int((~said & (labels == 1)).sum()),
    }


def _importance(signature: Any, rows: Sequence[tf.train.Example], labels: np.ndarray, label: str) -> dict[str, Any]:
    names = sorted({name for row in rows[:1_000] for name in row.features.feature} - {label})
    if not names:
        return {"importance": {}, "importance_rows": 0}
    random = np.random.default_rng(0)
    count = min(len(rows), MOST_IMPORTANCE_ROWS, max(200, QUESTIONS // (len(names) * REPEATS)))
    chosen = random.choice(len(rows), count, replace=False)
    sample, sample_labels = [rows[place] for place in chosen], labels[chosen]
    before = auc(sample_labels, _ask(signature, [row.SerializeToString() for row in sample]))
    losses: dict[str, list[float]] = {}
    for name in names:
        dealt = [_with_values_of(name, sample, random.permutation(count)) for _ in range(REPEATS)]
        answers = _ask(signature, [record for once in dealt for record in once]).reshape(REPEATS, count)
        losses[name] = [before - auc(sample_labels, once) for once in answers]
    importance = {name: [float(np.mean(values)), float(np.std(values))] for name, values in losses.items()}
    ordered = sorted(importance.items(), key=lambda item: -item[1][0])
    return {"importance": dict(ordered), "importance_rows": count}


def _with_values_of(name: str, rows: Sequence[tf.train.Example], order: np.ndarray) -> list[bytes]:
    """The rows, serialized, each with the feature of another."""
    records = []
    for row, other in zip(rows, order, strict=True):
        changed = tf.train.Example()
        changed.CopyFrom(row)
        changed.features.feature[name].CopyFrom(rows[other].features.feature[name])
        records.append(changed.SerializeToString())
    return records


def _values(row: tf.train.Example) -> dict[str, str]:
    """Values of a row by feature, as text; "" for none."""
    found = {}
    for name, feature in row.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        texts = [
            value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value:.6g}" for value in values[:5]
        ]
        found[name] = ", ".join(texts)
    return found
