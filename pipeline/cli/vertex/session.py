"""Make the values that every command works with of the command line's arguments."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.terminal import Screen
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Vertex

if TYPE_CHECKING:
    from pipeline.vertex.cloud import Cloud


@dataclass(frozen=True)
class Session:
    """One call of vertex_runner.py.

    Attributes:
        arguments: Parsed by ``pipeline.cli.vertex.arguments``.
        config: WHAT runs.
        vertex: WHERE it runs.
        output: Folder of the pipeline's runs on this machine.
        folder: What the command writes, and the log.
        run_id: Name of this call, from the time.
        screen: The terminal.
    """

    arguments: argparse.Namespace
    config: PipelineConfig
    vertex: Vertex
    output: Path
    folder: Path
    run_id: str
    screen: Screen

    def connect(self) -> Cloud:
        """Return the connection to the project and region.

        Raises:
            UserError: there are no credentials.
        """
        from pipeline.vertex.cloud import Cloud

        return Cloud.connect(self.vertex.project, self.vertex.region)
