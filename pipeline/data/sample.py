"""Sample the examples that a step has written, evenly from each split."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline import filesystem
from pipeline.data import shard_files
from pipeline.data.tfrecord_files import read_records
from pipeline.settings.config import SPLITS

BLOCK = 1_000


@dataclass(frozen=True)
class Sample:
    """A number of rows (or all) of the examples in a folder; ``made`` tells later examples in that folder apart."""

    examples: str
    rows: int
    made: str = ""


def count(examples: str) -> dict[str, int]:
    """Return the number of rows by split; of transformed examples, only of the transformed splits."""
    if filesystem.exists(f"{examples}/{shard_files.SUMMARY}"):
        return dict(shard_files.read_summary(examples)["rows"])
    # Neither Transform nor TFX's ExampleGen for BigQuery writes a summary.
    return {
        split: sum(len(records) for file in files for records in read_records(file, BLOCK))
        for split in SPLITS
        if (files := _files(examples, split))
    }


def shares(there: Mapping[str, int], rows: int) -> dict[str, int]:
    """Return how many rows to take from each split, in proportion to its rows, and at least one if it has any."""
    total = sum(there.values())
    return {split: min(number, max(1, round(rows * number / total))) for split, number in there.items()}


def write(sample: Sample, to: str) -> dict[str, int]:
    """Write a sample as ExampleGen does, one file for each split; return the rows by split."""
    there = count(sample.examples)
    taken = shares(there, sample.rows)
    for split, number in taken.items():
        records = _evenly(_files(sample.examples, split), number, there[split])
        shard_files.write_records(records, f"{to}/Split-{split}/data_tfrecord-00000-of-00001.gz", to)
    if not filesystem.is_remote(to):
        shutil.rmtree(f"{to}/{shard_files.PARTIAL}", ignore_errors=True)
    return taken


def _files(examples: str, split: str) -> list[str]:
    return sorted(filesystem.find_files(examples, f"Split-{split}/*"))


def _evenly(files: Sequence[str], number: int, total: int) -> Iterator[bytes]:
    """Yield ``number`` records of files that have ``total``."""
    records = (record for file in files for block in read_records(file, BLOCK) for record in block)
    return (record for place, record in enumerate(records) if place * number % total < number)
