"""Tasks and metrics: the kinds of labels, the answers of their models, and the metrics of each."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Task = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True)
class Metric:
    """A metric that gates name and reports show.

    Attributes:
        direction: 1: higher is better, -1: lower is better, 0: neither.
        highest: The largest possible value; the lowest is 0. None: unbounded.
        shown: Whether reports and the terminal have a column for it.
        listed: Whether the list of runs has one.
    """

    title: str
    direction: int = 1
    highest: float | None = 1.0
    shown: bool = True
    listed: bool = True


@dataclass(frozen=True)
class TaskTraits:
    """Names and metrics that follow from the kind of label.

    Attributes:
        answer: Name of the served model's output: the probability of the second class, [batch]; the probabilities of
            all classes, [batch, classes]; or the number itself, [batch].
        objective: Metric of the Keras model that early stopping and the search judge by, unless the config names one.
        metrics: By name; the first is used for feature importance and the chart of slices.
    """

    label: str
    answer: str
    objective: str
    metrics: Mapping[str, Metric]


TASKS: dict[Task, TaskTraits] = {
    "binary": TaskTraits(
        label="two classes",
        answer="probability",
        objective="auc",
        metrics={
            "auc": Metric("AUC"),
            "auc_precision_recall": Metric("PR AUC", listed=False),
            "precision": Metric("precision"),
            "recall": Metric("recall"),
            "false_positive_rate": Metric("false positive rate", direction=-1, shown=False, listed=False),
            # The mean prediction over the mean label, best at 1.
            "calibration": Metric("calibration", direction=0, highest=None, listed=False),
        },
    ),
    "multiclass": TaskTraits(
        label="several classes",
        answer="probabilities",
        objective="loss",
        metrics={
            "accuracy": Metric("accuracy"),
            # The mean of -log of the probability of the right class.
            "log_loss": Metric("log loss", direction=-1, highest=None),
        },
    ),
    "regression": TaskTraits(
        label="a number",
        answer="prediction",
        objective="rmse",
        metrics={  # the first two in the unit of the label
            "rmse": Metric("RMSE", direction=-1, highest=None),
            "mae": Metric("MAE", direction=-1, highest=None),
            "squared_correlation": Metric("squared correlation", listed=False),
        },
    ),
}
METRICS = {name: metric for task in TASKS.values() for name, metric in task.metrics.items()}
# Next to the answer, where evaluation.coverage asks for it: the bounds of a number, and the classes that may be right.
LOW, HIGH, LABEL_SET = "prediction_low", "prediction_high", "label_set"
ANSWERS = {task: traits.answer for task, traits in TASKS.items()}
# Suffixes of Keras metrics for which lower is better: losses, errors and counts of wrong answers.
LOWER_IS_BETTER = (
    r".*(loss|error|crossentropy|rmse|mse|mae|mape|msle|logcosh|divergence|hinge|poisson|false_(positives|negatives))"
)


def task_of(classes: int) -> Task:
    """Return the task of a label by its number of classes; 0: it is a number."""
    return {0: "regression", 2: "binary"}.get(classes, "multiclass")  # type: ignore[return-value]


def shown_metrics(task: Task) -> dict[str, Metric]:
    """Return the metrics that reports and the terminal have a column for, by name."""
    return {name: metric for name, metric in TASKS[task].metrics.items() if metric.shown}


def objective_direction(metric: str) -> Literal["min", "max"]:
    """Return whether a metric of a Keras model, such as "val_loss", is to be as low or as high as possible."""
    name = metric.removeprefix("val_")
    direction = METRICS[name].direction if name in METRICS else -1 if re.fullmatch(LOWER_IS_BETTER, name) else 1
    return "min" if direction < 0 else "max"
