"""Decide where the parsed examples of a split are kept between epochs: in memory, on disk, or not at all."""

import gzip
import math
import shutil
from collections.abc import Sequence

import tensorflow as tf

from pipeline.training.control_groups import free_memory

# The share of what is free that a split may take.
SHARE_OF_MEMORY = 0.4
SHARE_OF_DISK = 0.5
# Records looked at to estimate the size of a split.
RECORDS_SAMPLED = 10_000


def find(patterns: Sequence[str]) -> list[str]:
    """Return the files of a split, as in ``fn_args.train_files``, in the order of their names."""
    return sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))


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


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
