"""Runs the pipeline on this machine: python local_runner.py --help."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli import command_line, terminal
from pipeline.data.location import check_data, prepare
from pipeline.errors import UserError
from pipeline.evaluation.verdict import FAILED, write_outcome
from pipeline.runs import webhook
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target, only_run_in

if TYPE_CHECKING:
    from pipeline.runs.record import Record
    from pipeline.runs.results import Results
    from pipeline.runs.run_graph import Step

ROOT = Path(__file__).resolve().parent
INTERRUPTED = 130
VERDICT = "verdict.json"


def main() -> int:
    """Runs what the command line asks for; returns the exit code."""
    arguments = parse_arguments()
    command = [Path(sys.executable).name, *sys.argv]
    # TFX hands the rest of the command line to its executors as options of Beam.
    del sys.argv[1:]
    try:
        config = command_line.configured(arguments, ROOT)
        command_line.check_files(config)
        told = webhook.read(os.environ)
        output = Path(arguments.output).absolute() if arguments.output else ROOT / "output" / config.name
        with only_run_in(output):
            run_id = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
            try:
                prepare(config)
                check_data(config)
                return run(config, output, run_id, arguments, command, told)
            except UserError as error:
                end(config, output, run_id, FAILED, {"failed": [str(error)]}, told)
                raise
    except UserError as error:
        print(f"local_runner.py: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("local_runner.py: interrupted; finished steps are kept, run again to go on", file=sys.stderr)
        return INTERRUPTED


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Run the pipeline on this machine: train, tune, evaluate and push a model.",
        epilog="Exit codes: 0 pushed, 1 failed, 2 wrong arguments, 3 the model was not blessed, 130 interrupted.",
    )
    command_line.add_arguments(parser)
    parser.add_argument("--output", help="folder for artifacts, logs and pushed models (output/<name>)")
    parser.add_argument(
        "--keep-versions", type=int, default=5, help="pushed versions that stay, the newest ones (%(default)s)"
    )
    parser.add_argument("--verbose", action="store_true", help="show the whole log, of TFX and TensorFlow too")
    return parser.parse_args()


def run(
    config: PipelineConfig,
    output: Path,
    run_id: str,
    arguments: argparse.Namespace,
    command: list[str],
    told: webhook.Webhook | None,
) -> int:
    """Runs the graph, shows how it went, and writes verdict.json, the record of the run and its report."""
    started = datetime.now()
    with terminal.redirect_output(output / "logs" / f"{run_id}.log", arguments.verbose) as screen:
        screen.start(config, run_id)
        # Imported here, with the log in place: TensorFlow and TFX take seconds and print a lot. What they make stays:
        # to look for garbage among it, as from run_graph on again, is a fifth of those seconds for nothing.
        gc.disable()
        from pipeline.graph import create_pipeline, searches
        from pipeline.runs import record, store
        from pipeline.runs.results import read_results, warnings_of
        from pipeline.runs.run_graph import StepFailed, run_graph

        steps: list[Step] = []

        def ended(step: Step) -> None:
            steps.append(step)
            screen.step_ends(step)
            for sentence in warnings_of(step):
                screen.warning(sentence)

        if config.tuning.mode == "search" and not searches(config):
            screen.note(f"No Tuner: {config.module} has no tuner_fn.")
        results, failed, cause = None, None, None
        try:
            store.check(output)
            pipeline = create_pipeline(config, Target.local(output, config.name, arguments.keep_versions))
            results = read_results(run_graph(pipeline, run_id, screen.step_starts, ended))
        except StepFailed as failure:
            failed, cause = (failure.step, failure.seconds), failure.__cause__
        except UserError:
            raise
        except Exception as error:
            failed, cause = ("Pipeline", 0.0), error

        if results is None:
            assert failed
            code = FAILED
            outcome: dict[str, Any] = {"failed": [screen.failure(*failed, cause, config)]}
        else:
            screen.results(results, config)
            code, outcome = results.exit_code, results.outcome
        end(config, output, run_id, code, outcome, told, screen.note)
        screen.report(
            lambda: _report(
                record.make(run_id, command, config, started, code, outcome, steps, failed),
                config,
                steps,
                failed,
                results,
                output,
            )
        )
        return code


def _report(
    kept: Record,
    config: PipelineConfig,
    steps: list[Step],
    failed: tuple[str, float] | None,
    results: Results | None,
    output: Path,
) -> Path:
    """Keeps the record in the metadata store and writes the page."""
    from pipeline.report import page
    from pipeline.report.run import FinishedRun
    from pipeline.runs import record, store

    if (output / store.FILE).is_file():
        with store.opened(output, write=True) as metadata:
            record.keep(metadata, kept)
    return page.write(FinishedRun(kept, config, steps, failed, results, output / "runs" / kept.run))


def end(
    config: PipelineConfig,
    output: Path,
    run_id: str,
    code: int,
    outcome: Mapping[str, Any],
    told: webhook.Webhook | None,
    say: Callable[[str], None] = print,
) -> None:
    """Writes verdict.json and tells the webhook, if there is one; that it cannot be told changes nothing."""
    whole = write_outcome(output / VERDICT, run_id, code, outcome)
    problem = told and told.tell(config.name, run_id, whole)
    if problem:
        say(f"note: the webhook was not told: {problem}")


if __name__ == "__main__":
    sys.exit(main())
