"""Files made to fill memory or to take for ever are refused or read in time and memory of their size."""

import bz2
import gzip
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.data import csv_files, shard_files, shards, table
from pipeline.data.files import format_of
from pipeline.errors import UserError
from tests.bounds import bounded


def read(file: Path) -> list[table.Rows]:
    """Read a file as ExampleGen does."""
    job = shards.Job((("all", str(file)),), str(format_of(str(file))), ("all",), "")
    scan = shards.scan(job.files[0], job)
    if scan.problem:
        raise UserError(scan.problem)
    return [rows for unit in scan.units for rows in shards.read(unit, scan.types)]


def numbers(count: int, value: str) -> pa.Array:
    """One text in every row, which a Parquet file holds once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value]))


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("a,b\n", '5" pipe,3\n'),
        ("a,b\n", '"5 pipe,3\n'),
        ("a,b\n", '"x"y,3\n'),
        ("a,b\n", ',"x"y\n"'),
        ("a,b\n", "1,2,3\n"),
        ("a,b\n", "\n"),
        ("a,b\n", "\r"),
        ("", "\n"),
        ("", "\r"),
        ("", '"\n'),
    ],
)
def test_the_time_to_read_a_file_is_linear_in_its_bad_rows(tmp_path: Path, head: str, line: str):
    took = []
    for rows in (10_000, 40_000):
        file = tmp_path / f"{rows}.csv"
        file.write_text(head + rows * line)
        start = time.process_time()
        try:
            read(file)
        except UserError:
            assert not head
        took.append(time.process_time() - start)
    assert took[1] < max(1, 8 * took[0])


def test_twenty_thousand_columns_are_named_in_a_moment(tmp_path: Path):
    file = tmp_path / "wide.csv"
    file.write_text(",".join(f"c{number}" for number in range(20_000)) + "\n")
    with bounded(1, 100):
        assert len(csv_files.read_header(str(file))) == 20_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x" * (3 << 20) + b",b\n", "no end of its first row in 2 MB"),
        (b"\n" * (3 << 20) + b"a,b\n", "no end of its first row in 2 MB"),
        (b"a,b\n" + b"x" * (17 << 20), "row 1 has no end within 16 MB"),
        (b'a,b\n1,2\n"' + b"x" * (17 << 20), "row 2 has no end within 16 MB"),
    ],
)
def test_a_header_or_row_without_end_is_refused(tmp_path: Path, content: bytes, words: str):
    file = tmp_path / "some.csv"
    file.write_bytes(content)
    with bounded(5, 200), pytest.raises(UserError, match=words):
        read(file)


@pytest.mark.parametrize("name", ["rows.csv.bz2", "text.parquet", "categories.parquet", "lists.parquet"])
def test_few_bytes_that_become_gigabytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    file = tmp_path / name
    if name == "rows.csv.bz2":
        monkeypatch.setattr(table, "ALWAYS_DECODED", 3 << 20)
        file.write_bytes(bz2.compress(b"a,b\n" + b"1,2\n" * (1 << 20)))
    elif name == "lists.parquet":
        offsets = pa.array(np.arange(0, 16_384_001, 1_000, dtype=np.int32))
        lists = pa.ListArray.from_arrays(offsets, numbers(16_384_000, "x" * 1_000))
        parquet.write_table(pa.table({"a": lists}), file, store_schema=False)
    else:
        column = numbers(16_384, "x" * 300_000)
        parquet.write_table(pa.table({"a": column}), file, compression="zstd", store_schema=name != "text.parquet")
        assert file.stat().st_size < 619
    with bounded(20, 600), pytest.raises(UserError, match=rf"{name}: its [\d,]+ bytes hold more than [\d,]+ MB once"):
        read(file)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(np.zeros(100_000_000, np.int8)), "its .* bytes hold more than 381 MB once decoded"),
        (
            pa.ListArray.from_arrays(pa.array([0, 300_000], pa.int32()), numbers(300_000, "x" * 1_000)),
            "row 1: found 286 MB",
        ),
    ],
)
def test_runs_of_a_number_and_rows_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, column: pa.Array, words: str
):
    file = tmp_path / "some.parquet"
    parquet.write_table(pa.table({"a": column}), file, row_group_size=1 << 30, store_schema=False)
    with bounded(5, 400), pytest.raises(UserError, match=words):
        read(file)


def test_large_text_that_repeats_is_written_out_in_parts(tmp_path: Path):
    file = tmp_path / "some.parquet"
    column = numbers(700, "x" * 300_000)
    lists = pa.ListArray.from_arrays(pa.array([0, None, *range(1, 699), 700], pa.int32()), numbers(700, "y"))
    parquet.write_table(pa.table({"a": column, "b": lists}), file, compression="zstd", store_schema=False)
    found = read(file)
    assert max(rows.table.nbytes for rows in found) < 100 << 20
    assert [len(rows.table) for rows in found] == [len(rows.numbers) for rows in found]
    assert [number for rows in found for number in rows.numbers] == list(range(1, 701))
    assert {value.as_py() for value in found[-1].table["a"]} == {"x" * 300_000}
    assert [row for rows in found for row in rows.table["b"].to_pylist()] == lists.cast(
        pa.list_(pa.string())
    ).to_pylist()


def length_of(record: int) -> bytes:
    """The length of a record in a TFRecord file, with its checksum."""
    length = struct.pack("<Q", record)
    checksum = google_crc32c.value(length)
    return length + struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@pytest.mark.parametrize("record", [1 << 30, 1 << 40, (1 << 62) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("name", ["some.tfrecord", "some.tfrecord.gz"])
def test_a_record_of_any_length_does_not_end_the_process(tmp_path: Path, record: int, name: str):
    file = tmp_path / name
    content = length_of(record) + bytes(100)
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with (
        bounded(2, 50),
        pytest.raises(UserError, match=rf"{name}, row 1: found a length of {record:,} bytes; expected"),
    ):
        read(file)


def test_records_that_become_gigabytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table, "ALWAYS_DECODED", 16 << 20)
    file = tmp_path / "some.tfrecord.gz"
    file.write_bytes(gzip.compress((length_of(20 << 20) + bytes((20 << 20) + 4)) * 2))
    with bounded(5, 100), pytest.raises(UserError, match="bytes hold more than 40 MB once decoded"):
        read(file)


def read_with_little_memory(file: str) -> None:
    """Read and write a file's rows with 100 MB more memory than this process has; print the problems."""
    job = shards.Job((("all", file),), "parquet", ("all",), str(Path(file).parent / "out"))
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (100 << 20), taken + (100 << 20)))
    scan = shards.scan(job.files[0], job)
    print(shard_files.write(next(iter(shards.plan(job, [scan]))), job).problem)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit on memory")
def test_memory_that_does_not_suffice_is_a_sentence(tmp_path: Path):
    file = tmp_path / "some.parquet"
    parquet.write_table(pa.table({"a": [np.random.default_rng(0).bytes(1 << 20) * 100] * 2}), file, compression="zstd")
    code = f"from tests.data.test_limits import *; read_with_little_memory({str(file)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "its rows take more memory than this process may have" in done.stdout, done.stderr
