"""Result of one check of what a run needs."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "wrong", "unsure"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        state: "ok", "wrong", or "unsure" when it cannot be told or is no more than a warning; that does not stop a run.
        text: What was found, and expected.
        remedy: What to do; empty when there is nothing.
        subject: What was checked, such as "bucket".
    """

    state: State
    text: str
    remedy: str = ""
    subject: str = ""
