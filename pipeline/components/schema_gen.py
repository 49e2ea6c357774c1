"""SchemaGen that keeps a column which has no value in one of the splits.

TFX's marks such a column as deprecated, and a ``preprocessing_fn`` that names it fails with a KeyError.
"""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx.components.schema_gen.executor import DEFAULT_FILE_NAME
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.utils import io_utils

from pipeline.components.data_gate import read_statistics
from pipeline.validation.schema_text import inferred_from


class Executor(BaseExecutor):
    """Infers a schema from the statistics of all splits."""

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes "schema"."""
        self._log_startup(input_dict, output_dict, exec_properties)
        statistics = read_statistics(artifact_utils.get_single_instance(input_dict["statistics"]))
        schema = inferred_from(list(statistics.values()))
        folder = artifact_utils.get_single_uri(output_dict["schema"])
        io_utils.write_pbtxt_file(f"{folder}/{DEFAULT_FILE_NAME}", schema)


class SchemaGenSpec(ComponentSpec):
    """The ports of TFX's SchemaGen that we use."""

    PARAMETERS = {"code": ExecutionParameter(type=str)}
    INPUTS = {"statistics": ChannelParameter(type=standard_artifacts.ExampleStatistics)}
    OUTPUTS = {"schema": ChannelParameter(type=standard_artifacts.Schema)}


class SchemaGen(BaseComponent):
    """Infers a schema."""

    SPEC_CLASS = SchemaGenSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(self, statistics: types.BaseChannel, code: str):
        """Make the component.

        Args:
            statistics: Of every split.
            code: Fingerprint of this module, so that a change of it runs the step again.
        """
        schema = types.Channel(type=standard_artifacts.Schema)
        super().__init__(SchemaGenSpec(statistics=statistics, code=code, schema=schema))
