"""Samples of examples: evenly taken from each split, from any number of files."""

import itertools
import json
from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.data import sample, shard_files
from pipeline.data.sample import Sample

ROWS = {"train": [70, 0, 31], "eval": [13], "test": [9, 8]}  # by file
THERE = {split: sum(files) for split, files in ROWS.items()}


@pytest.fixture
def examples(tmp_path: Path) -> str:
    numbers = itertools.count()
    for split, files in ROWS.items():
        folder = tmp_path / "examples" / f"Split-{split}"
        folder.mkdir(parents=True)
        for place, rows in enumerate(files):
            with tf.io.TFRecordWriter(str(folder / f"data-{place:05d}.gz"), "GZIP") as writer:
                for number in itertools.islice(numbers, rows):
                    writer.write(str(number).encode())
    return str(tmp_path / "examples")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (2, {"train": 2, "eval": 1, "test": 1}),
        (20, {"train": 15, "eval": 2, "test": 3}),
        (66, {"train": 51, "eval": 7, "test": 9}),
        (130, {"train": 100, "eval": 13, "test": 17}),
        (131, THERE),
        (500, THERE),
    ],
)
def test_sample_takes_rows_evenly_from_each_split(rows, expected, examples, tmp_path):
    taken = sample.write(Sample(examples, rows), str(tmp_path / "to"))
    found = {
        split: [int(row) for row in tf.data.TFRecordDataset(files, "GZIP").as_numpy_iterator()]
        for split in ROWS
        for files in [sorted(map(str, (tmp_path / "to" / f"Split-{split}").iterdir()))]
    }
    assert taken == expected == {split: len(numbers) for split, numbers in found.items()}
    first = 0
    for split, numbers in found.items():
        assert set(numbers) <= set(range(first, first + THERE[split]))
        gaps = {later - earlier for earlier, later in itertools.pairwise([*numbers, numbers[0] + THERE[split]])}
        assert max(gaps) - min(gaps) <= 1
        first += THERE[split]


def test_rows_are_counted_from_the_summary_or_the_records(examples):
    assert sample.count(examples) == THERE
    Path(examples, shard_files.SUMMARY).write_text(json.dumps({"rows": {**THERE, "eval": 14}}))
    assert sample.count(examples)["eval"] == 14
