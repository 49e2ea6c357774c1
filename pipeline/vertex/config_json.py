"""A config as text, for tasks that are no components: its file is not in the image and may import what is not there."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pydantic import TypeAdapter

from pipeline.config import PipelineConfig
from pipeline.packaging import in_repository


def to_json(config: PipelineConfig) -> str:
    """The config as JSON, in which nothing depends on where the repository lies here."""
    shown = dataclasses.replace(
        config,
        module=in_repository(config.module),
        schema=config.schema and in_repository(config.schema),
        data=dataclasses.replace(config.data, prepare=None),
    )
    return json.dumps(dataclasses.asdict(shown))


def from_json(text: str) -> tuple[PipelineConfig, dict[str, Any]]:
    """The config, and all its settings by name."""
    settings = json.loads(text)
    return TypeAdapter(PipelineConfig).validate_python(settings), settings
