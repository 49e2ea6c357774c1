"""Measure how often intervals and sets contain the label, and how large they are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from pipeline.evaluation.intervals import wilson
from pipeline.settings.tasks import HIGH, LABEL_SET, LOW

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Covered:
    """Counts over rows.

    Attributes:
        rows: All.
        covered: Those whose label is within.
        size: Sum of the widths of intervals, in the unit of the label, or of the classes in sets.
        of_sets: Whether they are sets.
    """

    rows: int = 0
    covered: int = 0
    size: float = 0.0
    of_sets: bool = False

    @classmethod
    def of(cls, labels: np.ndarray, outputs: Mapping[str, Any]) -> "Covered":
        """Return the counts of a batch.

        Args:
            labels: Numbers, or those of classes, [rows] or [rows, 1].
            outputs: Of the model by name, with ``LABEL_SET`` or with ``LOW`` and ``HIGH``.
        """
        labels, rows = np.reshape(labels, -1), len(labels)
        if LABEL_SET in outputs:
            sets = outputs[LABEL_SET]
            return cls(rows, int(sets[np.arange(rows), labels.astype(int)].sum()), float(sets.sum()), True)
        low, high = (np.asarray(outputs[name], np.float64).reshape(-1) for name in (LOW, HIGH))
        return cls(rows, int(((low <= labels) & (labels <= high)).sum()), float((high - low).sum()))

    def __add__(self, other: "Covered") -> "Covered":
        sums = self.rows + other.rows, self.covered + other.covered, self.size + other.size
        return Covered(*sums, self.of_sets or other.of_sets)

    def sentence(self, asked: float, fitted_on: int) -> str:
        """Return what was asked for and what was reached, with its confidence interval.

        Args:
            asked: Share of the rows.
            fitted_on: Rows of eval that decided the bounds, whose chance counts as well.
        """
        z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        within = wilson(self.covered, self.rows, z)
        assert within  # there are rows
        share, mean = self.covered / self.rows, self.size / self.rows
        kind, size = ("sets", f"{mean:.3g} classes") if self.of_sets else ("intervals", f"{mean:.4g} wide")
        sentence = (
            f"{kind} for {100 * asked:g} % of the rows: {100 * share:.1f} % reached on test ({100 * CONFIDENCE:g} % "
            f"interval {100 * within[0]:.1f} to {100 * within[1]:.1f} %), {size} on average"
        )
        deviation = math.sqrt(asked * (1 - asked) * (1 / self.rows + 1 / fitted_on))
        if share < asked - z * deviation:
            sentence += "; that is less by more than chance, so test differs from eval"
        return sentence
