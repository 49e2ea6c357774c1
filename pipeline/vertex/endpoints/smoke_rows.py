"""Real rows with the answers that the model check has kept, which an endpoint must give as well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.settings.tasks import ANSWERS


@dataclass(frozen=True)
class SmokeRows:
    """Rows with their answers, as the model check has kept them.

    Attributes:
        instances: Raw features of a row by name.
        answers: Outputs of the exported model by name.
        tolerance: Largest difference of a number.
    """

    instances: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]]
    tolerance: float

    @classmethod
    def from_json(cls, read: Mapping[str, Any], most: int) -> SmokeRows:
        """Return the first rows of what the model check wrote."""
        rows = read["rows"][:most]
        return cls([row["instance"] for row in rows], [row["answer"] for row in rows], read["tolerance"])

    def difference(self, row: int, answer: Any) -> str | None:
        """Return the difference of an answer to a row; None: there is none."""
        expected = self.answers[row]
        if not isinstance(answer, Mapping):
            answer = {next(iter(expected)): answer} if len(expected) == 1 else {}
        for name, value in sorted(expected.items()):
            if name not in answer:
                return f"no {name} in the answer to row {row}"
            follows = name == "label" and any(key in expected for key in ANSWERS.values())
            # Beside a probability the label follows from it, which may lie on either side of the threshold.
            if not follows and not self._same(answer[name], value):
                return f"{name} of row {row} is {_text(answer[name])} instead of {_text(value)}"
        return None

    def _same(self, answer: Any, value: Any) -> bool:
        if isinstance(value, list):
            return (
                isinstance(answer, list)
                and len(answer) == len(value)
                and all(self._same(*pair) for pair in zip(answer, value, strict=True))
            )
        if isinstance(value, (int, float)) and isinstance(answer, (int, float)):
            # A server writes a float32 with as few digits as tell it apart.
            return math.isclose(answer, value, rel_tol=1e-6, abs_tol=self.tolerance)
        return bool(answer == value)


def _text(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else repr(value)
