"""Measure how the wall time of a training divides into parts."""

import contextlib
import time
from collections.abc import Iterator, Mapping

# Part of what no other part is about.
PYTHON = "python"


class Stopwatch:
    """Seconds by part; at every moment one part runs, so that their sum is the time since the start.

    Attributes:
        part: The part that runs now.
    """

    def __init__(self) -> None:
        self.part = PYTHON
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the time of a block as that of a part, without what a block inside it measures as another."""
        before = self._switch(part)
        try:
            yield
        finally:
            self._switch(before)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every part up to now."""
        self._switch(self.part)
        return dict(self._seconds)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of the same training in a process before this one."""
        for part, more in seconds.items():
            self._seconds[part] = self._seconds.get(part, 0.0) + more

    def _switch(self, part: str) -> str:
        """Let another part run; return the one before."""
        now = time.perf_counter()
        before = self.part
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self.part, self._since = part, now
        return before
