"""Bring the schema that a person has reviewed into the graph, as an artifact."""

import hashlib
from pathlib import Path

from pipeline.errors import UserError
from pipeline.settings.target import Target
from pipeline.validation.schema_text import parse


def stage_schema(schema_file: Path, label: str, target: Target) -> str:
    """Copy the schema to a folder named by its content; TFX's cache compares only the address of an import.

    Returns:
        The address of the folder.

    Raises:
        UserError: the file is not a schema, or lacks the label.
    """
    content = schema_file.read_bytes()
    if label not in {feature.name for feature in parse(schema_file).feature}:
        raise UserError(
            f"{schema_file} has no feature {label!r}, the label; add it or name another label in the config"
        )
    folder = target.files / "_schemas" / hashlib.sha256(content).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.pbtxt").write_bytes(content)
    return target.address(folder)
