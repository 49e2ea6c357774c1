"""Refuse infinite datasets and report progress, in modules that call Keras' own ``fit``.

TFX's dataset factory repeats its data by default. Without a number of steps, Keras trains on such data for ever.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import keras_tuner
import numpy as np
import tensorflow as tf

from pipeline.errors import UserError
from pipeline.progress import Progress


class InfiniteDataError(UserError, keras_tuner.errors.FatalError):
    """A training, evaluation or prediction would not end. KerasTuner ends a search for no error but its FatalError."""


# By method of keras.Model: argument with the data, its name in messages, argument with the steps, and its usual value.
DATA_AND_STEPS = {
    "fit": (
        ("x", "training data", "steps_per_epoch", "fn_args.train_steps"),
        ("validation_data", "validation data", "validation_steps", "fn_args.eval_steps"),
    ),
    "evaluate": (("x", "data", "steps", "fn_args.eval_steps"),),
    "predict": (("x", "data", "steps", "fn_args.eval_steps"),),
}


@contextlib.contextmanager
def reject_infinite_data(tuner: keras_tuner.Tuner | None = None) -> Iterator[None]:
    """Patch ``keras.Model``, called by a tuner or ``run_fn``: infinite data without steps is an error."""
    with contextlib.ExitStack() as patches:
        for name in DATA_AND_STEPS:
            checked = _checked(name, getattr(keras.Model, name), tuner)
            patches.enter_context(mock.patch.object(keras.Model, name, checked))
        yield


def _checked(name: str, method: Callable[..., Any], tuner: keras_tuner.Tuner | None) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return method(*args, **kwargs)  # raises the TypeError of Keras
        for argument, noun, steps, value in DATA_AND_STEPS[name]:
            data = arguments.get(argument)
            infinite = isinstance(data, tf.data.Dataset) and data.cardinality() == tf.data.INFINITE_CARDINALITY
            if infinite and arguments.get(steps) is None:
                remedy = f'add "{steps}": {value} to the fit_kwargs of tuner_fn' if tuner else f"pass {steps}={value}"
                raise InfiniteDataError(
                    f"Model.{name} would never end: its {noun} repeats for ever and {steps} is not set; {remedy}"
                )
        if name == "fit":
            # Only the process with the oracle knows the trials.
            if tuner and isinstance(tuner.oracle, keras_tuner.Oracle) and tuner.oracle.trials:
                Progress("search").tell(f"trial {len(tuner.oracle.trials)} of {tuner.oracle.max_trials}")
            callbacks = arguments.get("callbacks")
            if not isinstance(callbacks, keras.callbacks.CallbackList):
                arguments["callbacks"] = [*tf.nest.flatten(callbacks or []), ReportProgress()]
        bound = inspect.BoundArguments(signature, arguments)
        return method(*bound.args, **bound.kwargs)

    return call


class ReportProgress(keras.callbacks.Callback):
    """Report the epoch and the step."""

    # Lets Keras go on without the metrics of every step.
    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress("training")
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report immediately, because an epoch may be short."""
        self._epoch = epoch
        self._progress.tell(self._text())

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Report, at most once a second."""
        if self._progress.due():
            steps = self.params.get("steps")
            text = f"{self._text()}, step {batch + 1:,}" + (f" of {steps:,}" if steps else "")
            numbers = {name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0}
            self._progress.tell(", ".join([text, *(f"{name} {value:.4f}" for name, value in numbers.items())]))

    def _text(self) -> str:
        return f"epoch {self._epoch + 1} of {self.params['epochs']}"
