"""The schema of a graph: a reviewed one, or one that SchemaGen infers.

Unlike TFX's, this SchemaGen keeps a column without a value in one of the splits in use.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tfx import types
from tfx.components.schema_gen.executor import DEFAULT_FILE_NAME
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_artifacts
from tfx.utils import io_utils

from pipeline.components.artifacts import read_statistics
from pipeline.components.base import Artifacts, DeclaredComponent
from pipeline.errors import UserError
from pipeline.quality.schema_text import inferred_from, parse, to_text
from pipeline.settings.config import PipelineConfig
from pipeline.settings.names import SERVING, did_you_mean
from pipeline.settings.target import Target


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


def stage_schema(config: PipelineConfig, target: Target) -> str:
    """Copy the reviewed schema to a folder named by its content, because TFX's cache compares only the address.

    Columns that the config leaves out are not in the copy.

    Raises:
        UserError: the file is not a schema, lacks the label, its weight or a column that slices the evaluation, or
            requires the weight in requests.
    """
    schema_file, label, leave_out = Path(config.schema or ""), config.label, config.data.leave_out
    schema = parse(schema_file, leave_out)
    features = {feature.name: feature for feature in schema.feature}
    for name, what in ((label.name, "label"), (label.weight, "weight")):
        if name and name not in features:
            raise UserError(
                f"{schema_file} has no feature {name!r}, the {what}; add it or name another {what} in the config"
            )
    for name in config.evaluation.sliced_by:
        if name not in features:
            hint = did_you_mean(name, features) or f"; there are {', '.join(sorted(features))}"
            raise UserError(f"{schema_file} has no feature {name!r}, by which the evaluation slices{hint}")
    if label.weight and SERVING not in features[label.weight].not_in_environment:
        raise UserError(
            f"{schema_file} asks requests for {label.weight!r}, the weight, which none has; add not_in_environment: "
            f'"{SERVING}" to this feature, as the label has it'
        )
    content = to_text(schema).encode() if leave_out else schema_file.read_bytes()
    folder = target.files / "_schemas" / hashlib.sha256(content).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.pbtxt").write_bytes(content)
    return target.address(folder)
