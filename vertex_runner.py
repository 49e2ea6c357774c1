"""Runs the pipeline on Vertex AI: python vertex_runner.py --help."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from pipeline import packaging
from pipeline.config import PipelineConfig, load_config
from pipeline.data import check_data, prepare
from pipeline.errors import UserError
from pipeline.reading.files import is_remote
from pipeline.target import Target, Vertex
from pipeline.vertex import settings

ROOT = Path(__file__).resolve().parent
SUCCEEDED, FAILED, WRONG_SETTINGS, NOT_BLESSED, INTERRUPTED = 0, 1, 2, 3, 130


def main() -> int:
    """Does what the command line asks for; returns the exit code."""
    arguments = parse_arguments()
    # TFX hands the rest of the command line to its executors as options of Beam.
    del sys.argv[1:]
    try:
        vertex = settings.read(arguments, os.environ, packaging.image_name())
    except UserError as error:
        for problem in str(error).splitlines():
            print(f"vertex_runner.py: {problem}", file=sys.stderr)
        print("To try without Google Cloud, run: python local_runner.py", file=sys.stderr)
        return WRONG_SETTINGS
    try:
        config = configure(arguments)
        return compile_to(Path(arguments.compile).absolute(), config, vertex)
    except UserError as error:
        print(f"vertex_runner.py: {error}", file=sys.stderr)
        return FAILED


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run the pipeline on Vertex AI.")
    parser.add_argument("--config", default=str(ROOT / "configs/flights.py"), help="pipeline config (%(default)s)")
    parser.add_argument("--data", help="file, folder or address of the data, in place of the config's")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--compile", metavar="OUT", help="only write the job and what it needs to a folder")
    settings.add_arguments(parser)
    return parser.parse_args()


def configure(arguments: argparse.Namespace) -> PipelineConfig:
    """The config with what the command line says instead; checks what can be checked without TensorFlow."""
    config = load_config(Path(arguments.config)).with_paths_from(ROOT)
    if arguments.data:
        path = arguments.data if is_remote(arguments.data) else str(Path(arguments.data).absolute())
        config = replace(config, data=replace(config.data, path=path, prepare=None))
    packaging.read_module(Path(config.module))
    prepare(config)
    if not is_remote(config.data.path):
        check_data(config)
    return config


def compile_to(out: Path, config: PipelineConfig, vertex: Vertex) -> int:
    """Writes the job; nothing is asked of Google Cloud."""
    from pipeline.vertex.compile import compile

    shutil.rmtree(out / "upload", ignore_errors=True)
    job = compile(config, Target.on_vertex(vertex, config.name, out / "upload"), out)
    print(f"wrote {job}")
    return SUCCEEDED


if __name__ == "__main__":
    sys.exit(main())
