"""Run the pipeline on this machine: python local_runner.py --help.

A runner makes two values of its arguments: WHAT runs (a PipelineConfig) and WHERE (a Target). It builds the graph of
the two, runs it step by step, and shows and keeps the outcome.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # during the imports below there is nothing to say or to keep

from pipeline.cli.allocation import restart_with_allocation

if __name__ == "__main__":
    restart_with_allocation()

import argparse
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import backtest, command_line, interruption, terminal
from pipeline.cli.command_line import FAILED
from pipeline.cli.local_run import SAMPLE, LocalRun, for_sample, load_libraries, take_sample
from pipeline.cli.printing import say
from pipeline.cli.scratch import scratch_folder
from pipeline.components.tensorflow_process import started_ahead
from pipeline.data.location import check_data, prepare
from pipeline.errors import UserError
from pipeline.runs import webhook
from pipeline.settings.target import KEEP_VERSIONS, Target, only_run_in

if TYPE_CHECKING:
    from pipeline.data.sample import Sample

ROOT = Path(__file__).resolve().parent
# What steps and the report would each load besides TFX; TFX loads setuptools itself when it makes an artifact.
FOR_STEPS = ("setuptools", "pipeline.runs.executors", "tensorboard.summary.v2", "pipeline.report.page")


def main() -> int:
    """Run the pipeline as the command line says; return the exit code."""
    interruption.catch_signals()
    arguments = parse_arguments()
    command = [Path(sys.executable).name, *sys.argv]
    # TFX hands the rest of the command line to its executors as options of Beam.
    del sys.argv[1:]
    try:
        config = command_line.configured(arguments, ROOT)
        command_line.check_memory()
        command_line.check_files(config)
        output = command_line.output_folder(arguments, ROOT, config)
        if arguments.backtest:
            output = output / backtest.FOLDER
        target = command_line.local_target(arguments, output, config.name)
        if arguments.backtest:
            with only_run_in(output):
                prepare(config)
                return backtest.backtest(config, target, output, arguments.backtest, arguments.verbose)
        run = LocalRun(config, output, command, webhook.read(os.environ))
        take = None
        if arguments.sample:
            take = functools.partial(take_sample, config, target, arguments.sample)
            run = LocalRun(for_sample(config), output / SAMPLE, command, webhook=None)
            target = command_line.local_target(arguments, run.output, config.name)
        with only_run_in(output), run.announcing_errors():
            prepare(config)
            check_data(config)
            return run_pipeline(run, target, arguments.verbose, take)
    except UserError as error:
        say(f"local_runner.py: {error}", error=True)
        return FAILED
    except BrokenPipeError:
        raise
    except (OSError, MemoryError) as error:  # of a full disk, say, where there is no log to tell it
        say(f"local_runner.py: {terminal.message_of(error)}", error=True)
        return FAILED
    except interruption.Interrupted as end:
        say(f"local_runner.py: {end}; finished steps are kept, run again to go on", error=True)
        return end.exit_code


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
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
    return parser.parse_args()


def run_pipeline(
    run: LocalRun, target: Target, verbose: bool, take: "Callable[[terminal.Screen], Sample] | None"
) -> int:
    """Build the graph and run it, announce the outcome, and write the report; return the exit code.

    Args:
        run: Of which config.
        target: Where.
        verbose: Whether the terminal shows the whole log.
        take: Takes a sample of the rows; None: all rows.
    """
    with scratch_folder(), terminal.redirect_output(run.log, verbose) as screen, started_ahead(run.expects_work()):
        screen.start(run.config, run.name)
        screen.step_starts("importing TensorFlow and TFX")
        load_libraries()  # with the log in place, for they print a lot
        from pipeline.graph import create_pipeline
        from pipeline.processes import processes
        from pipeline.runs import engine

        screen.close()  # a process that has threads cannot be forked
        with processes(*FOR_STEPS) as of_steps:  # before anything is computed here
            engine.check(target)
            run.execute(lambda: create_pipeline(run.config, target, take(screen) if take else None), screen, of_steps)
            run.announce(screen.note)
            run.keep_record(screen.note)
            screen.report(functools.partial(run.write_report, of_steps), run.name)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(command_line.until_enough_read(main))
