"""Bring the schema that a person has reviewed into the graph, as an artifact."""

import hashlib
from pathlib import Path

from pipeline.errors import UserError
from pipeline.settings.config import Label
from pipeline.settings.names import SERVING
from pipeline.settings.target import Target
from pipeline.validation.schema_text import parse


def stage_schema(schema_file: Path, label: Label, target: Target) -> str:
    """Copy the schema to a folder named by its content; TFX's cache compares only the address of an import.

    Returns:
        The address of the folder.

    Raises:
        UserError: the file is not a schema, or lacks the label or its weight, or asks requests for the weight.
    """
    content = schema_file.read_bytes()
    features = {feature.name: feature for feature in parse(schema_file).feature}
    for name, what in ((label.name, "label"), (label.weight, "weight")):
        if name and name not in features:
            raise UserError(
                f"{schema_file} has no feature {name!r}, the {what}; add it or name another {what} in the config"
            )
    if label.weight and SERVING not in features[label.weight].not_in_environment:
        raise UserError(
            f"{schema_file} asks requests for {label.weight!r}, the weight, which none has; add not_in_environment: "
            f'"{SERVING}" to this feature, as the label has it'
        )
    folder = target.files / "_schemas" / hashlib.sha256(content).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.pbtxt").write_bytes(content)
    return target.address(folder)
