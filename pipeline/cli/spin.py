"""Run one step on a sample of what the last run has made, and show what comes out: an edit is answered in seconds.

python -m pipeline spin Transform              the features, their statistics and the first rows
python -m pipeline spin Trainer --watch        the loss by step, again after each edit of the module file
python -m pipeline spin Evaluator --all        the metrics by slice, on all rows
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import command_line
from pipeline.cli.scratch import scratch_folder
from pipeline.cli.terminal import Screen, redirect_output, silence_stderr
from pipeline.errors import UserError
from pipeline.processes import collect_rarely
from pipeline.report.blocks import short
from pipeline.runs.spin import MOST_EPOCHS, STEPS, Spinner
from pipeline.settings.config import PipelineConfig
from pipeline.settings.repository import find_root

if TYPE_CHECKING:
    import pandas as pd

ROWS = 2_000
# Seconds between two looks at the files, and lines of a table.
LOOK, MOST_LINES = 0.05, 40


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    root = find_root()
    config, output = _chosen(arguments, root)
    descriptor, log = tempfile.mkstemp(prefix="spin-", suffix=".log")
    os.close(descriptor)
    code = command_line.FAILED
    try:
        with scratch_folder() as scratch, redirect_output(Path(log)) as screen:
            screen.step_starts("importing TensorFlow and TFX")
            from pipeline.graph import create_pipeline

            collect_rarely()
            spinner = Spinner(output, scratch, None if arguments.all else arguments.rows, create_pipeline)
            seen = _state(arguments, root, config)
            code = _spin(spinner, config, arguments.step, screen)
            while arguments.watch:
                screen.step_starts(f"waiting for an edit of {Path(config.module).name} or the config")
                while (now := _state(arguments, root, config)) == seen:  # an edit may have come during the step
                    time.sleep(LOOK)
                seen = now
                try:
                    config, _ = _chosen(arguments, root)
                    code = _spin(spinner, config, arguments.step, screen)
                except UserError as error:
                    screen.note(str(error))
    finally:
        if code == command_line.SUCCEEDED:
            os.unlink(log)
    return code


def table_of_step(step: str, arguments: argparse.Namespace, rows: int | None) -> pd.DataFrame:
    """Return what a step of the pipeline that the arguments name makes; see ``pipeline.spin``.

    Raises:
        UserError: there is no such step, pipeline or run.
        Exception: whatever the step raises.
    """
    if step not in STEPS:
        raise UserError(f"expected one of the steps {', '.join(STEPS)}, got {step!r}")
    config, output = _chosen(arguments, find_root())
    with silence_stderr(), scratch_folder() as scratch:
        from pipeline.graph import create_pipeline
        from pipeline.runs.spin_table import table_of

        outputs = Spinner(output, scratch, rows, create_pipeline).spin(config, step)
        return table_of(step, outputs, config.label.task)


def _chosen(arguments: argparse.Namespace, root: Path) -> tuple[PipelineConfig, Path]:
    """Return the config that the arguments name, its files checked, and the folder of its runs."""
    config = command_line.chosen_config(arguments, root)
    command_line.check_files(config)
    return config, command_line.output_folder(arguments, root, config)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.make_parser(
        "python -m pipeline spin",
        "Run one step on a sample of what the last run has made, and show what comes out. Nothing of it is kept.",
        {0: "done"},
        f"The Trainer trains the network for {MOST_EPOCHS} epochs at most, without trees and export.",
    )
    parser.add_argument("step", choices=STEPS, metavar="STEP", help=", ".join(STEPS))
    command_line.add_pipeline_arguments(parser)
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--rows", type=command_line.positive, default=ROWS, help="rows of the sample (%(default)s)")
    rows.add_argument("--all", action="store_true", help="all rows")
    parser.add_argument("--watch", action="store_true", help="again after each edit, until Ctrl-C")
    return parser.parse_args(argv)


def _spin(spinner: Spinner, config: PipelineConfig, step: str, screen: Screen) -> int:
    """Run the step, show its seconds and what it made, or its error; return the exit code."""
    from pipeline.runs.spin_table import table_of

    screen.step_starts(step)
    started = time.monotonic()
    try:
        outputs = spinner.spin(config, step)
        table = table_of(step, outputs, config.label.task)
    except UserError:
        raise
    except Exception as error:
        screen.failure(step, time.monotonic() - started, error, config, kept=False)
        return command_line.FAILED
    screen.line(
        step, "ran", time.monotonic() - started, "all rows" if spinner.used is None else f"{spinner.used:,} rows"
    )
    if spinner.searched:
        values = ", ".join(f"{name}={_cell(value)}" for name, value in spinner.searched.items())
        screen.note(f"  with the values of the last search, whatever build_model's defaults: {values}")
    if table.empty:
        screen.note(f"  {Path(config.module).name} trains in a loop of its own, which tells no losses by step")
    else:
        _show(table, screen)
    return command_line.SUCCEEDED


def _show(table: pd.DataFrame, screen: Screen) -> None:
    """Show a table; of a long one, lines from all over it, and the last."""
    if len(table) > MOST_LINES:
        places = sorted({round(place * (len(table) - 1) / (MOST_LINES - 1)) for place in range(MOST_LINES)})
        table = table.iloc[places]
    rows = [[_cell(name), *map(_cell, values)] for name, values in zip(table.index, table.to_numpy(), strict=True)]
    screen.table([table.index.name or "", *table.columns], rows)


def _cell(value: object) -> str:
    return short(value) if isinstance(value, float) else str(value)


def _state(arguments: argparse.Namespace, root: Path, config: PipelineConfig) -> list[tuple[str, int]]:
    """Return the config and the Python files beside the module file, each with its time."""
    file = Path(arguments.config) if arguments.config else command_line.config_file(root, arguments.pipeline)
    times = []
    for path in (file, *Path(config.module).parent.glob("*.py")):
        with contextlib.suppress(OSError):  # an editor is replacing it
            times.append((str(path), path.stat().st_mtime_ns))
    return sorted(times)
