"""Stop a training that cannot end, and tell how far one is, in modules that call Keras' own ``fit``.

A dataset that repeats, which TFX's factory returns by default, has no end. Keras goes on with it for ever, without a
word, when nobody says how many steps to take.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import keras_tuner
import numpy as np
import tensorflow as tf

from pipeline.errors import UserError
from pipeline.progress import Progress


class EndlessError(UserError, keras_tuner.errors.FatalError):
    """A training, evaluation or prediction would not end; KerasTuner takes no other kind of error for fatal."""


# By method of keras.Model: the data that it reads to the end, the argument that ends it, and what to pass for that.
ENDED_BY = {
    "fit": (
        ("x", "training data", "steps_per_epoch", "fn_args.train_steps"),
        ("validation_data", "validation data", "validation_steps", "fn_args.eval_steps"),
    ),
    "evaluate": (("x", "data", "steps", "fn_args.eval_steps"),),
    "predict": (("x", "data", "steps", "fn_args.eval_steps"),),
}


@contextlib.contextmanager
def refused(tuner: keras_tuner.Tuner | None = None) -> Iterator[None]:
    """Refuse, while this holds, every call of a Keras model over data without end, and tell the progress of ``fit``.

    Args:
        tuner: Whose search calls them, with the ``fit_kwargs`` of ``tuner_fn``; None: ``run_fn`` does.
    """
    own = {name: vars(keras.Model).get(name) for name in ENDED_BY}
    for name in ENDED_BY:
        setattr(keras.Model, name, _checked(name, getattr(keras.Model, name), tuner))
    try:
        yield
    finally:
        for name, method in own.items():
            if method is None:
                delattr(keras.Model, name)  # it is inherited
            else:
                setattr(keras.Model, name, method)


def _checked(name: str, method: Callable[..., Any], tuner: keras_tuner.Tuner | None) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return method(*args, **kwargs)  # which says what is wrong
        for data, noun, steps, remedy in ENDED_BY[name]:
            if _endless(given.get(data)) and given.get(steps) is None:
                to_do = f'add "{steps}": {remedy} to the fit_kwargs of tuner_fn' if tuner else f"pass {steps}={remedy}"
                raise EndlessError(
                    f"Model.{name} would never end: its {noun} repeats for ever and {steps} is not set; {to_do}"
                )
        if name == "fit":
            # Only the process that hands them out knows the trials.
            if tuner and isinstance(tuner.oracle, keras_tuner.Oracle) and tuner.oracle.trials:
                Progress("search").tell(f"trial {len(tuner.oracle.trials)} of {tuner.oracle.max_trials}")
            callbacks = given.get("callbacks")
            if not isinstance(callbacks, keras.callbacks.CallbackList):
                given["callbacks"] = [*tf.nest.flatten(callbacks or []), TellProgress()]
        bound = inspect.BoundArguments(signature, given)
        return method(*bound.args, **bound.kwargs)

    return call


def _endless(data: Any) -> bool:
    return isinstance(data, tf.data.Dataset) and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY


class TellProgress(keras.callbacks.Callback):
    """Tells the epoch and the step."""

    # Keras then need not wait for the metrics of every step.
    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress("training")
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tell at once, for an epoch may be short."""
        self._epoch = epoch
        self._progress.tell(self._text())

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tell, at most once a second."""
        if self._progress.due():
            steps = self.params.get("steps")
            text = f"{self._text()}, step {batch + 1:,}" + (f" of {steps:,}" if steps else "")
            numbers = {name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0}
            self._progress.tell(", ".join([text, *(f"{name} {value:.4f}" for name, value in numbers.items())]))

    def _text(self) -> str:
        return f"epoch {self._epoch + 1} of {self.params['epochs']}"
