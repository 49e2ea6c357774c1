"""Files on this machine and in a bucket behave alike."""

import contextlib
import gzip
from pathlib import Path

import pytest
from pyarrow import parquet

from pipeline import filesystem
from pipeline.data.files import open_decompressed
from tests.fakes.buckets import fake_buckets


@pytest.fixture(params=["here", "gs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "here":
        return str(tmp_path / "bucket")
    fake_buckets(monkeypatch, tmp_path)
    return "gs://bucket"


def test_what_is_written_is_read(folder):
    filesystem.write(f"{folder}/a/b.txt", "tenjō")
    assert filesystem.read_text(f"{folder}/a/b.txt") == "tenjō"
    assert filesystem.read_bytes(f"{folder}/a/b.txt") == "tenjō".encode()
    assert filesystem.size(f"{folder}/a/b.txt") == 6
    assert filesystem.exists(f"{folder}/a/b.txt")
    assert not filesystem.exists(f"{folder}/a/c.txt")


def test_a_file_appears_whole_or_not_at_all(folder, tmp_path):
    with contextlib.suppress(ZeroDivisionError), filesystem.new_file(f"{folder}/a.txt") as path:
        Path(path).write_text("half")
        1 / 0  # noqa: B018
    assert not filesystem.exists(f"{folder}/a.txt")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]

    filesystem.write(f"{folder}/a.txt", "old")
    with filesystem.new_file(f"{folder}/a.txt") as path:
        Path(path).write_text("new")
        assert filesystem.read_text(f"{folder}/a.txt") == "old"
    assert filesystem.read_text(f"{folder}/a.txt") == "new"


def test_an_unfinished_file_lies_where_no_reader_looks(tmp_path):
    with filesystem.new_file(tmp_path / "split/a.gz", tmp_path / "_partial") as path:
        Path(path).write_text("x")
        assert list((tmp_path / "split").iterdir()) == []
    assert [file.name for file in (tmp_path / "split").iterdir()] == ["a.gz"]


def test_a_star_stands_for_text_in_one_name(folder):
    for name in ("7/manifest.json", "10/manifest.json", "10/deep/manifest.json", "10/other.json"):
        filesystem.write(f"{folder}/{name}", "{}")
    found = filesystem.find_files(folder, "*/manifest.json")
    assert found == [f"{folder}/10/manifest.json", f"{folder}/7/manifest.json"]
    assert filesystem.find_files(f"{folder}/none", "*") == []


def test_a_compressed_file_is_read_as_what_it_holds(folder):
    filesystem.write(f"{folder}/a.csv.gz", gzip.compress(b"a,b\n1,2\n"))
    with open_decompressed(f"{folder}/a.csv.gz") as stream:
        assert stream.read() == b"a,b\n1,2\n"


def test_a_part_of_a_file_is_read(folder, tmp_path):
    import pyarrow as pa

    parquet.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "t.parquet")
    filesystem.write(f"{folder}/t.parquet", (tmp_path / "t.parquet").read_bytes())
    with filesystem.open_file(f"{folder}/t.parquet") as stream:
        assert parquet.ParquetFile(stream).metadata.num_rows == 3
