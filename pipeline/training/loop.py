"""Fitting one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf


def fit(
    model: keras.Model,
    train: tf.data.Dataset,
    evaluate: tf.data.Dataset,
    *,
    epochs: int,
    patience: int,
    objective: str,
    logs: str,
) -> keras.callbacks.History:
    """Fits a compiled model until the objective on the eval split stops growing; restores the best weights.

    Args:
        model: Compiled with a metric named like ``objective``.
        train: Batches to learn from.
        evaluate: Batches of the eval split.
        epochs: Most passes over ``train``.
        patience: Epochs without a better objective.
        objective: Metric to judge by, higher is better.
        logs: Folder for history.csv and the TensorBoard files.
    """
    Path(logs).mkdir(parents=True, exist_ok=True)
    callbacks = [
        *stopping(objective, patience),
        keras.callbacks.CSVLogger(str(Path(logs) / "history.csv")),
        keras.callbacks.TensorBoard(logs),
    ]
    return model.fit(train, validation_data=evaluate, epochs=epochs, callbacks=callbacks, verbose=2)


def stopping(objective: str, patience: int) -> list[Any]:
    """The callbacks that end a training which no longer helps, in a search as in the final training."""
    return [
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.EarlyStopping(
            monitor=f"val_{objective}", mode="max", patience=patience, restore_best_weights=True
        ),
    ]
