"""The result of a step of a run."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tfx import types


@dataclass(frozen=True)
class Step:
    """Result of a step.

    Attributes:
        name: Node of the graph.
        state: "ran", "cached" (nothing it depends on has changed), "looked up" (it only finds artifacts) or "skipped"
            (its condition does not hold).
        seconds: From start to end.
        outputs: Its artifacts by output name.
        made: When the artifacts were made, for a cached step earlier than the run.
        passed_over: Why it has not reused what an earlier run has made.
        cpu_seconds: CPU time of its executor and the processes that work for it; None if not measured.
    """

    name: str
    state: Literal["ran", "cached", "looked up", "skipped"]
    seconds: float
    outputs: dict[str, list[types.Artifact]]
    made: datetime.datetime | None
    passed_over: str = ""
    cpu_seconds: float | None = None

    @property
    def reason(self) -> str:
        """Return why it did not run, or a remark on its result."""
        if self.state == "cached":
            unchanged = "nothing it depends on has changed"
            return f"{unchanged} since {self.made:%Y-%m-%d %H:%M}" if self.made else unchanged
        if self.state == "looked up":
            found = sum(map(len, self.outputs.values()))
            return "" if found else "found nothing, so there is nothing to compare with"
        return self.passed_over


class StepFailed(Exception):
    """A step failed; the cause is ``__cause__``, when it raised one."""

    def __init__(self, step: str, seconds: float):
        super().__init__(f"step {step} failed")
        self.step = step
        self.seconds = seconds
