"""Files that hold the rows, span by span, here and on a filesystem that Beam reads."""

from pathlib import Path

import pytest

from pipeline.data.files import find, format_of
from pipeline.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "span-2/train/a.csv",
        "span-10/train/a.csv",
        "span-10/train/b.csv",
        "span-2/eval/a.csv",
        "span-10/eval/a.csv",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a,b\n")
    (tmp_path / "span-10/train/.hidden.csv").write_text("")
    (tmp_path / "span-10/train/_SUCCESS").write_text("")
    (tmp_path / "span-x").mkdir()
    (tmp_path / "span-x/a.csv").write_text("")
    return tmp_path


def names(folder: Path, last: int | None) -> dict[str, list[str]]:
    found = find(str(folder), {"train": "span-{SPAN}/train/*", "eval": "span-{SPAN}/eval/*.csv"}, last)
    assert found.span == 10
    return {split: [str(Path(file).relative_to(folder)) for file in files] for split, files in found.by_split.items()}


def test_the_newest_span_is_the_one_of_the_highest_number(folder):
    assert names(folder, 1) == {"train": ["span-10/train/a.csv", "span-10/train/b.csv"], "eval": ["span-10/eval/a.csv"]}


def test_a_rolling_range_takes_several_spans_and_none_takes_all(folder):
    assert names(folder, 2) == names(folder, None)
    assert names(folder, 2)["eval"] == ["span-10/eval/a.csv", "span-2/eval/a.csv"]


def test_a_span_that_one_split_lacks_is_refused(folder):
    (folder / "span-10/eval/a.csv").unlink()
    with pytest.raises(UserError, match=r"no files for the eval split in span 10: .* matches the spans 2 only"):
        names(folder, 1)


def test_a_pattern_that_matches_nothing_is_refused(folder):
    with pytest.raises(UserError, match=r"no files for the test split: nothing matches .*/test/\*; expected .csv"):
        find(str(folder), {"train": "span-2/train/*", "test": "test/*"})


def test_the_format_is_in_the_name():
    assert [format_of(name) for name in ("a.csv", "b/A.CSV.gz", "x.parquet", "x.tfrecords.gz", "x.tfrecord")] == [
        "csv",
        "csv",
        "parquet",
        "tfrecord",
        "tfrecord",
    ]
    assert format_of("data_tfrecord-00000-of-00001.gz") == "tfrecord"
    assert format_of("notes.txt") is None
