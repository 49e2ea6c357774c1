"""Command line of local_runner.py: a run on all rows, a run on a sample, or a backtest."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import command_line
from pipeline.cli.backtest import FOLDER, backtest
from pipeline.cli.local_run import LocalRun, load_libraries
from pipeline.cli.printing import say
from pipeline.cli.scratch import scratch_folder
from pipeline.cli.terminal import Screen, redirect_output
from pipeline.components.tensorflow_process import started_ahead
from pipeline.data.location import check_data, prepare
from pipeline.runs import webhook
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import KEEP_VERSIONS, Target, only_run_in

if TYPE_CHECKING:
    from pipeline.data.sample import Sample

# Folder of the runs on a sample, in the output folder of the runs on all rows.
SAMPLE = "sample"
# Name of the step that reads all rows, to distinguish it from the step that takes the sample.
ALL_ROWS = "(all rows)"
# Two trials show that a search works. Values found on a sample are not useful, so more trials only take time.
TRIALS = 2
# What steps and the report would each load besides TFX; TFX loads setuptools itself when it makes an artifact.
FOR_STEPS = ("setuptools", "tensorboard.summary.v2", "pipeline.report.page")


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line, and take them from ``sys.argv``.

    TFX would hand what stays there to its executors as options of Beam.
    """
    parser = command_line.make_parser(
        "local_runner.py",
        "Run the pipeline on this machine: train, tune, evaluate and push a model.",
        {0: "pushed", 3: "the model was not blessed"},
    )
    command_line.add_arguments(parser)
    parser.add_argument(
        "--keep-versions",
        type=int,
        default=KEEP_VERSIONS,
        help="pushed versions that stay, the newest ones (%(default)s)",
    )
    command_line.add_engine_arguments(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--sample",
        type=command_line.positive,
        metavar="ROWS",
        help=f"run all steps on a sample of this size, in the folder {SAMPLE}/ inside the output folder",
    )
    instead.add_argument(
        "--backtest",
        type=command_line.positive,
        metavar="WINDOWS",
        help="push nothing; in each window, train on the spans up to one and test on the next span",
    )
    parser.add_argument("--verbose", action="store_true", help="show the whole log, of TFX and TensorFlow too")
    arguments = parser.parse_args()
    arguments.command = [Path(sys.executable).name, *sys.argv]
    del sys.argv[1:]
    return arguments


def run(config: PipelineConfig, target: Target, output: Path, arguments: argparse.Namespace) -> int:
    """Run the pipeline, on a sample or as a backtest if the arguments say so; return the exit code."""
    command_line.check_memory()
    command_line.check_files(config)
    if arguments.backtest:
        output = output / FOLDER
        with only_run_in(output):
            prepare(config)
            target = command_line.local_target(arguments, output, config.name)
            return backtest(config, target, output, arguments.backtest, arguments.verbose)
    take = None
    this = LocalRun(config, output, arguments.command, webhook.read(os.environ))
    if arguments.sample:
        take = functools.partial(take_sample, config, target, arguments.sample)
        of_sample = replace(config, tuning=replace(config.tuning, trials=min(TRIALS, config.tuning.trials)))
        this = LocalRun(of_sample, output / SAMPLE, arguments.command, webhook=None)
        target = command_line.local_target(arguments, this.output, config.name)
    with only_run_in(output), this.announcing_errors():
        prepare(config)
        for note in check_data(config):
            say(f"note: {note}", error=True)
        return _run(this, target, arguments.verbose, take)


def _run(run: LocalRun, target: Target, verbose: bool, take: Callable[[Screen], Sample] | None = None) -> int:
    with scratch_folder(), redirect_output(run.log, verbose) as screen, started_ahead(run.expects_work()):
        screen.start(run.config, run.name)
        screen.busy("importing TensorFlow and TFX")
        load_libraries()  # with the log in place, for they print a lot
        from pipeline.fast.engine import MODULES, usable
        from pipeline.graph import create_pipeline
        from pipeline.processes import processes
        from pipeline.runs import engine
        from pipeline.runs.run_graph import Schedule, one_after_the_other

        screen.close()  # a process that has threads cannot be forked
        is_fast = usable(target.engine)
        with processes(*FOR_STEPS, *(MODULES if is_fast else ())) as of_steps:  # before anything is computed here
            engine.check(target)
            schedule: Schedule = one_after_the_other
            if of_steps and is_fast:
                from pipeline.fast.side_by_side import side_by_side

                schedule = side_by_side(of_steps)
            run.execute(lambda: create_pipeline(run.config, target, take(screen) if take else None), screen, schedule)
            run.announce(screen.note)
            run.keep_record(screen.note)
            screen.report(functools.partial(run.write_report, of_steps), run.name)
    return run.exit_code


def take_sample(config: PipelineConfig, whole: Target, rows: int, screen: Screen) -> Sample:
    """Read all rows on the target of the runs on all rows, unless an earlier run has read them; show the sample."""
    from pipeline.data.sample import Sample, count, shares
    from pipeline.graph import create_pipeline
    from pipeline.runs.run_graph import run_graph
    from pipeline.runs.store import SAMPLED

    run_id, first = f"{SAMPLED}{datetime.now().isoformat()}", "ExampleGen"
    steps = run_graph(
        create_pipeline(config, whole),
        run_id,
        lambda _: screen.step_starts(ALL_ROWS),
        lambda step: screen.step_ends(replace(step, name=ALL_ROWS)),
        last=first,
    )
    step = steps[first]
    sample = Sample(step.outputs["examples"][0].uri, rows, made=str(step.made))
    there = count(sample.examples)
    taken = shares(there, rows)
    by_split = ", ".join(f"{split} {number:,}" for split, number in taken.items())
    screen.note(f"  a sample of {sum(taken.values()):,} of {sum(there.values()):,} rows: {by_split}")
    screen.note(f"  a search has at most {TRIALS} trials")
    return sample
