"""Run a pipeline on part of its rows for ``advise``, to tell the start of a step from its work on rows."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.costs.measured import StepRun
from pipeline.data.sample import Sample
from pipeline.errors import UserError, first_line
from pipeline.runs import store
from pipeline.runs.store import Run
from pipeline.runs.timings import rows_of, timings
from pipeline.settings.target import Target

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline

logger = logging.getLogger("pipeline.advise")

FIRST = "ExampleGen"
# Of the rows of a run, for ``advise``. Fewer than these tell little beside what a step takes to start.
PART, LEAST_ROWS = 1 / 8, 2_000


def run_on_part(
    name: str, run: Run, create: Callable[[Target, Sample], Pipeline], tell: Callable[[str], None]
) -> dict[str, StepRun]:
    """Run the graph on part of the examples of a run; return rows and seconds of the steps after it that ended well.

    An error of a step, such as a gate that needs more rows, ends it early; what ran before is of use all the same.

    Args:
        name: Of the pipeline.
        run: On all rows.
        create: Creates the graph on a sample, for a target.
        tell: Receives each step that starts.
    """
    from pipeline.runs.run_graph import run_graph
    from pipeline.runs.step import StepFailed

    rows = sum(rows_of(run).values())
    every = _every(rows)
    examples = run.artifact(FIRST, "examples")
    if every < 2 or examples is None or not Path(examples.uri).is_dir():
        return {}
    with tempfile.TemporaryDirectory(prefix="part-", ignore_cleanup_errors=True) as folder:
        output = Path(folder)
        try:
            pipeline = create(Target.local(output, name), Sample(examples.uri, rows // every))
            run_graph(pipeline, "part", lambda step: tell(f"part of the rows: {step}"), lambda _: None)
        except (StepFailed, UserError) as error:
            logger.info("The run on part of the rows ended early: %s: %s", first_line(error), error.__cause__)
        with store.opened(output) as metadata:
            runs = store.runs_of(metadata)
        steps = timings(runs[0]) if runs and runs[0].artifact("StatisticsGen", "statistics") else {}
    # It has taken the sample, and read no raw data.
    return {step: took for step, took in steps.items() if step != FIRST}


def _every(rows: int) -> int:
    """Return which share of so many rows to take, one of every 2 to 8; 1 where there are too few."""
    return min(round(1 / PART), rows // LEAST_ROWS) if rows >= 2 * LEAST_ROWS else 1
