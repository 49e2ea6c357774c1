"""The rows of a sample: exactly as many as asked for, evenly taken of each split, whatever files they lie in."""

import itertools
import json
from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.data import sample, shard_files
from pipeline.data.sample import Sample
from pipeline.errors import UserError

ROWS = {"train": [70, 0, 31], "eval": [13], "test": [9, 8]}  # by file
THERE = {split: sum(files) for split, files in ROWS.items()}
ALL = 131


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
@pytest.mark.parametrize("rows", [11, 20, 65, 66, 130, 131, 500])
def test_a_sample_has_the_rows_asked_for_evenly_from_all(rows, examples, tmp_path):
    taken = Sample(examples, dict(sorted(THERE.items())), rows)  # as JSON with sorted keys gives it back
    sample.write(taken, str(tmp_path / "to"))
    found = {
        split: [int(row) for row in tf.data.TFRecordDataset(files, "GZIP").as_numpy_iterator()]
        for split in ROWS
        for files in [sorted(map(str, (tmp_path / "to" / f"Split-{split}").iterdir()))]
    }
    numbers = [number for split in found.values() for number in split]
    assert len(numbers) == min(rows, ALL)
    gaps = {later - earlier for earlier, later in itertools.pairwise([-1, *numbers])}
    assert 1 <= min(gaps) <= max(gaps) <= min(gaps) + 1
    ends = {"train": range(101), "eval": range(101, 114), "test": range(114, 131)}
    assert all(number in ends[split] for split, several in found.items() for number in several)
    assert (
        sample.shares(taken)
        == sample.shares(Sample(examples, THERE, rows))
        == {split: len(several) for split, several in found.items()}
    )


def test_a_sample_without_rows_of_a_split_is_refused_with_how_many_it_takes(examples, tmp_path):
    with pytest.raises(UserError, match="a sample of 2 of 131 rows has none of eval; take 11 or more"):
        sample.write(Sample(examples, THERE, 2), str(tmp_path / "to"))
    assert all(sample.shares(Sample(examples, THERE, 11)).values())


def test_rows_are_counted_by_the_summary_or_one_by_one(examples):
    assert sample.count(examples) == THERE
    Path(examples, shard_files.SUMMARY).write_text(json.dumps({"rows": {**THERE, "eval": 14}}))
    assert sample.count(examples)["eval"] == 14
