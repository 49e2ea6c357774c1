"""Measure how the wall time of a training divides into parts."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

# Part of what no other part is about.
PYTHON = "python"


class Stopwatch:
    """Seconds by part; at every moment one part runs, so that their sum is the time since the start.

    Attributes:
        part: The part that runs now.
        times: How often each part began.
    """

    def __init__(self) -> None:
        self.part = PYTHON
        self.times: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the time of a block for a part, without what a block inside it measures for another part."""
        self.times[part] += 1
        before = self._switch(part)
        try:
            yield
        finally:
            self._switch(before)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every part up to now."""
        self._switch(self.part)
        return dict(self._seconds)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"seconds": self.seconds(), "times": dict(self.times)}

    def add(self, state: dict[str, Any]) -> None:
        """Add the state of the same training in a process before this one."""
        self.times.update(state.get("times", {}))
        for part, seconds in state.get("seconds", {}).items():
            self._add(part, seconds)

    def move(self, seconds: float, part: str, to: str) -> None:
        """Count seconds of a part, which another clock measured, as those of another part."""
        seconds = min(seconds, self._seconds.get(part, 0.0))
        self._add(part, -seconds)
        self._add(to, seconds)

    def _add(self, part: str, seconds: float) -> None:
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    def _switch(self, part: str) -> str:
        """Let another part run; return the one before."""
        now = time.perf_counter()
        before = self.part
        self._add(before, now - self._since)
        self.part, self._since = part, now
        return before
