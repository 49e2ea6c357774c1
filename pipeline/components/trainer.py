"""The executor of TFX's Trainer, for modules that call ``pipeline.training`` and for those of stock TFX."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx.components.trainer import executor as tfx_trainer

from pipeline.components import endless
from pipeline.components.fn_args import FnArgs


class Executor(tfx_trainer.GenericExecutor):
    """Give ``run_fn`` the steps of one pass, and refuse a training without end."""

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Write "model" and "model_run" as TFX's does.

        Raises:
            EndlessError: ``run_fn`` trains on a dataset that repeats, without a number of steps.
        """
        with endless.refused():
            super().Do(input_dict, output_dict, exec_properties)

    def _GetFnArgs(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> FnArgs:
        return FnArgs.of(super()._GetFnArgs(input_dict, output_dict, exec_properties))
