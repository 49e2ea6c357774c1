"""Run steps from a notebook; ``pipeline.spin`` is the function here."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from pipeline.cli.spin import table_of_step

if TYPE_CHECKING:
    import pandas as pd


def spin(
    step: str,
    pipeline: str = "flights",
    *,
    config: str | None = None,
    output: str | None = None,
    rows: int | None = 2_000,
) -> pd.DataFrame:
    """Run one step of the last run on a sample, for a notebook: what ``python -m pipeline spin`` shows, as a table.

    Args:
        step: "Transform", "Trainer" or "Evaluator".
        pipeline: Its name: configs/<name>.py.
        config: Config file, in place of the pipeline's.
        output: Folder of its runs, in place of output/<name>.
        rows: Of the sample; None: all.

    Returns:
        Transform: a row for each feature. Trainer: a row for each step. Evaluator: a row for each slice.

    Raises:
        UserError: there is no such step, pipeline or run.
        Exception: whatever the step raises.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # a notebook shows what libraries log, and an error is raised
    try:
        return table_of_step(step, argparse.Namespace(pipeline=pipeline, config=config, output=output), rows)
    finally:
        logging.disable(before)
