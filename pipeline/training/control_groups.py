"""Find how much of the machine this process may use: a container, or another control group of Linux, may have limits.

Files of version 2 and 1: https://docs.kernel.org/admin-guide/cgroup-v2.html,
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html, https://docs.kernel.org/scheduler/sched-bwc.html
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT, GROUPS_OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_memory() -> int:
    """Return the free bytes of the machine, or those that the limits leave.

    Files in the page cache that were not used recently count as free, as for Kubernetes' "working set".
    """
    free = psutil.virtual_memory().available
    of_version_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    groups = [(folder, "memory.max", "memory.current", "inactive_file") for folder in _folders("")]
    groups += [(folder, *of_version_1) for folder in _folders("memory")]
    for folder, limit, used, idle in groups:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            free = min(free, left + int(statistics.get(idle, 0)))
    return max(0, free)


def usable_cores() -> float:
    """Return the cores that this process may use: its affinity, or the limits, which may be fractions."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for folder in _folders(""):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max 100000"
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            cores = min(cores, quota / period)
    for folder in _folders("cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            cores = min(cores, quota / period) if quota > 0 else cores  # -1: no limit
    return cores


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in, and of those above, whose limits count too.

    Args:
        controller: Of version 1, such as "memory"; "" for version 2.
    """
    # There are none on macOS.
    groups = GROUPS_OF_PROCESS.read_text().splitlines() if GROUPS_OF_PROCESS.is_file() else []
    for group in groups:
        _, controllers, path = group.split(":", 2)  # "0::/a/b", of version 1 "4:cpu,cpuacct:/a/b"
        if controller in controllers.split(","):
            root = ROOT / controllers
            folder = root / path.lstrip("/")
            # In a container the path may be that outside it; the root is the container's own then.
            yield from (folder, *(above for above in folder.parents if above.is_relative_to(root)))
