"""Ask a model the test split: curves, confusion, importance of features, and the rows with the largest errors."""

import logging
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn import metrics

from pipeline import filesystem
from pipeline.data import files
from pipeline.data.table import rows_at_once
from pipeline.data.tfrecord_files import read_records
from pipeline.model.export_format import examples_signature, read_inputs, threshold_of
from pipeline.model.outside_operations import check_inward
from pipeline.quality.tfma_config import as_measured
from pipeline.report.charts import thinned
from pipeline.report.thumbnails import thumbnail
from pipeline.settings.config import Label
from pipeline.settings.gates import Evaluation
from pipeline.settings.image_data import facts
from pipeline.settings.tasks import ANSWERS, Task

logger = logging.getLogger("pipeline.report")

# More rows move no curve by the width of its line.
MOST_ROWS = 100_000
BATCH = 4_096
# Rows, and values in them, that are scored for the importance of all features together: about five seconds on two cores
# for 30 features, and less than 20 for 500. More than 200 features are permuted once and not three times.
QUESTIONS, VALUES = 120_000, 40_000_000
LEAST_IMPORTANCE_ROWS, MOST_IMPORTANCE_ROWS, REPEATS = 100, 2_000, 3
MOST_BYTES = 256 << 20  # of rows, as they are in their files
BINS, WRONG, MOST_CLASSES = 10, 5, 10

_row = tf.train.Example.FromString


def score(
    examples: str,
    model: str,
    baseline: str | None,
    label: Label,
    settings: Evaluation,
    total: int,
    image: str | None = None,
) -> dict[str, Any]:
    """Score the test split by a model, and by the baseline.

    Returns:
        For JSON: "rows" asked, "of" how many; "curves" by "new" and "baseline" (``curves_of``; of numbers only the
        calibration, of several classes none); "confusion": rows by their class and the one answered, empty for numbers;
        "weighed_confusion": their weights, if they have any;
        "importance" by feature: the mean loss of quality (``QUALITIES``) and its standard deviation when the feature's
        values are permuted "importance_repeats" times among "importance_rows" rows (Breiman 2001, Fisher et al. 2019);
        "wrong": of each class, the rows with the largest error, of images with a thumbnail and the path; "notes".
    """
    task = label.task
    records = _records(examples, total)
    labels = _numbers(records, label.name)
    weights = _numbers(records, label.weight) if label.weight else None
    signature = _signature(model, settings.logits)
    answers = _ask(signature, records, task)
    scores: dict[str, Any] = {
        "rows": len(records),
        "of": total,
        "curves": {} if task == "multiclass" else {"new": curves_of(labels, answers, task, weights)},
        "confusion": [],
        "notes": [],
    }
    if label.classes:
        threshold = threshold_of(model, settings.threshold)
        chosen = answers.argmax(axis=1) if task == "multiclass" else answers >= threshold
        scores["confusion"] = metrics.confusion_matrix(labels, chosen, labels=range(len(label.classes))).tolist()
        if weights is not None:
            weighed = metrics.confusion_matrix(labels, chosen, labels=range(len(label.classes)), sample_weight=weights)
            scores["weighed_confusion"] = weighed.tolist()
    if baseline and task != "multiclass":
        try:
            of_baseline = _ask(_signature(baseline, settings.logits), records, task)
            scores["curves"]["baseline"] = curves_of(labels, of_baseline, task, weights)
        except Exception as error:
            logger.info("The baseline does not answer.", exc_info=error)
            scores["notes"].append("The baseline does not answer the rows of today, so its curves are missing.")
    no_columns = {label.name, label.weight or label.name, *((image, *facts(image)) if image else ())}
    taken = {column["name"] for column in read_inputs(model).values()}
    scores |= _importance(signature, records, labels, weights, no_columns, task, taken)
    scores["wrong"] = [
        {"label": float(labels[place]), "answer": answers[place].tolist(), **_described(_row(records[place]), image)}
        for place in _most_wrong(task, labels, answers)
    ]
    return scores


def _numbers(records: Sequence[bytes], name: str) -> np.ndarray:
    kind = _row(records[0]).features.feature[name].WhichOneof("kind")
    of_feature = tf.io.FixedLenFeature([], tf.float32 if kind == "float_list" else tf.int64)
    return tf.io.parse_example(list(records), {name: of_feature})[name].numpy().astype(float)


def curves_of(labels: np.ndarray, answers: np.ndarray, task: Task, weights: np.ndarray | None = None) -> dict[str, Any]:
    """Return the curves of a model over labels [rows] of 0 and 1 and probabilities [rows], or over numbers.

    Returns:
        "roc": [false positive rates, true positive rates]; "precision_recall": [recalls, precisions]; both None of
        numbers and where a class is missing; "calibration": [mean answers, mean labels, counts] of ten parts of equal
        size, from the lowest answers to the highest.
    """
    parts = [part for part in np.array_split(np.argsort(answers, kind="stable"), BINS) if len(part)]
    calibration = [[_mean(values, weights, part) for part in parts] for values in (answers, labels)]
    curves: dict[str, Any] = {
        "roc": None,
        "precision_recall": None,
        "calibration": [*calibration, [len(part) for part in parts]],
    }
    if task == "binary" and 0 < labels.mean() < 1:
        false_rates, true_rates, _ = metrics.roc_curve(labels, answers, drop_intermediate=False, sample_weight=weights)
        precisions, recalls, _ = metrics.precision_recall_curve(labels, answers, sample_weight=weights)
        curves["roc"] = [thinned(rates).tolist() for rates in (false_rates, true_rates)]
        curves["precision_recall"] = [thinned(values[::-1]).tolist() for values in (recalls, precisions)]
    return curves


def _mean(values: np.ndarray, weights: np.ndarray | None, part: np.ndarray) -> float:
    """Return the mean of some rows; the plain one where none of them has any weight."""
    weighed = weights is not None and weights[part].any()
    return float(np.average(values[part], weights=weights[part] if weighed else None))  # type: ignore[index]


def auc(labels: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the area under the ROC curve of labels [rows] of 0 and 1; NaN where a class is missing."""
    if not 0 < labels.mean() < 1:
        return float("nan")
    return float(metrics.roc_auc_score(labels, probabilities, sample_weight=weights))


# The quality that a feature's importance is a loss of, by task; higher is better. Of several classes, answers are
# [rows, classes]; the last argument is the weights of the rows, or None.
QUALITIES: dict[Task, Callable[[np.ndarray, np.ndarray, np.ndarray | None], float]] = {
    "binary": auc,
    "multiclass": lambda labels, answers, weights: metrics.accuracy_score(
        labels, answers.argmax(axis=1), sample_weight=weights
    ),
    "regression": lambda labels, answers, weights: (
        -metrics.root_mean_squared_error(labels, answers, sample_weight=weights)
    ),
}


def _records(examples: str, total: int) -> list[bytes]:
    found = files.find(f"{examples}/Split-test", {"test": "*"}).by_split["test"]
    size = sum(map(filesystem.size, found))
    step = max(1, -(-total // MOST_ROWS), -(-size // MOST_BYTES))
    kept, seen = [], 0
    for file in found:
        for batch in read_records(file, BATCH):
            kept += batch[(-seen) % step :: step]
            seen += len(batch)
    return kept


def _signature(model: str, logits: bool) -> Any:
    """Return the signature that takes serialized tf.Examples; the model lives as long as it."""
    check_inward(model)
    loaded = tf.saved_model.load(model)
    signature = examples_signature(loaded.signatures)
    signature.keeps = loaded
    signature.answers_logits = logits
    return signature


def _ask(signature: Any, records: Sequence[bytes], task: Task) -> np.ndarray:
    """Return the answers of a model to serialized tf.Examples: [rows], of several classes [rows, classes]."""
    (name,) = signature.structured_input_signature[1]
    parts: list[np.ndarray] = []
    at_once = rows_at_once(BATCH, len(records), sum(map(len, records)))
    for start in range(0, len(records), at_once):
        answer = signature(**{name: tf.constant(list(records[start : start + at_once]))})
        value = (answer[ANSWERS[task]] if ANSWERS[task] in answer else next(iter(answer.values()))).numpy()
        value = as_measured(value, task, signature.answers_logits)
        parts.append(value if task == "multiclass" else np.reshape(value, -1))
    return np.concatenate(parts).astype(float)


def _most_wrong(task: Task, labels: np.ndarray, answers: np.ndarray) -> list[int]:
    if task == "multiclass":
        errors = 1 - answers[np.arange(len(labels)), labels.astype(int)]
    else:
        errors = np.abs(labels - answers)
    order = np.argsort(-errors, kind="stable")
    if task == "regression":
        return [int(place) for place in order[: 2 * WRONG]]
    kinds = np.unique(labels)[::-1][:MOST_CLASSES]
    return [int(place) for kind in kinds for place in order[labels[order] == kind][:WRONG]]


def _importance(
    signature: Any,
    records: Sequence[bytes],
    labels: np.ndarray,
    weights: np.ndarray | None,
    left_out: Set[str],
    task: Task,
    taken: Set[str] = frozenset(),
) -> dict[str, Any]:
    names = sorted({name for record in records[:1_000] for name in _row(record).features.feature} - left_out)
    if taken:  # the columns that the model takes, if it says so
        names = [name for name in names if name in taken]
    if not names:
        return {"importance": {}, "importance_rows": 0, "importance_repeats": 0}
    random = np.random.default_rng(0)
    repeats = REPEATS if len(names) <= 200 else 1
    affordable = min(QUESTIONS, VALUES // len(names)) // (len(names) * repeats)
    mean_bytes = sum(map(len, records)) // len(records) + 1
    affordable = min(max(LEAST_IMPORTANCE_ROWS, affordable), max(1, MOST_BYTES // mean_bytes // repeats))
    count = min(len(records), MOST_IMPORTANCE_ROWS, affordable)
    chosen = random.choice(len(records), count, replace=False)
    asked, sample_labels = [records[place] for place in chosen], labels[chosen]
    sample = [_row(record) for record in asked]
    counted = None if weights is None else weights[chosen]
    quality = QUALITIES[task]
    before = quality(sample_labels, _ask(signature, asked, task), counted)
    # Concatenated serialized messages are one message, so rows are cut into features once.
    columns = list(dict.fromkeys([*names, *(name for row in sample for name in row.features.feature)]))
    pieces = [[_only(name, row) for name in columns] for row in sample]
    importance: dict[str, tuple[float, float]] = {}
    for place, name in enumerate(names):
        others = [b"".join(row[:place] + row[place + 1 :]) for row in pieces]
        orders = [random.permutation(count) for _ in range(repeats)]
        permuted = [
            rest + pieces[source][place] for order in orders for rest, source in zip(others, order, strict=True)
        ]
        parts = np.split(_ask(signature, permuted, task), repeats)
        losses = [before - quality(sample_labels, part, counted) for part in parts]
        importance[name] = (float(np.mean(losses)), float(np.std(losses)))
    ordered = dict(sorted(importance.items(), key=lambda item: -item[1][0]))
    return {"importance": ordered, "importance_rows": count, "importance_repeats": repeats}


def _only(name: str, row: tf.train.Example) -> bytes:
    if name not in row.features.feature:
        return b""
    only = tf.train.Example()
    only.features.feature[name].CopyFrom(row.features.feature[name])
    return bytes(only.SerializeToString())


def _described(row: tf.train.Example, image: str | None) -> dict[str, Any]:
    if image is None:
        return {"features": _values(row)}
    of_image = row.features.feature.pop(image).bytes_list.value if image in row.features.feature else []
    values = _values(row)
    return {
        "features": values,
        "image": thumbnail(of_image[0]) if of_image else "",
        "path": values.get(facts(image)[0], ""),
    }


def _values(row: tf.train.Example) -> dict[str, str]:
    texts = {}
    for name, feature in row.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value)[:5] if kind else []
        texts[name] = ", ".join(
            value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value:.6g}" for value in values
        )
    return texts
