"""Outputs of Transform in a folder of a test."""

from pathlib import Path

from tfx.types import standard_artifacts

from pipeline.components.base import Artifacts

KINDS = {
    "transform_graph": standard_artifacts.TransformGraph,
    "transformed_examples": standard_artifacts.Examples,
}


def outputs(folder: Path) -> Artifacts:
    """Return artifacts that a Transform writes below a folder."""
    made = {}
    for name, kind in KINDS.items():
        artifact = kind()
        artifact.uri = str(folder / name)
        made[name] = [artifact]
    return made
