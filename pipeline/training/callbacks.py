"""Keras callbacks: those of every training, and where those of a worker that is not the chief write."""

from collections.abc import Sequence
from typing import Any

import keras

from pipeline.settings.tasks import objective_direction
from pipeline.training.settings import Settings


def early_stopping(settings: Settings) -> keras.callbacks.EarlyStopping:
    """Return the callback that ends every training, a trial of the search or the final one."""
    return keras.callbacks.EarlyStopping(
        monitor=f"val_{settings.objective}",
        mode=objective_direction(settings.objective),
        patience=settings.patience,
        restore_best_weights=True,
        start_from_epoch=settings.head_epochs,
    )


def redirect_output(callbacks: Sequence[Any], folder: str) -> None:
    """Let the callbacks of a worker that is not the chief write to a folder that is deleted."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = folder
        elif isinstance(callback, keras.callbacks.ModelCheckpoint):
            callback.filepath = f"{folder}/{callback.filepath.rsplit('/', 1)[-1]}"
        elif isinstance(callback, keras.callbacks.CSVLogger):
            callback.filename = f"{folder}/log.csv"
