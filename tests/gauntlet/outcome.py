"""Outcome of a table that went through all commands."""

from dataclasses import dataclass, field

from tests.gauntlet.tables import Table


class Failure(Exception):
    """Reason why a table did not come through; the message is the line that is printed."""


@dataclass
class Outcome:
    """Outcome of a table."""

    table: Table
    shape: str = "?"
    outcome: str = ""
    metric: str = ""
    reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def as_expected(self) -> bool:
        """Return whether nothing failed."""
        return not self.reason

    def __str__(self) -> str:
        times = " ".join(f"{phase} {seconds:.0f}" for phase, seconds in self.seconds.items())
        text = f"{'ok  ' if self.as_expected else 'FAIL'} {self.table.name:<24} {self.shape:>15}  {self.table.kind:<8}"
        text += f" {self.outcome:<8} {self.metric:<34} {times}"
        for line in [*self.notes, *self.reason.splitlines()]:
            text += f"\n       {line}"
        return text
