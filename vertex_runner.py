"""Run the pipeline on Vertex AI: python vertex_runner.py --help.

A runner makes two values of the command line and the environment: WHAT runs (a PipelineConfig) and WHERE (a Vertex with
its machines and its endpoint). The command, ``run`` if none is named, does its work with these two.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # during the imports below there is nothing to say or to keep

import argparse
import importlib
import os
import sys
from datetime import datetime
from pathlib import Path

from pipeline.cli import command_line, interruption, terminal
from pipeline.cli.printing import say
from pipeline.cli.vertex import settings
from pipeline.cli.vertex.arguments import COMMANDS, parse_arguments
from pipeline.cli.vertex.session import Session
from pipeline.data.location import check_data, prepare
from pipeline.errors import UserError, WrongArgument
from pipeline.filesystem import is_remote
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Vertex

ROOT = Path(__file__).resolve().parent


def main() -> int:
    """Run the command that the command line names; return its exit code."""
    interruption.catch_ctrl_c()
    arguments = parse_arguments(sys.argv[1:], os.environ)
    # TFX hands the rest of the command line to its executors as options of Beam.
    del sys.argv[1:]
    try:
        vertex = settings.read(arguments, ROOT)
    except UserError as error:
        for problem in str(error).splitlines():
            say(f"vertex_runner.py: {problem}", error=True)
        if " is missing: " in str(error):
            say("To try without Google Cloud, run: python vertex_runner.py rehearse", error=True)
        return command_line.WRONG_ARGUMENTS
    try:
        config = read_config(arguments)
        vertex.machines.check_strategy(config.training.strategy)
        return run_command(arguments, config, vertex)
    except UserError as error:
        say(f"vertex_runner.py: {error}", error=True)
        return command_line.WRONG_ARGUMENTS if isinstance(error, WrongArgument) else command_line.FAILED
    except KeyboardInterrupt:
        goes_on = (
            "finished tasks are kept, run again to go on"
            if arguments.command == "rehearse"
            else "a job that was submitted goes on, python vertex_runner.py watch JOB shows it again"
        )
        say(f"vertex_runner.py: interrupted; {goes_on}", error=True)
        return command_line.INTERRUPTED


def read_config(arguments: argparse.Namespace) -> PipelineConfig:
    """Read the config; check its data and module file, without TensorFlow, if the command compiles the graph."""
    if not COMMANDS[arguments.command].graph:
        return command_line.chosen_config(arguments, ROOT)
    config = command_line.configured(arguments, ROOT)
    command_line.check_memory()
    command_line.check_files(config)
    prepare(config)
    if not is_remote(config.data.path):
        check_data(config)
    return config


def run_command(arguments: argparse.Namespace, config: PipelineConfig, vertex: Vertex) -> int:
    """Run the command with its output in a log file and its own lines on the terminal."""
    run_id = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    output = command_line.output_folder(arguments, ROOT, config)
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
    with terminal.redirect_output(log) as screen:
        # Imported with the log in place: TensorFlow and TFX take seconds and print a lot.
        module = importlib.import_module(f"pipeline.cli.vertex.{COMMANDS[arguments.command].module}")
        command = getattr(module, arguments.command.replace("-", "_"))
        return command(Session(arguments, config, vertex, output, folder, run_id, screen))


if __name__ == "__main__":
    sys.exit(command_line.until_enough_read(main))
