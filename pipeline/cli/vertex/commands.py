"""Run a command of vertex_runner.py."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import command_line
from pipeline.cli.printing import say
from pipeline.cli.terminal import Screen, redirect_output
from pipeline.cli.vertex.arguments import COMMANDS, GRAPH
from pipeline.data.location import check_data, prepare
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Vertex

if TYPE_CHECKING:
    from pipeline.vertex.cloud import Cloud


@dataclass(frozen=True)
class Session:
    """One call of vertex_runner.py: what every command works with."""

    arguments: argparse.Namespace
    config: PipelineConfig
    vertex: Vertex
    output: Path  # of the pipeline's runs on this machine
    folder: Path  # for what the command writes, and its log
    run_id: str
    screen: Screen

    def connect(self) -> Cloud:
        """Return the connection to the project and region; without credentials, raise a UserError."""
        from pipeline.vertex.cloud import Cloud

        return Cloud.connect(self.vertex.project, self.vertex.region)


def read_config(arguments: argparse.Namespace, root: Path) -> PipelineConfig:
    """Read the config; check its data and module file, without TensorFlow, if the command compiles the graph."""
    if arguments.command not in GRAPH:
        return command_line.chosen_config(arguments, root)
    config = command_line.configured(arguments, root)
    command_line.check_memory()
    command_line.check_files(config)
    prepare(config)
    if not is_remote(config.data.path):
        for note in check_data(config):
            say(f"note: {note}", error=True)
    return config


def run(arguments: argparse.Namespace, config: PipelineConfig, vertex: Vertex, root: Path) -> int:
    """Run the command with its output in a log file and its own lines on the terminal."""
    vertex.machines.check_strategy(config.training.strategy)
    run_id = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    output = command_line.output_folder(arguments, root, config)
    folder = output / "vertex" / run_id
    log = folder / "log"
    if arguments.command == "compile":
        folder = Path(arguments.out).absolute()
        if folder.is_file():
            raise UserError(f"OUT must be a folder, and {folder} is a file")
        log = folder / "compile.log"
    elif arguments.command == "rehearse":
        folder = output / "rehearsal"
        log = folder / "logs" / f"{run_id}.log"
    with redirect_output(log) as screen:
        # With the log in place: TensorFlow and TFX take seconds and print a lot.
        module = importlib.import_module(f"pipeline.cli.vertex.{COMMANDS[arguments.command]}")
        command = getattr(module, arguments.command.replace("-", "_"))
        return command(Session(arguments, config, vertex, output, folder, run_id, screen))
