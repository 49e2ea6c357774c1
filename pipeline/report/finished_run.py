"""Describe the subject of the page: a run and its artifacts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tfx import types

from pipeline.components.artifacts import read_statistics
from pipeline.quality.statistics import Statistics
from pipeline.quality.tfma_config import BASELINE, read_metrics
from pipeline.runs.record import Record
from pipeline.runs.results import Results
from pipeline.runs.step import Step
from pipeline.settings.config import PipelineConfig


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended, with or without an error."""

    config: PipelineConfig
    steps: Sequence[Step]  # that succeeded
    folder: Path  # for the page
    record: Record
    failed: tuple[str, float] | None  # the step that did not succeed, and its seconds
    results: Results | None  # None: no model was judged
    # All steps in their order, each with those it depends on; empty if that is not known.
    graph: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[str, Step]:
        """Return the steps that ended well, by name."""
        return {step.name: step for step in self.steps}

    @cached_property
    def statistics(self) -> Mapping[str, Statistics]:
        """Return the data's statistics by split; empty when the run has not come so far."""
        artifact = self.artifact("StatisticsGen", "statistics")
        return read_statistics(artifact) if artifact else {}

    def artifact(self, step: str, output: str) -> types.Artifact | None:
        """Return the first artifact of a step's output; None when it did not run or wrote nothing."""
        artifacts = self.by_name[step].outputs.get(output, []) if step in self.by_name else []
        return artifacts[0] if artifacts else None

    def folder_of(self, step: str, output: str) -> str | None:
        """Return the address of a step's output, if any."""
        artifact = self.artifact(step, output)
        return str(artifact.uri) if artifact else None

    @cached_property
    def baseline(self) -> Mapping[str, float]:
        """Return the metrics of the model to compare with, on all rows of the test split, if any."""
        evaluation = self.folder_of("Evaluator", "evaluation")
        return read_metrics(evaluation, BASELINE).get("overall", {}) if evaluation else {}
