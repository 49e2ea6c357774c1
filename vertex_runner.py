"""Runs the pipeline on Vertex AI: python vertex_runner.py --help."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import command_line, machine_settings, terminal, vertex_flags
from pipeline.data.files import is_remote
from pipeline.data.location import check_data, prepare
from pipeline.errors import UserError
from pipeline.evaluation.verdict import FAILED, NOT_BLESSED
from pipeline.packaging import fingerprints
from pipeline.settings.config import PipelineConfig
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Machines
from pipeline.settings.target import Target, Vertex, only_run_in
from pipeline.vertex import settings

if TYPE_CHECKING:
    from pipeline.vertex.cloud import Cloud

ROOT = Path(__file__).resolve().parent
SUCCEEDED, WRONG_SETTINGS, LOST_CONTACT, INTERRUPTED = 0, 2, 4, 130


def main() -> int:
    """Does what the command line asks for; returns the exit code."""
    arguments = parse_arguments()
    # TFX hands the rest of the command line to its executors as options of Beam.
    del sys.argv[1:]
    try:
        vertex, machines, endpoint = read_settings(arguments)
    except UserError as error:
        for problem in str(error).splitlines():
            print(f"vertex_runner.py: {problem}", file=sys.stderr)
        print("To try without Google Cloud, run: python vertex_runner.py --rehearse", file=sys.stderr)
        return WRONG_SETTINGS
    try:
        config = configure(arguments)
        machines.check_strategy(config.training.strategy)
        output = Path(arguments.output).absolute() if arguments.output else ROOT / "output" / config.name
        if vertex is None:
            return rehearse(config, machines, endpoint, output)
        if arguments.compile:
            return compile_to(Path(arguments.compile).absolute(), config, vertex)
        return run_there(arguments, config, vertex, output)
    except UserError as error:
        print(f"vertex_runner.py: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        what = (
            "finished tasks are kept, run again to go on"
            if arguments.rehearse
            else "a job that was submitted goes on, --watch JOB shows it again"
        )
        print(f"vertex_runner.py: interrupted; {what}", file=sys.stderr)
        return INTERRUPTED


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Run the pipeline on Vertex AI: check, compile, submit, and wait for the job.",
        epilog="Exit codes: 0 pushed (or submitted, checked, compiled, done; of a rehearsal: every task ran), 1 failed "
        "or cancelled, 2 missing or wrong settings, 3 the model was not blessed, 4 Vertex AI no longer answers, 130 "
        "interrupted.",
    )
    command_line.add_arguments(parser)
    parser.add_argument(
        "--output", help="folder of local runs; a rehearsal writes below rehearsal/ in it (output/<name>)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--compile", metavar="OUT", help="only write the job and what it needs to a folder")
    what.add_argument(
        "--rehearse",
        action="store_true",
        help="run the compiled job on this machine, task by task, without Google Cloud",
    )
    what.add_argument("--check", action="store_true", help="only look whether all is there that a run needs")
    what.add_argument("--watch", metavar="JOB", help="only wait for a job that was submitted before")
    what.add_argument("--no-wait", action="store_true", help="submit and return at once")
    vertex_flags.add_arguments(what, parser)
    parser.add_argument("--poll", type=float, default=10.0, help="seconds between two looks at the job (%(default)g)")
    parser.add_argument(
        "--patience", type=float, default=900.0, help="seconds without an answer to give up after (%(default)g)"
    )
    machine_settings.add_arguments(parser, ROOT / "configs/machines.py")
    settings.add_arguments(parser)
    return vertex_flags.check(parser, parser.parse_args())


def read_settings(arguments: argparse.Namespace) -> tuple[Vertex | None, Machines, Endpoint | None]:
    """Where to run, None for a rehearsal; the table of machines; and where models are deployed to, if anywhere.

    Raises:
        UserError: a line for everything that is missing or wrong.
    """
    vertex, machines, endpoint, problems = None, Machines(), None, []
    try:
        machines = machine_settings.read(arguments, os.environ, ROOT / "configs/machines.py")
        endpoint = machine_settings.read_endpoint(arguments, os.environ)
    except UserError as error:
        problems.append(str(error))
    if arguments.rollback and not problems and endpoint is None:
        problems.append(f"--endpoint (or {machine_settings.ENDPOINT_VARIABLE}) is missing: the file with its settings")
    if not arguments.rehearse:
        if arguments.watch and arguments.watch.startswith("projects/"):
            # The job's full name says where it is.
            _, arguments.project, _, arguments.region, *_ = arguments.watch.split("/")
        try:
            vertex = replace(
                settings.read(
                    arguments,
                    os.environ,
                    fingerprints.image_name("gpu" if machines.gpus else "cpu"),
                    vertex_flags.needed(arguments),
                ),
                machines=machines,
                endpoint=endpoint,
            )
        except UserError as error:
            problems.insert(0, str(error))
    if problems:
        raise UserError("\n".join(problems))
    return vertex, machines, endpoint


def configure(arguments: argparse.Namespace) -> PipelineConfig:
    """The config with what the command line says instead; checks what can be checked without TensorFlow."""
    config = command_line.configured(arguments, ROOT)
    if arguments.watch or vertex_flags.without_run(arguments):
        return config
    if arguments.schedule:
        vertex_flags.check_data(config)
    command_line.check_files(config)
    prepare(config)
    if not is_remote(config.data.path):
        check_data(config)
    return config


def compile_to(out: Path, config: PipelineConfig, vertex: Vertex) -> int:
    """Writes the job; nothing is asked of Google Cloud."""
    with terminal.redirect_output(out / "compile.log") as screen:
        job = compile_here(out, config, vertex)
        uploads = json.loads((job.parent / "uploads.json").read_text(encoding="utf-8"))
        screen.note(f"wrote {job}\nand the {len(uploads)} files to upload before it runs are in uploads.json beside it")
    return SUCCEEDED


def compile_here(out: Path, config: PipelineConfig, vertex: Vertex) -> Path:
    """Compiles into a folder, anew; returns the job's file."""
    # Imported here, with the log in place: TensorFlow and TFX take seconds and print a lot.
    from pipeline.vertex.pipelines.compile import compile

    shutil.rmtree(out / "upload", ignore_errors=True)
    try:
        return compile(config, Target.on_vertex(vertex, config.name, out / "upload"), out)
    except UserError:
        raise
    except Exception as error:
        logging.getLogger("pipeline").exception("compiling failed")
        raise UserError(f"compiling failed: {type(error).__name__}: {error}; the whole of it is in the log") from error


def run_there(arguments: argparse.Namespace, config: PipelineConfig, vertex: Vertex, output: Path) -> int:
    """Checks, submits and waits, or what the command line wants of it."""
    run_id = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    folder = output / "vertex" / run_id
    with terminal.redirect_output(folder / "log") as screen:
        from pipeline.cli import vertex_commands
        from pipeline.vertex import cloud as google_cloud
        from pipeline.vertex.pipelines import preflight

        def connect() -> Cloud:
            return google_cloud.Cloud.connect(vertex.project, vertex.region, settings.endpoints(os.environ))

        if arguments.watch:
            return wait_for(arguments.watch, connect(), arguments, screen)
        if vertex_flags.without_run(arguments):
            vertex_commands.run(arguments, config, vertex, connect(), folder, screen.note)
            return SUCCEEDED
        screen.start(config, f"{run_id}, on Vertex AI in {vertex.region}, project {vertex.project}")
        findings = preflight.check(config, vertex, connect)
        for finding in findings:
            screen.finding(finding.what, finding.state, finding.text, finding.remedy)
        screen.note("")
        wrong = sum(finding.state == "wrong" for finding in findings)
        if wrong:
            screen.note(f"{wrong} of these must be put right first. Nothing was submitted.")
            return FAILED
        if arguments.check:
            return SUCCEEDED

        from pipeline.vertex.pipelines.submit import console_url, submit

        compile_here(folder, config, vertex)
        cloud = connect()
        if arguments.schedule:
            vertex_commands.run(arguments, config, vertex, cloud, folder, screen.note)
            return SUCCEEDED
        submitted = submit(folder, vertex, cloud, screen.note)
        screen.note(
            f"{'the same job runs already, nothing was submitted' if submitted.already else 'submitted'}\n"
            f"  job   {submitted.name}\n  page  {console_url(submitted.name)}\n"
        )
        return SUCCEEDED if arguments.no_wait else wait_for(submitted.name, cloud, arguments, screen)


def wait_for(job: str, cloud: Cloud, arguments: argparse.Namespace, screen: terminal.Screen) -> int:
    """Shows a job until it has ended."""
    from pipeline.vertex.pipelines.watch import LostContact, full_name, report, watch

    name = full_name(job, cloud)
    try:
        ended = watch(
            name,
            cloud,
            lambda line: screen.line(line.name, line.state, line.seconds, line.detail),
            screen.note,
            arguments.poll,
            arguments.patience,
        )
    except LostContact as lost:
        screen.note(f"\n{lost}")
        return LOST_CONTACT
    if ended.page:
        screen.note(f"\nreport {ended.page}")
    if ended.state != "succeeded":
        screen.note(f"\n{report(name, ended)}")
        return FAILED
    if ended.pushed_to is None:
        screen.note("\nnot pushed: the model was not blessed; the model pushed before stays")
        return NOT_BLESSED
    screen.note(f"\npushed to {ended.pushed_to}")
    return SUCCEEDED


def rehearse(config: PipelineConfig, machines: Machines, endpoint: Endpoint | None, output: Path) -> int:
    """Compiles for Vertex AI with folders here, runs the job task by task, and shows how it went."""
    if config.data.query_source or is_remote(config.data.path):
        raise UserError(
            f"the data is at {config.data.path}, and a rehearsal runs without Google Cloud; give a copy, or part of "
            "it, with --data"
        )
    folder = output / "rehearsal"
    run_id = datetime.now().strftime("%Y%m%d%H%M%S")
    with only_run_in(folder), terminal.redirect_output(folder / "logs" / f"{run_id}.log") as screen:
        screen.start(config, f"{run_id}, a rehearsal of Vertex AI")
        # Imported here, with the log in place: TensorFlow and TFX take seconds and print a lot.
        from pipeline.runs.results import read_results
        from pipeline.runs.run_graph import StepFailed
        from pipeline.vertex.pipelines.compile import compile
        from pipeline.vertex.rehearsal import comparison, task_runner

        try:
            target = task_runner.target_for(folder, config.name, machines, endpoint)
            job = json.loads(compile(config, target, folder).read_text(encoding="utf-8"))
            steps = task_runner.run(job, run_id, folder, Path(config.module), screen.step_starts, screen.step_ends)
        except StepFailed as failure:
            screen.failure(failure.step, failure.seconds, failure.__cause__, config)
            return FAILED
        except UserError:
            raise
        except Exception as error:
            screen.failure("Compiling", 0.0, error, config)
            return FAILED
        results = read_results(steps)
        screen.results(results, config)
        page = task_runner.report_of(folder, run_id)
        screen.note(f"report {page}" if page else f"no report; the log is {folder / 'logs' / run_id / 'Report.log'}")
        differences = list(comparison.compared(steps, output / "artifacts"))
        if differences:
            screen.note("\n".join(["", "beside the local run:", *(f"  {line}" for line in differences)]))
        screen.note(
            "\n".join(["", "not rehearsed:", *(f"  {line}" for line in task_runner.not_rehearsed(machines, endpoint))])
        )
        return SUCCEEDED  # also when the model was not blessed: every task ran as it would there


if __name__ == "__main__":
    sys.exit(main())
