"""Tasks that are no components of TFX: one module of ours in the image, given the config as text.

Its file is not in the image, and may import what is not there.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pydantic import TypeAdapter

from pipeline.settings.config import PipelineConfig
from pipeline.settings.repository import in_repository
from pipeline.settings.target import Vertex


def container_of(vertex: Vertex, task: str, module: str, arguments: list[str]) -> dict[str, Any]:
    """The container of such a task."""
    machine = vertex.machines.task(task)
    return {
        "image": vertex.image,
        "command": ["python", "-m", module],
        "args": arguments,
        "resources": {"cpuLimit": machine.cpu, "memoryLimit": machine.memory_gib},
    }


def config_to_json(config: PipelineConfig) -> str:
    """The config as JSON, in which nothing depends on where the repository lies here."""
    shown = dataclasses.replace(
        config,
        module=in_repository(config.module),
        schema=config.schema and in_repository(config.schema),
        data=dataclasses.replace(config.data, prepare=None),
    )
    return json.dumps(dataclasses.asdict(shown))


def config_from_json(text: str) -> tuple[PipelineConfig, dict[str, Any]]:
    """The config, and all its settings by name."""
    settings = json.loads(text)
    return TypeAdapter(PipelineConfig).validate_python(settings), settings
