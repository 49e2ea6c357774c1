"""A sample of all rows for a run on this machine: to try an edit on, never pushed over the real model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.cli import interruption
from pipeline.cli.terminal import Screen
from pipeline.packaging.user_code import searches
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target

if TYPE_CHECKING:
    from pipeline.data.sample import Sample
    from pipeline.runs.step import Step

# The folder of runs on a sample, in that of the runs on all rows.
SAMPLE = "sample"
# The step that reads all rows, as the terminal calls it beside the one that reads the sample.
ALL_ROWS = "(all rows)"
# Trials of a search, at most: they show that it runs, and on so few rows no more would find values worth having.
TRIALS = 2


def for_sample(config: PipelineConfig) -> PipelineConfig:
    """Return the config that runs on a sample: its search is short, however many trials one on all rows has."""
    return replace(config, tuning=replace(config.tuning, trials=min(TRIALS, config.tuning.trials)))


def take_sample(config: PipelineConfig, whole: Target, rows: int, screen: Screen) -> Sample:
    """Read all rows, unless an earlier run has; show how many of them are taken, and of how many trials a search is.

    Args:
        config: Of the pipeline.
        whole: Where the runs on all rows are.
        rows: How many to take.
        screen: Shows it.

    Raises:
        StepFailed: the rows could not be read.
        UserError: so few rows have none of a split.
    """
    from pipeline.data.sample import shares
    from pipeline.graph import create_pipeline
    from pipeline.runs.sample import sample_of

    def on_end(step: Step) -> None:
        screen.step_ends(replace(step, name=ALL_ROWS))
        interruption.check()

    sample = sample_of(create_pipeline(config, whole), rows, screen.step_starts, on_end)
    taken = shares(sample)
    by_split = ", ".join(f"{split} {number:,}" for split, number in taken.items())
    screen.note(f"  a sample of {sum(taken.values()):,} of {sum(sample.there.values()):,} rows: {by_split}")
    trials = for_sample(config).tuning.trials
    if config.tuning.mode == "search" and searches(config) and trials < config.tuning.trials:
        screen.note(f"  a search of {trials} trials, not of {config.tuning.trials}: to see that it runs")
    return sample
