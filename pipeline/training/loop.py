"""Fitting one model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline.training.settings import Settings

# Where a cosine schedule ends, as a share of the model's own learning rate.
LAST_SHARE = 0.05


def fit(
    model: keras.Model, train: tf.data.Dataset, evaluate: tf.data.Dataset, settings: Settings, logs: str
) -> keras.callbacks.History:
    """Fits a compiled model until the objective on the eval split stops growing; restores the best weights.

    Args:
        model: Compiled with a metric named like ``settings.objective``.
        train: Batches to learn from, of known cardinality.
        evaluate: Batches of the eval split.
        settings: Epochs, patience, objective, schedule.
        logs: Folder for history.csv and the TensorBoard files.
    """
    Path(logs).mkdir(parents=True, exist_ok=True)
    callbacks = [
        *standard_callbacks(settings),
        keras.callbacks.CSVLogger(str(Path(logs) / "history.csv")),
        keras.callbacks.TensorBoard(logs),
    ]
    return model.fit(train, validation_data=evaluate, epochs=settings.epochs, callbacks=callbacks, verbose=2)


def standard_callbacks(settings: Settings) -> list[Any]:
    """The callbacks of every training, a trial of the search or the final one."""
    callbacks = [
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.EarlyStopping(
            monitor=f"val_{settings.objective}", mode="max", patience=settings.patience, restore_best_weights=True
        ),
    ]
    if settings.schedule == "cosine":
        callbacks.append(WarmupCosine(settings.warmup_epochs))
    return callbacks


class WarmupCosine(keras.callbacks.Callback):
    """Raises the learning rate to the optimizer's own, then lowers it along a cosine until the last planned step.

    A callback and not a schedule in the optimizer: ``build_model`` does not know how many steps there will be.
    """

    def __init__(self, warmup_epochs: float):
        super().__init__()
        self.warmup_epochs = warmup_epochs

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reads the peak from the optimizer and the number of steps from the data."""
        self._peak = float(self.model.optimizer.learning_rate)
        self._step = 0
        self._warmup = self.warmup_epochs * self.params["steps"]
        self._last = self.params["epochs"] * self.params["steps"]

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the learning rate of the next step."""
        self.model.optimizer.learning_rate = self._peak * share(self._step, self._warmup, self._last)
        self._step += 1


def share(step: int, warmup: float, last: int) -> float:
    """The share of the peak learning rate for a step: (step + 1) / warmup, then a cosine from 1 to LAST_SHARE."""
    if step < warmup:
        return min(1.0, (step + 1) / warmup)
    progress = min(1.0, (step - warmup) / max(1.0, last - warmup))
    return LAST_SHARE + (1 - LAST_SHARE) * (1 + math.cos(math.pi * progress)) / 2
