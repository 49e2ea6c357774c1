"""TFX's FnArgs with the steps of one pass over a split, where the config names none.

With TFX alone ``fn_args.train_steps`` is then None, and Keras trains for ever on a dataset that repeats if
``steps_per_epoch`` is None.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tfx.components.trainer import fn_args_utils

from pipeline.data.blocks import BLOCK
from pipeline.data.tfrecord_files import read_records

logger = logging.getLogger("pipeline.training")


class FnArgs(fn_args_utils.FnArgs):
    """Arguments of ``run_fn`` and ``tuner_fn``; ``code`` is the name of the wheel, with a fingerprint of the code.

    The steps are counted when they are read. By then the module has usually created its datasets, and ``data_accessor``
    knows the batch size; for a module that reads files in another way, it is ``training.batch_size``.
    """

    def __init__(self) -> None:
        self.code = ""
        self._batch_sizes: dict[tuple[str, ...], int] = {}  # by the patterns of the files
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
        """Steps of the config, or of one pass over the train split; a last batch that is not full counts."""
        return self._train_steps or self._steps_of_one_pass("train", self.train_files)

    @train_steps.setter
    def train_steps(self, steps: int | None) -> None:
        self._train_steps = steps

    @property
    def eval_steps(self) -> int:
        """Steps of the config, or of one pass over the eval split; a last batch that is not full counts."""
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
        batch_size = self._batch_sizes.get(_key(patterns), self.custom_config["batch_size"])
        files = [file for pattern in patterns for file in tf.io.gfile.glob(pattern)]
        examples = sum(len(records) for file in files for records in read_records(file, BLOCK))
        steps = max(1, -(-examples // batch_size))
        logger.info(f"One pass over {split}: {steps:,} steps of {batch_size} examples for {examples:,} examples")
        return steps


def _key(patterns: str | Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)
