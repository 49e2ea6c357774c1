"""Tasks that are no components of TFX: one module of the image, with the config as text.

The config's file is not in the image, and may import what is not there.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline.settings.checks import to_json
from pipeline.settings.config import PipelineConfig
from pipeline.settings.repository import in_repository
from pipeline.settings.target import Vertex


def add_task(
    spec: dict[str, Any],
    name: str,
    module: str,
    arguments: list[str],
    vertex: Vertex,
    outputs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Add a task to a pipeline spec and return it.

    Args:
        spec: ``pipelineSpec`` of a PipelineJob.
        name: Of the task, which has a row of the table of machines under it.
        module: Module of ours that runs.
        arguments: Its command line.
        vertex: With the image and the machines.
        outputs: Kind of artifact by output, such as "system.HTML".
    """
    machine = vertex.machines.task(name)
    container = {
        "image": vertex.image,
        "command": ["python", "-m", module],
        "args": arguments,
        "resources": {"cpuLimit": machine.cpu, "memoryLimit": machine.memory_gib},
    }
    spec["deploymentSpec"]["executors"][f"{name}_executor"] = {"container": container}
    spec["components"][name] = {"executorLabel": f"{name}_executor"}
    if outputs:
        kinds = {
            key: {"artifactType": {"schemaTitle": kind, "schemaVersion": "0.0.1"}} for key, kind in outputs.items()
        }
        spec["components"][name]["outputDefinitions"] = {"artifacts": kinds}
    task: dict[str, Any] = {"taskInfo": {"name": name}, "componentRef": {"name": name}}
    spec["root"]["dag"]["tasks"][name] = task
    return task


def config_to_json(config: PipelineConfig) -> str:
    """Return the config as JSON, in which nothing depends on where the repository lies here."""
    portable = dataclasses.replace(
        config,
        module=in_repository(config.module),
        schema=config.schema and in_repository(config.schema),
        data=dataclasses.replace(config.data, prepare=None),
    )
    return to_json(portable)
