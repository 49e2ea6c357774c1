"""Bounds of a case: processor time and memory."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

MEMORY = Path("/proc/self")  # of Linux


@contextlib.contextmanager
def bounded(seconds: float, megabytes: int) -> Iterator[None]:
    """Fail where the block takes more processor time, or more memory at once beyond what was taken before."""
    pa.default_memory_pool().release_unused()
    before = _peak(reset=True)
    start = time.process_time()
    yield
    took, more = time.process_time() - start, (_peak() - before) >> 10
    assert took < seconds, f"took {took:.1f} s"
    assert more < megabytes, f"took {more:,} MB more than before"


def _peak(reset: bool = False) -> int:
    """Return the most kilobytes of this process in memory since it was last reset; 0 where the system does not tell."""
    if not (MEMORY / "clear_refs").exists():
        return 0
    if reset:
        (MEMORY / "clear_refs").write_text("5")
    (line,) = (line for line in (MEMORY / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])
