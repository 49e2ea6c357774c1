"""Rows that a served model was sent, to be compared with its training data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        predictions: Of the instances, as the server answered; None where the log has none. Empty: it has none at all.
    """

    version: int
    instances: list[dict[str, Any]]
    first: str
    last: str
    others: int
    broken: int
    predictions: Sequence[Any] = ()
