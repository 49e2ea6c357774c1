"""A request to one of the services that ``rest`` stands in for, and its refusal."""

from dataclasses import dataclass
from typing import Any


class Refused(Exception):
    """An error as Google's APIs write it."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True)
class Asked:
    """A request to one of the services; ``query`` as parse_qs returns it."""

    method: str
    query: dict[str, list[str]]
    body: dict[str, Any]

    def one(self, name: str, default: str = "") -> str:
        """A value of the query."""
        return self.query.get(name, [default])[0]
