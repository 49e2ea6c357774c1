"""Rows of a request log, to compare with the training data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WITHIN, CROSSED = 0, 4  # exit codes
# Newest rows that are compared, and the fewest.
ROWS, MIN_ROWS = 100_000, 1_000


@dataclass(frozen=True)
class RequestRows:
    """Rows that one version of a model answered, oldest first, with the times of the first and the last."""

    version: int
    instances: list[dict[str, Any]]
    first: str
    last: str
    others: int  # rows of other versions between them
    broken: int  # lines that are not JSON, such as the last one of a killed server
    predictions: Sequence[Any] = ()  # of the instances, or None; empty: the log has no predictions
