"""What only the model itself can tell: its answers to the test split, and what they depend on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.data import files
from pipeline.data.tfrecord_files import read_records
from pipeline.evaluation.tfma_config import as_measured
from pipeline.serving.export_format import examples_signature
from pipeline.settings.tasks import ANSWERS, Task, task_of

logger = logging.getLogger("pipeline.report")

# More rows move no curve by the width of its line.
MOST_ROWS = 100_000
BATCH = 4_096
# Rows times features times repeats that are asked for the importance of features: about five seconds on two cores.
QUESTIONS = 120_000
MOST_IMPORTANCE_ROWS, REPEATS = 2_000, 3
CURVE, BINS, WRONG, MOST_CLASSES = 200, 10, 5, 10


def score(
    examples: str,
    model: str,
    baseline: str | None,
    label: str,
    classes: int,
    threshold: float,
    total: int,
    logits: bool = False,
) -> dict[str, Any]:
    """Asks a model, and the one it is compared with, the test split.

    Args:
        examples: Folder of the artifact with the split "test".
        model: Folder of a SavedModel.
        baseline: The same; None where there is none.
        label: Column of the numbers of classes, or of any numbers.
        classes: How many classes there are; 0 where the label is a number.
        threshold: Probability from which a row counts as class 1, of two classes.
        total: Rows of the split; of more than ``MOST_ROWS``, evenly taken ones are asked.
        logits: Whether the models answer logits.

    Returns:
        For JSON: "rows" asked, "of" how many; "curves" by "new" and "baseline" (``curves_of``; of numbers only the
        calibration, of several classes none); "confusion": rows by their class and the one answered, empty for numbers;
        "importance" by feature: the mean loss of quality (``QUALITIES``) and its standard deviation when the feature's
        values are dealt anew among "importance_rows" rows (Breiman 2001, Fisher et al. 2019); "wrong": of each class,
        the rows with the largest error; "notes".
    """
    task = task_of(classes)
    records = _records(examples, total)
    rows = [tf.train.Example.FromString(record) for record in records]
    labels = np.asarray([_label(row, label) for row in rows])
    signature = _signature(model, logits)
    answers = _ask(signature, records, task)
    found: dict[str, Any] = {
        "rows": len(records),
        "of": total,
        "curves": {} if task == "multiclass" else {"new": _curves(task, labels, answers)},
        "confusion": _confusion(labels, _chosen(task, answers, threshold), classes),
        "notes": [],
    }
    if baseline and task != "multiclass":
        try:
            found["curves"]["baseline"] = _curves(task, labels, _ask(_signature(baseline, logits), records, task))
        except Exception as error:
            logger.info("The baseline does not answer.", exc_info=error)
            found["notes"].append("The baseline does not answer the rows of today, so its curves are missing.")
    found |= _importance(signature, rows, labels, label, task)
    found["wrong"] = [
        {"label": float(labels[place]), "answer": _answer(answers[place]), "features": _values(rows[place])}
        for place in _most_wrong(task, labels, answers)
    ]
    return found


def _curves(task: Task, labels: np.ndarray, answers: np.ndarray) -> dict[str, Any]:
    if task == "binary":
        return curves_of(labels, answers)
    return {"auc": None, "roc": None, "precision_recall": None, "calibration": _calibration(labels, answers)}


def _calibration(labels: np.ndarray, answers: np.ndarray) -> list[list[float]]:
    """[mean answers, mean labels, counts] of ten parts of equal size, from the lowest answers to the highest."""
    parts = [part for part in np.array_split(np.argsort(answers, kind="stable"), BINS) if len(part)]
    return [
        [float(answers[part].mean()) for part in parts],
        [float(labels[part].mean()) for part in parts],
        [len(part) for part in parts],
    ]


def curves_of(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
    """Curves of a model over labels [rows] of 0 and 1 and probabilities [rows].

    Returns:
        "auc"; "roc": [false positive rates, true positive rates]; "precision_recall": [recalls, precisions]; these
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
    found: dict[str, Any] = {
        "auc": None,
        "roc": None,
        "precision_recall": None,
        "calibration": _calibration(labels, probabilities),
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


def accuracy(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Share of labels [rows] that have the highest of the probabilities [rows, classes]."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def closeness(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Root mean squared error of predictions [rows], negative: the higher the better."""
    return -float(np.sqrt(np.mean((predictions - labels) ** 2)))


# What a feature's importance is a loss of.
QUALITIES: dict[Task, Callable[[np.ndarray, np.ndarray], float]] = {
    "binary": auc,
    "multiclass": accuracy,
    "regression": closeness,
}


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


def _signature(model: str, logits: bool) -> Any:
    """What takes serialized tf.Examples; it lives as long as the model it keeps."""
    loaded = tf.saved_model.load(model)
    signature = examples_signature(loaded.signatures)
    signature.keeps = loaded
    signature.answers_logits = logits
    return signature


def _ask(signature: Any, records: Sequence[bytes], task: Task) -> np.ndarray:
    """What a model answers to serialized tf.Examples: [rows], of several classes [rows, classes]."""
    (name,) = signature.structured_input_signature[1]
    parts: list[np.ndarray] = []
    for start in range(0, len(records), BATCH):
        answer = signature(**{name: tf.constant(list(records[start : start + BATCH]))})
        value = (answer[ANSWERS[task]] if ANSWERS[task] in answer else next(iter(answer.values()))).numpy()
        value = as_measured(value, task, signature.answers_logits)
        parts.append(value if task == "multiclass" else np.reshape(value, -1))
    return np.concatenate(parts).astype(float)


def _answer(answer: Any) -> float | list[float]:
    return float(answer) if np.ndim(answer) == 0 else [float(one) for one in answer]


def _most_wrong(task: Task, labels: np.ndarray, answers: np.ndarray) -> list[int]:
    """Places of the rows with the largest error, the same number of each class."""
    if task == "multiclass":
        errors = 1 - answers[np.arange(len(labels)), labels.astype(int)]
    else:
        errors = np.abs(labels - answers)
    order = np.argsort(-errors, kind="stable")
    if task == "regression":
        return [int(place) for place in order[: 2 * WRONG]]
    kinds = np.unique(labels)[::-1][:MOST_CLASSES]
    return [int(place) for one in kinds for place in order[labels[order] == one][:WRONG]]


def _chosen(task: Task, answers: np.ndarray, threshold: float) -> np.ndarray:
    """Numbers of the classes that are answered [rows]."""
    return answers.argmax(axis=1) if task == "multiclass" else (answers >= threshold).astype(int)


def _confusion(labels: np.ndarray, chosen: np.ndarray, classes: int) -> list[list[int]]:
    return [[int(((labels == one) & (chosen == said)).sum()) for said in range(classes)] for one in range(classes)]


def _importance(
    signature: Any, rows: Sequence[tf.train.Example], labels: np.ndarray, label: str, task: Task
) -> dict[str, Any]:
    names = sorted({name for row in rows[:1_000] for name in row.features.feature} - {label})
    if not names:
        return {"importance": {}, "importance_rows": 0}
    random = np.random.default_rng(0)
    count = min(len(rows), MOST_IMPORTANCE_ROWS, max(200, QUESTIONS // (len(names) * REPEATS)))
    chosen = random.choice(len(rows), count, replace=False)
    sample, sample_labels = [rows[place] for place in chosen], labels[chosen]
    quality = QUALITIES[task]
    before = quality(sample_labels, _ask(signature, [row.SerializeToString() for row in sample], task))
    losses: dict[str, list[float]] = {}
    for name in names:
        dealt = [_with_values_of(name, sample, random.permutation(count)) for _ in range(REPEATS)]
        answers = np.split(_ask(signature, [record for once in dealt for record in once], task), REPEATS)
        losses[name] = [before - quality(sample_labels, once) for once in answers]
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
