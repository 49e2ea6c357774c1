"""Run the pipeline on this machine: python local_runner.py --help.

A runner makes two values of its arguments: WHAT runs (a PipelineConfig) and WHERE (a Target). It builds the graph of
the two, runs it step by step, and shows and keeps the outcome.
"""

from pipeline.cli import startup

if __name__ == "__main__":
    startup.end_quietly()
    startup.restart_with_allocation()  # before anything is imported that takes time

import sys
from pathlib import Path

from pipeline.cli import command_line, local

ROOT = Path(__file__).resolve().parent


def main() -> int:
    """Run the pipeline as the command line says; return the exit code."""
    startup.catch_signals()
    arguments = local.parse_arguments()
    config = command_line.configured(arguments, ROOT)
    output = command_line.output_folder(arguments, ROOT, config)
    target = command_line.local_target(arguments, output, config.name)
    return local.run(config, target, output, arguments)


if __name__ == "__main__":
    sys.exit(startup.run("local_runner.py", main, "; finished steps are kept, run again to go on"))
