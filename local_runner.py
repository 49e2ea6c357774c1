"""Runs the pipeline on this machine: python local_runner.py --help."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipeline import terminal, webhook
from pipeline.config import PipelineConfig, TuningMode, config_file, load_config
from pipeline.data import check_data, prepare
from pipeline.errors import UserError
from pipeline.packaging import read_module
from pipeline.target import Target, only_run_in
from pipeline.verdict import write_outcome

if TYPE_CHECKING:
    from pipeline.local import Step
    from pipeline.record import Record
    from pipeline.results import Results

ROOT = Path(__file__).resolve().parent
PUSHED, FAILED, NOT_BLESSED, INTERRUPTED = 0, 1, 3, 130
VERDICT = "verdict.json"


def main() -> int:
    """Runs what the command line asks for; returns the exit code."""
    arguments = parse_arguments()
    command = [Path(sys.executable).name, *sys.argv]
    # TFX hands the rest of the command line to its executors as options of Beam.
    del sys.argv[1:]
    try:
        config = configure(arguments)
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
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pipeline", default="flights", help="name of the pipeline: configs/NAME.py (%(default)s)")
    which.add_argument("--config", help="config file, in place of the pipeline's")
    parser.add_argument("--data", help="file, folder or address of the data, in place of the config's")
    parser.add_argument("--module", help="module file, in place of the config's")
    parser.add_argument("--output", help="folder for artifacts, logs and pushed models (output/<name>)")
    parser.add_argument(
        "--keep-versions", type=int, default=5, help="pushed versions that stay, the newest ones (%(default)s)"
    )
    parser.add_argument("--tuning", choices=get_args(TuningMode), help="search, reuse the last best values, or off")
    parser.add_argument("--verbose", action="store_true", help="show the whole log, of TFX and TensorFlow too")
    return parser.parse_args()


def configure(arguments: argparse.Namespace) -> PipelineConfig:
    """The config with what the command line says instead; checks what can be checked without TensorFlow."""
    file = Path(arguments.config) if arguments.config else config_file(ROOT, arguments.pipeline)
    config = load_config(file).with_paths_from(ROOT)
    if arguments.data:
        path = arguments.data if "://" in arguments.data else str(Path(arguments.data).absolute())
        config = replace(config, data=replace(config.data, path=path, prepare=None))
    if arguments.module:
        config = replace(config, module=str(Path(arguments.module).absolute()))
    if arguments.tuning:
        config = replace(config, tuning=replace(config.tuning, mode=arguments.tuning))
    if config.schema and not Path(config.schema).is_file():
        raise UserError(f"no schema at {config.schema}; write one with python -m pipeline.schema, or leave it out")
    read_module(Path(config.module))
    return config


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
    with terminal.only_ours(output / "logs" / f"{run_id}.log", arguments.verbose) as screen:
        screen.start(config, run_id)
        # Imported here, with the log in place: TensorFlow and TFX take seconds and print a lot.
        from pipeline import local, record, store
        from pipeline.pipeline import create_pipeline, searches
        from pipeline.results import read_results, warnings_of

        steps: list[local.Step] = []

        def ended(step: local.Step) -> None:
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
            results = read_results(local.run(pipeline, run_id, screen.step_starts, ended))
        except local.StepFailed as failure:
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
            code = PUSHED if results.pushed_to else NOT_BLESSED
            outcome = {**results.verdict, "metrics": results.metrics["overall"]}
        end(config, output, run_id, code, outcome, told, screen.note)
        states = {step.name: step.state for step in steps} | ({failed[0]: "failed"} if failed else {})
        screen.report(
            lambda: _report(
                record.make(run_id, command, config, started, code, outcome, states),
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
    from pipeline import record, store
    from pipeline.report import page
    from pipeline.report.run import Ended

    if (output / store.FILE).is_file():
        with store.opened(output, write=True) as metadata:
            record.keep(metadata, kept)
    return page.write(Ended(kept, config, steps, failed, results, output / "runs" / kept.run))


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
