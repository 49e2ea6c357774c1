"""The result of a step of a run."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tfx import types


@dataclass(frozen=True)
class Step:
    """Result of a step."""

    name: str
    state: Literal["ran", "cached", "looked up"]
    seconds: float
    outputs: dict[str, list[types.Artifact]]
    made: datetime.datetime | None  # when the artifacts were made: earlier than the run if the step is cached
    passed_over: str = ""  # why it has not reused the artifacts of an earlier run
    cpu_seconds: float | None = None  # of its executor and the processes that work for it; None if not measured

    @property
    def reason(self) -> str:
        """Return why the step did not run, or why it did not reuse artifacts."""
        if self.state == "cached":
            unchanged = "nothing it depends on has changed"
            return f"{unchanged} since {self.made:%Y-%m-%d %H:%M}" if self.made else unchanged
        if self.state == "looked up":
            found = sum(map(len, self.outputs.values()))
            return "" if found else "found nothing, so there is nothing to compare with"
        return self.passed_over


class StepFailed(Exception):
    """A step failed; the cause is ``__cause__``, when it raised one; ``others`` are those that failed with it."""

    def __init__(self, step: str, seconds: float):
        super().__init__(f"step {step} failed")
        self.step, self.seconds = step, seconds
        self.others: Sequence[StepFailed] = ()
