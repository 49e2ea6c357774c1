"""SchemaGen that keeps a column without a value in one of the splits.

TFX's marks such a column as deprecated, and a ``preprocessing_fn`` that names it fails with a KeyError.
"""

import json
from typing import Any

from tfx import types
from tfx.components.schema_gen.executor import DEFAULT_FILE_NAME
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_artifacts
from tfx.utils import io_utils

from pipeline.components.artifacts import read_statistics
from pipeline.components.base import Artifacts, DeclaredComponent
from pipeline.validation.schema_text import inferred_from


class SchemaGenExecutor(BaseExecutor):
    """Infer a schema from the statistics of all splits."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "schema"."""
        statistics = read_statistics(artifact_utils.get_single_instance(input_dict["statistics"]))
        schema = inferred_from(
            list(statistics.values()), json.loads(exec_properties.get("settings", "{}")).get("weight")
        )
        folder = artifact_utils.get_single_uri(output_dict["schema"])
        io_utils.write_pbtxt_file(f"{folder}/{DEFAULT_FILE_NAME}", schema)


class SchemaGen(DeclaredComponent):
    """Infer a schema from the statistics of all splits."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(SchemaGenExecutor)
    INPUTS = {"statistics": standard_artifacts.ExampleStatistics}
    OUTPUTS = {"schema": standard_artifacts.Schema}

    def __init__(self, *, weight: str | None = None, **inputs: types.BaseChannel):
        """Create the component from the column of weights, which no request has, and the statistics."""
        super().__init__({"weight": weight} if weight else None, **inputs)
