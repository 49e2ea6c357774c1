"""Run the pipeline on Vertex AI: python vertex_runner.py --help.

A runner makes two values of the command line and the environment: WHAT runs (a PipelineConfig) and WHERE (a Vertex with
its machines and its endpoint). The command, ``run`` if none is named, does its work with these two.
"""

from pipeline.cli import startup

if __name__ == "__main__":
    startup.end_quietly()

import os
import sys
from pathlib import Path

from pipeline.cli.vertex import commands, settings
from pipeline.cli.vertex.arguments import parse_arguments

ROOT = Path(__file__).resolve().parent
AFTER_INTERRUPTION = (
    "; finished tasks of a rehearsal are kept, and a job that was submitted goes on: python vertex_runner.py watch JOB"
)


def main() -> int:
    """Run the command that the command line names; return its exit code."""
    startup.catch_ctrl_c()
    arguments = parse_arguments(sys.argv[1:], os.environ)
    del sys.argv[1:]  # TFX would hand these to its executors as options of Beam
    vertex = settings.read(arguments, ROOT)
    config = commands.read_config(arguments, ROOT)
    return commands.run(arguments, config, vertex, ROOT)


if __name__ == "__main__":
    sys.exit(startup.run("vertex_runner.py", main, AFTER_INTERRUPTION))
