"""Run a pipeline on part of its rows in a temporary folder, to tell the start of its steps from the work on rows."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.costs.measured import StepRun
from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError, first_line
from pipeline.runs import store
from pipeline.runs.store import Run
from pipeline.runs.timings import rows_of, timings
from pipeline.settings.config import SPLITS, PipelineConfig
from pipeline.settings.target import Target

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline

logger = logging.getLogger("pipeline.advise")

# Of the rows of a run. Fewer than these tell little beside what a step takes to start.
PART, LEAST_ROWS = 1 / 8, 2_000
BLOCK = 1_000


def run_on_part(
    config: PipelineConfig, run: Run, create: Callable[[PipelineConfig, Target], Pipeline], tell: Callable[[str], None]
) -> dict[str, StepRun]:
    """Run the graph on every so manieth example of a run; return rows and seconds of the steps that ended well.

    An error of a step, such as a gate that needs more rows, ends it early; what ran before is of use all the same.
    """
    from pipeline.runs.run_graph import StepFailed, run_graph

    every = _every(sum(rows_of(run).values()))
    examples = run.artifact("ExampleGen", "examples")
    if every < 2 or examples is None or not Path(examples.uri).is_dir():
        return {}
    with tempfile.TemporaryDirectory(prefix="part-", ignore_cleanup_errors=True) as folder:
        data, output = Path(folder, "data"), Path(folder, "output")
        for split in SPLITS:
            _write_part(Path(examples.uri, f"Split-{split}"), data / split, every)
        part = replace(
            config,
            data=replace(
                config.data,
                path=str(data),
                splits={split: f"{split}/*.tfrecord" for split in SPLITS},
                files="*",
                prepare=None,
            ),
            # There is no earlier search in a new folder.
            tuning=replace(config.tuning, mode="off") if config.tuning.mode == "reuse" else config.tuning,
        )
        output.mkdir()
        try:
            pipeline = create(part, Target.local(output, config.name))
            run_graph(pipeline, "part", lambda name: tell(f"part of the rows: {name}"), lambda _: None)
        except (StepFailed, UserError) as error:
            logger.info("The run on part of the rows ended early: %s: %s", first_line(error), error.__cause__)
        with store.opened(output) as metadata:
            runs = store.runs_of(metadata)
        return timings(runs[0]) if runs and runs[0].artifact("StatisticsGen", "statistics") else {}


def _every(rows: int) -> int:
    """Return which share of so many rows to take, one of every 2 to 8; 1 where there are too few."""
    return min(round(1 / PART), rows // LEAST_ROWS) if rows >= 2 * LEAST_ROWS else 1


def _write_part(source: Path, to: Path, every: int) -> None:
    """Copy every so manieth record of the files in a folder."""
    import tensorflow as tf

    to.mkdir(parents=True)
    place = 0
    with tf.io.TFRecordWriter(str(to / "part.tfrecord")) as writer:
        for file in sorted(source.iterdir()):
            for records in read_records(str(file), BLOCK):
                for record in records:
                    if place % every == 0:
                        writer.write(record)
                    place += 1
