"""Rows that a served model was asked for, and the sentences on how they compare with the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.validation.findings import Finding

WITHIN, CROSSED = 0, 4
# Newest rows that are judged, and the least to judge by.
ROWS, MIN_ROWS = 100_000, 1_000
FINDINGS = "findings.json"


@dataclass(frozen=True)
class Asked:
    """Rows of a request log, of one version.

    Attributes:
        version: That answered them.
        instances: The newest ones, oldest first.
        first: Time of the oldest.
        last: Time of the newest.
        others: Rows of other versions between them.
        broken: Lines that are no JSON, as a server leaves one that was killed.
    """

    version: int
    instances: list[dict[str, Any]]
    first: str
    last: str
    others: int
    broken: int


def lines_of(asked: Asked, found: Sequence[Finding]) -> list[str]:
    """What was compared and what came of it, for people."""
    more = f", {asked.others:,} rows of other versions passed over" if asked.others else ""
    more += f", {asked.broken:,} lines that are no row" if asked.broken else ""
    lines = [f"{len(asked.instances):,} rows of version {asked.version}, {asked.first} to {asked.last}{more}"]
    for one in found:
        lines += [f"  {'crossed' if one.severity == 'stop' else 'warning'}  {one}", f"           {one.remedy}"]
    stops = list(dict.fromkeys(one.feature for one in found if one.severity == "stop"))
    return [*lines, f"crossed: {', '.join(stops)}" if stops else "within the limits of the schema"]
