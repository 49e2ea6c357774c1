"""What a label can be, and what follows: the model's answer, its objective, and whether more is better.

Standard library only; known to the settings, to training and to what judges a model.
"""

from __future__ import annotations

from typing import Literal

Task = Literal["binary", "multiclass", "regression"]
# What a model answers: the probability of the second class, [batch]; those of all classes, [batch, classes]; the number
# itself, [batch].
ANSWERS: dict[Task, str] = {"binary": "probability", "multiclass": "probabilities", "regression": "prediction"}
# What early stopping and the search judge by, unless the config says otherwise.
OBJECTIVES: dict[Task, str] = {"binary": "auc", "multiclass": "loss", "regression": "rmse"}
# What Keras and TFMA call their losses and errors.
ERRORS = ("loss", "error", "crossentropy", "rmse", "mse", "mae", "mape")


def task_of(classes: int) -> Task:
    """The task of a label of so many classes; of none, it is a number."""
    return {0: "regression", 2: "binary"}.get(classes, "multiclass")  # type: ignore[return-value]


def better(metric: str) -> Literal["min", "max"]:
    """Whether a metric is better when it is lower, as losses and errors are, or when it is higher."""
    return "min" if metric.endswith(ERRORS) else "max"
