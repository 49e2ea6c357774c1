"""Decide where the parsed examples of a split are kept between epochs: in memory, on disk, or not at all."""

import contextlib
import gzip
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import tensorflow as tf

# The share of what is free that a split may take.
SHARE_OF_MEMORY = 0.4
SHARE_OF_DISK = 0.5
# Records looked at to estimate the size of a split.
RECORDS_SAMPLED = 10_000
CGROUP, GROUPS_OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# By controller, of version 2 and 1: files with the limit and what is used, and the line of memory.stat with idle files.
# https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
LIMITS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def estimate(files: Sequence[str]) -> int:
    """Estimate how many records files hold, from their sizes and the first records of the first."""
    size = sum(tf.io.gfile.stat(file).length for file in files)
    with tf.io.gfile.GFile(files[0], "rb") as stored:
        stream = gzip.GzipFile(fileobj=stored) if gzipped(files) else stored
        records = 0
        while records < RECORDS_SAMPLED:
            header = stream.read(12)  # length, 8 bytes, and its checksum
            if len(header) < 12:
                break
            stream.read(int.from_bytes(header[:8], "little") + 4)
            records += 1
        return math.ceil(records * size / max(stored.tell(), 1))


def gzipped(files: Sequence[str]) -> bool:
    """Return whether the TFRecords are compressed; a split's files are all the same."""
    return files[0].endswith(".gz")


def choose_cache(size: int, folder: str) -> tuple[str, str]:
    """Return the cache for a split of that many bytes, and the reason."""
    memory, disk = free_memory(), shutil.disk_usage(folder).free
    if size <= memory * SHARE_OF_MEMORY:
        return "memory", f"{_mib(size)} of {_mib(memory)} free"
    if size <= disk * SHARE_OF_DISK:
        return "disk", f"{_mib(size)} is more than {SHARE_OF_MEMORY:.0%} of {_mib(memory)} free memory"
    return "none", f"{_mib(size)} is too much for {_mib(memory)} of free memory and {_mib(disk)} of free disk"


def free_memory() -> int:
    """Return the free bytes of the machine, or those that the limit of a container or a control group leaves."""
    return max(0, min([psutil.virtual_memory().available, *_left_by_limits()]))


def _left_by_limits() -> Iterator[int]:
    """Yield what the limit of each control group that this process is in leaves, of both versions of Linux's.

    Files in the page cache that nobody has used of late are free, as for Kubernetes' "working set".
    """
    groups = (
        GROUPS_OF_PROCESS.read_text().splitlines() if GROUPS_OF_PROCESS.is_file() else []
    )  # there are none on macOS
    for group in groups:
        _, controllers, path = group.split(":", 2)  # "0::/a/b", of version 1 "4:memory:/a/b"
        if controllers not in LIMITS:
            continue
        limit, used, idle = LIMITS[controllers]
        root = CGROUP / controllers
        folder = root / path.lstrip("/")
        # The groups above have limits, too. In a container the path may be that outside it, and the root is its own.
        for place in (folder, *(above for above in folder.parents if above.is_relative_to(root))):
            with contextlib.suppress(OSError, ValueError):  # "max", or no such file
                of_group = int((place / limit).read_text()), int((place / used).read_text())
                statistics = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
                yield of_group[0] - of_group[1] + int(statistics.get(idle, 0))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
