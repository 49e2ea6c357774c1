"""Rows that a served model was sent, and the report on how they compare with the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.validation.findings import Finding

WITHIN, CROSSED = 0, 4
# Newest rows that are judged, and the least to judge by.
ROWS, MIN_ROWS = 100_000, 1_000


@dataclass(frozen=True)
class RequestRows:
    """Rows of a request log that one version answered.

    Attributes:
        version: Of the model.
        instances: The newest ones, oldest first.
        first: Time of the oldest.
        last: Time of the newest.
        others: Rows of other versions between them.
        broken: Lines that are no JSON, such as the last one of a server that was killed.
    """

    version: int
    instances: list[dict[str, Any]]
    first: str
    last: str
    others: int
    broken: int


def lines_of(requests: RequestRows, findings: Sequence[Finding]) -> list[str]:
    """Return the report: the rows compared, the findings, and the features that crossed a limit."""
    more = f", {requests.others:,} rows of other versions passed over" if requests.others else ""
    more += f", {requests.broken:,} lines that are no row" if requests.broken else ""
    lines = [
        f"{len(requests.instances):,} rows of version {requests.version}, {requests.first} to {requests.last}{more}"
    ]
    for finding in findings:
        word = "crossed" if finding.severity == "stop" else "warning"
        lines += [f"  {word}  {finding}", f"           {finding.remedy}"]
    stops = list(dict.fromkeys(finding.feature for finding in findings if finding.severity == "stop"))
    return [*lines, f"crossed: {', '.join(stops)}" if stops else "within the limits of the schema"]
