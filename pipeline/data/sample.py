"""Take part of the examples that a step has written, evenly from all splits."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline import filesystem
from pipeline.data import shard_files
from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError
from pipeline.settings.config import SPLITS

BLOCK = 1_000


@dataclass(frozen=True)
class Sample:
    """A number of rows of some examples.

    Attributes:
        examples: Folder that the step has written.
        there: Its rows by split.
        rows: How many to take; all, if there are fewer.
        made: When they were written, where that can change.
    """

    examples: str
    there: Mapping[str, int]
    rows: int
    made: str = ""


def count(examples: str) -> dict[str, int]:
    """Return the rows of examples by split; of transformed ones, without those that were not."""
    if filesystem.exists(f"{examples}/{shard_files.SUMMARY}"):
        return dict(shard_files.read_summary(examples)["rows"])
    # Transform has not counted them, nor has TFX's own ExampleGen, which reads BigQuery.
    return {
        split: sum(len(block) for file in files for block in read_records(file, BLOCK))
        for split in SPLITS
        if (files := _files(examples, split))
    }


def shares(sample: Sample) -> dict[str, int]:
    """Return how many of the rows are of each split.

    Raises:
        UserError: of a split there is none.
    """
    found, before, of = {}, 0, sum(sample.there.values())
    for split in _splits(sample):
        after = before + sample.there[split]
        found[split] = _taken(after, sample.rows, of) - _taken(before, sample.rows, of)
        before = after
    if empty := [split for split, rows in found.items() if sample.there[split] and not rows]:
        enough = max(-(-of // sample.there[split]) for split in empty)
        raise UserError(
            f"a sample of {sample.rows:,} of {of:,} rows has none of {' and '.join(empty)}; take {enough:,} or more"
        )
    return found


def write(sample: Sample, to: str) -> None:
    """Write the sample as ExampleGen writes examples, a file for each split.

    Raises:
        UserError: of a split there is none.
    """
    shares(sample)
    seen, of = 0, sum(sample.there.values())

    def chosen(split: str) -> Iterator[bytes]:
        nonlocal seen
        for file in _files(sample.examples, split):
            for records in read_records(file, BLOCK):
                for place, record in enumerate(records, seen):
                    if _taken(place + 1, sample.rows, of) > _taken(place, sample.rows, of):
                        yield record
                seen += len(records)

    for split in _splits(sample):
        shard_files.write_records(chosen(split), f"{to}/Split-{split}/data_tfrecord-00000-of-00001.gz", to)
    if not filesystem.is_remote(to):
        shutil.rmtree(f"{to}/{shard_files.PARTIAL}", ignore_errors=True)


def _splits(sample: Sample) -> list[str]:
    """Return the splits in an order that is always the same: between two of them it decides about a row."""
    return [split for split in SPLITS if split in sample.there]


def _files(examples: str, split: str) -> list[str]:
    return sorted(filesystem.find_files(examples, f"Split-{split}/*"))


def _taken(seen: int, rows: int, of: int) -> int:
    """Return how many rows have been taken once so many have been seen."""
    return seen * min(rows, of) // of
