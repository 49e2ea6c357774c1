"""Runs the pipeline on Vertex AI: python vertex_runner.py --help."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pipeline import packaging, terminal
from pipeline.config import PipelineConfig, load_config
from pipeline.data import check_data, prepare
from pipeline.errors import UserError
from pipeline.machines import Machines
from pipeline.reading.files import is_remote
from pipeline.target import Target, Vertex, only_run_in
from pipeline.vertex import machine_settings, settings

ROOT = Path(__file__).resolve().parent
SUCCEEDED, FAILED, WRONG_SETTINGS, NOT_BLESSED, INTERRUPTED = 0, 1, 2, 3, 130


def main() -> int:
    """Does what the command line asks for; returns the exit code."""
    arguments = parse_arguments()
    # TFX hands the rest of the command line to its executors as options of Beam.
    del sys.argv[1:]
    try:
        machines = machine_settings.read(arguments, os.environ, ROOT / "configs/machines.py")
        vertex = None
        if not arguments.rehearse:
            vertex = replace(settings.read(arguments, os.environ, packaging.image_name()), machines=machines)
    except UserError as error:
        for problem in str(error).splitlines():
            print(f"vertex_runner.py: {problem}", file=sys.stderr)
        print("To try without Google Cloud, run: python vertex_runner.py --rehearse", file=sys.stderr)
        return WRONG_SETTINGS
    try:
        config = configure(arguments)
        if vertex is None:
            output = Path(arguments.output).absolute() if arguments.output else ROOT / "output" / config.name
            return rehearse(config, machines, output)
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
    what.add_argument(
        "--rehearse",
        action="store_true",
        help="run the compiled job on this machine, task by task, without Google Cloud",
    )
    parser.add_argument(
        "--output", help="folder of local runs; a rehearsal writes below rehearsal/ in it (output/<name>)"
    )
    machine_settings.add_arguments(parser, ROOT / "configs/machines.py")
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


def rehearse(config: PipelineConfig, machines: Machines, output: Path) -> int:
    """Compiles for Vertex AI with folders here, runs the job task by task, and shows how it went."""
    folder = output / "rehearsal"
    run_id = datetime.now().strftime("%Y%m%d%H%M%S")
    with only_run_in(folder), terminal.only_ours(folder / "logs" / f"{run_id}.log") as screen:
        screen.start(config, f"{run_id}, a rehearsal of Vertex AI")
        # Imported here, with the log in place: TensorFlow and TFX take seconds and print a lot.
        from pipeline.local import StepFailed
        from pipeline.results import read_results
        from pipeline.vertex import comparison, rehearsal
        from pipeline.vertex.compile import compile

        target = rehearsal.target_for(folder, config.name, machines)
        job = json.loads(compile(config, target, folder).read_text(encoding="utf-8"))
        try:
            steps = rehearsal.run(job, run_id, folder, Path(config.module), screen.step_starts, screen.step_ends)
        except StepFailed as failure:
            screen.failure(failure.step, failure.seconds, failure.__cause__, config)
            return FAILED
        results = read_results(steps)
        screen.results(results, config)
        differences = list(comparison.compared(steps, output / "artifacts"))
        if differences:
            screen.note("\n".join(["", "beside the local run:", *(f"  {line}" for line in differences)]))
        screen.note("\n".join(["", "not rehearsed:", *(f"  {line}" for line in rehearsal.not_rehearsed(machines))]))
        return SUCCEEDED if results.pushed_to else NOT_BLESSED


if __name__ == "__main__":
    sys.exit(main())
