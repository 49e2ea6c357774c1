"""TFX's Trainer, for modules that call ``pipeline.training`` and for those of stock TFX."""

from typing import Any

from tfx import components as tfx_components
from tfx.components.trainer import executor as tfx_trainer
from tfx.dsl.components.base import executor_spec

from pipeline.components.base import Artifacts, UserCodeComponent, user_code
from pipeline.components.fn_args import FnArgs
from pipeline.components.infinite_data import reject_infinite_data


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
