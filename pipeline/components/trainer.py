"""TFX's Trainer, for modules that call ``pipeline.training`` and for those of stock TFX.

With TFX alone, ``fn_args.train_steps`` is None where the config names no steps, and Keras trains for ever on data that
repeats. Here, and in the Tuner, the steps are one pass over the split, data without an end needs a number of steps, and
``fit`` reports its progress.
"""

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import keras
import keras_tuner
import numpy as np
import tensorflow as tf
from tfx import components as tfx_components
from tfx.components.trainer import executor as tfx_trainer
from tfx.components.trainer import fn_args_utils
from tfx.dsl.components.base import executor_spec

from pipeline.components.base import Artifacts, UserCodeComponent, user_code
from pipeline.data.blocks import BLOCK
from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError
from pipeline.progress import Progress

logger = logging.getLogger("pipeline.training")


class FnArgs(fn_args_utils.FnArgs):
    """Arguments of ``run_fn`` and ``tuner_fn``; ``code`` is the name of the wheel, with a fingerprint of the code.

    The steps are counted when they are read. By then the module has usually created its datasets, and ``data_accessor``
    knows the batch size; for a module that reads files in another way, it is ``training.batch_size``.
    """

    def __init__(self) -> None:
        self.code = ""
        self._batch_sizes: dict[tuple[str, ...], int] = {}  # by the patterns of the files
        self._examples: dict[tuple[str, ...], int] = {}  # the same
        super().__init__()

    @classmethod
    def of(cls, stock: fn_args_utils.FnArgs, module_path: str = "") -> "FnArgs":
        """Return the arguments that TFX made, with steps, for a module as TFX writes it, ``module@folder/wheel``."""
        fn_args = cls()
        for name, value in vars(stock).items():
            setattr(fn_args, name, value)
        fn_args.code = module_path.rpartition("/")[2]
        accessor = stock.data_accessor
        fn_args.data_accessor = accessor._replace(
            tf_dataset_factory=fn_args._record_batch_size(accessor.tf_dataset_factory),
            record_batch_factory=fn_args._record_batch_size(accessor.record_batch_factory),
        )
        return fn_args

    @property
    def train_steps(self) -> int:
        """Return the steps of the config, or of one pass over the train split including a last partial batch."""
        return self._train_steps or self._steps_of_one_pass("train", self.train_files)

    @train_steps.setter
    def train_steps(self, steps: int | None) -> None:
        self._train_steps = steps

    @property
    def eval_steps(self) -> int:
        """Return the steps of the config, or of one pass over the eval split including a last partial batch."""
        return self._eval_steps or self._steps_of_one_pass("eval", self.eval_files)

    @eval_steps.setter
    def eval_steps(self, steps: int | None) -> None:
        self._eval_steps = steps

    def _record_batch_size(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a factory of ``data_accessor``: record the batch size by the files that are read."""

        def create(file_pattern: str | Sequence[str], options: Any, *args: Any, **kwargs: Any) -> Any:
            self._batch_sizes[_key(file_pattern)] = options.batch_size
            return factory(file_pattern, options, *args, **kwargs)

        return create

    def _steps_of_one_pass(self, split: str, patterns: Sequence[str]) -> int:
        key = _key(patterns)
        batch_size = self._batch_sizes.get(key, self.custom_config["batch_size"])
        if key not in self._examples:
            files = [file for pattern in patterns for file in tf.io.gfile.glob(pattern)]
            self._examples[key] = sum(len(records) for file in files for records in read_records(file, BLOCK))
        examples = self._examples[key]
        steps = max(1, -(-examples // batch_size))
        logger.info(f"One pass over {split}: {steps:,} steps of {batch_size} examples for {examples:,} examples")
        return steps


def _key(patterns: str | Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


class InfiniteDataError(UserError, keras_tuner.errors.FatalError):
    """A training, evaluation or prediction would not end. Only KerasTuner's FatalError ends a search."""


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
                most = tuner.oracle.max_trials  # None of Hyperband and of a grid
                Progress("search").tell(f"trial {len(tuner.oracle.trials)}{f' of {most}' if most else ''}")
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


class TrainerExecutor(tfx_trainer.GenericExecutor):
    """Give ``run_fn`` the steps of one pass, and refuse to train on a dataset that repeats for ever."""

    _code = ""  # the module and its wheel, as TFX writes them

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "model" and "model_run" as TFX's does."""
        self._code = exec_properties.get("module_path") or ""
        with user_code(exec_properties) as properties, reject_infinite_data():
            super().Do(input_dict, output_dict, properties)

    def _GetFnArgs(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> FnArgs:
        fn_args = super()._GetFnArgs(input_dict, output_dict, exec_properties)
        return FnArgs.of(fn_args, self._code)


class Trainer(UserCodeComponent, tfx_components.Trainer):
    """TFX's Trainer with our executor."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(TrainerExecutor)
