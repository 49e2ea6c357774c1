"""Real rows with the answers that the model check has kept: what an endpoint must answer, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SmokeRows:
    """Rows with their answers, as the model check has kept them.

    Attributes:
        instances: Raw features of a row by name.
        answers: What the exported model said, output by name.
        tolerance: Largest difference of a number.
    """

    instances: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]]
    tolerance: float

    @classmethod
    def from_json(cls, read: Mapping[str, Any], most: int) -> SmokeRows:
        """The first rows of what the model check wrote."""
        rows = read["rows"][:most]
        return cls([one["instance"] for one in rows], [one["answer"] for one in rows], read["tolerance"])

    def difference(self, row: int, answer: Any) -> str | None:
        """What is otherwise in an answer to a row; None: nothing."""
        expected = self.answers[row]
        if not isinstance(answer, Mapping):
            answer = {next(iter(expected)): answer} if len(expected) == 1 else {}
        for name, value in sorted(expected.items()):
            if name not in answer:
                return f"no {name} in the answer to row {row}"
            if isinstance(value, (int, float)):
                if not abs(float(answer[name]) - value) <= self.tolerance:
                    return f"{name} of row {row} is {float(answer[name]):.4f} instead of {value:.4f}"
            elif "probability" not in expected and answer[name] != value:
                # Beside a probability the label follows from it, which may lie on either side of the threshold.
                return f"{name} of row {row} is {answer[name]!r} instead of {value!r}"
        return None
