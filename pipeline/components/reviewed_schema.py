"""Bring the schema that a person has reviewed into the graph, as an artifact."""

import difflib
import hashlib
from collections.abc import Collection
from pathlib import Path

from pipeline.errors import UserError
from pipeline.settings.config import Label
from pipeline.settings.names import SERVING
from pipeline.settings.target import Target
from pipeline.validation.schema_text import parse


def stage_schema(schema_file: Path, label: Label, sliced_by: Collection[str], target: Target) -> str:
    """Copy the schema to a folder named by its content; TFX's cache compares only the address of an import.

    Args:
        schema_file: The schema.
        label: It must have, and its weight.
        sliced_by: Columns whose values get metrics of their own, which it must have, too.
        target: Where the copy goes.

    Returns:
        The address of the folder.

    Raises:
        UserError: the file is not a schema, or lacks one of these columns, or asks requests for the weight.
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
