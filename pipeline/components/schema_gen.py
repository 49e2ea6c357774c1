"""The schema of a graph: a reviewed one, or one that SchemaGen infers.

Unlike TFX's, this SchemaGen keeps a column without a value in one of the splits in use.
"""

import difflib
import hashlib
import json
from collections.abc import Collection
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
from pipeline.quality.schema_text import inferred_from, parse
from pipeline.settings.config import Label
from pipeline.settings.names import SERVING
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


def stage_schema(schema_file: Path, label: Label, sliced_by: Collection[str], target: Target) -> str:
    """Copy a reviewed schema to a folder named by its content, because TFX's cache compares only the address.

    Raises:
        UserError: the file is not a schema, lacks the label, its weight or a column in ``sliced_by``, or requires the
            weight in requests.
    """
    content = schema_file.read_bytes()
    features = {feature.name: feature for feature in parse(schema_file).feature}
    for name, what in ((label.name, "label"), (label.weight, "weight")):
        if name and name not in features:
            raise UserError(
                f"{schema_file} has no feature {name!r}, the {what}; add it or name another {what} in the config"
            )
    for name in sliced_by:
        if name not in features:
            near = difflib.get_close_matches(name, features, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(features))}"
            raise UserError(f"{schema_file} has no feature {name!r}, by which the evaluation slices; {hint}")
    if label.weight and SERVING not in features[label.weight].not_in_environment:
        raise UserError(
            f"{schema_file} asks requests for {label.weight!r}, the weight, which none has; add not_in_environment: "
            f'"{SERVING}" to this feature, as the label has it'
        )
    folder = target.files / "_schemas" / hashlib.sha256(content).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.pbtxt").write_bytes(content)
    return target.address(folder)
