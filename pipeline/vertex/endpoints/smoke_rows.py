"""Real rows with the answers that the model check has kept, which an endpoint must give as well."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.settings.tasks import ANSWERS, HIGH, LABEL_SET, LOW

PROBABILITIES = (ANSWERS["binary"], ANSWERS["multiclass"])


@dataclass(frozen=True)
class SmokeRows:
    """Rows with their answers, as the model check has kept them."""

    instances: Sequence[Mapping[str, Any]]  # raw features by name
    answers: Sequence[Mapping[str, Any]]  # outputs of the exported model by name
    # Largest difference of a probability; of another number, relative to the largest of all answers, as in the model
    # check. Chips and versions of TensorFlow round differently.
    tolerance: float

    @classmethod
    def from_json(cls, read: Mapping[str, Any], most: int) -> "SmokeRows":
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
            follows = name in ("label", LABEL_SET) and any(key in expected for key in ANSWERS.values())
            # Beside a probability these follow from it, which may lie on either side of the threshold.
            if not follows and not _same(answer[name], value, self._allowed(name)):
                return f"{name} of row {row} is {_text(answer[name])} instead of {_text(value)}"
        return None

    def _allowed(self, name: str) -> float:
        if name in PROBABILITIES:
            return self.tolerance
        name = ANSWERS["regression"] if name in (LOW, HIGH) else name  # as exact as the number that they are around
        return self.tolerance * max(_largest(answer.get(name)) for answer in self.answers)


def _same(answer: Any, value: Any, allowed: float) -> bool:
    if isinstance(value, list):
        return (
            isinstance(answer, list)
            and len(answer) == len(value)
            and all(_same(*pair, allowed) for pair in zip(answer, value, strict=True))
        )
    if _is_number(value) and _is_number(answer):
        # A server writes a float32 with as few digits as tell it apart.
        return math.isclose(answer, value, rel_tol=1e-6, abs_tol=allowed)
    return bool(answer == value)


def _largest(value: Any) -> float:
    if isinstance(value, list):
        return max(map(_largest, value), default=0.0)
    return abs(value) if _is_number(value) else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _text(value: Any) -> str:
    if not _is_number(value):
        return repr(value)
    return f"{value:.3g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"
