"""What the page is about: a run that has run, and its artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfx import types

from pipeline.runs.record import Record
from pipeline.runs.results import Results
from pipeline.runs.run_graph import Step
from pipeline.settings.config import PipelineConfig


@dataclass(frozen=True)
class FinishedRun:
    """A run that has run, however it did.

    Attributes:
        record: What is kept of it.
        config: Its settings.
        steps: Those that ended well, in their order.
        failed: The step that did not, and its seconds.
        results: Metrics and verdict; None when it did not come so far.
        folder: Where the page is written.
    """

    record: Record
    config: PipelineConfig
    steps: Sequence[Step]
    failed: tuple[str, float] | None
    results: Results | None
    folder: Path
    by_name: Mapping[str, Step] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {step.name: step for step in self.steps})

    def artifact(self, step: str, output: str) -> types.Artifact | None:
        """What a step wrote; None when it did not run or wrote nothing."""
        found = self.by_name[step].outputs.get(output, []) if step in self.by_name else []
        return found[0] if found else None

    def folder_of(self, step: str, output: str) -> str | None:
        """The address of what a step wrote; None when there is none."""
        found = self.artifact(step, output)
        return str(found.uri) if found else None
