"""Files made to fill memory or to take for ever are refused or read in time and memory of their size."""

import bz2
import gzip
import resource
import struct
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from pipeline.data import csv_files, parquet_files, shard_files, shards, table, tfrecord_files
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


@pytest.mark.slow
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
    def seconds(rows: int) -> float:
        file = tmp_path / f"{rows}.csv"
        file.write_text(head + rows * line)
        start = time.process_time()
        try:
            read(file)
        except UserError:
            assert not head
        return time.process_time() - start

    few, many = (min(seconds(rows) for _ in range(2)) for rows in (10_000, 40_000))
    assert many < max(1, 8 * few)


def test_twenty_thousand_columns_are_named_in_a_moment(tmp_path: Path):
    file = tmp_path / "wide.csv"
    file.write_text(",".join(f"c{number}" for number in range(20_000)) + "\n")
    with bounded(1, 100):
        assert len(csv_files.read_header(str(file))) == 20_000


@pytest.mark.slow
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


@pytest.mark.slow
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


LARGE_TEXT = numbers(16_384, "x" * 32_768)
EACH_ROW = np.arange(16_385)
LARGE_LISTS = pa.LargeListArray.from_arrays(pa.array(EACH_ROW, pa.int64()), LARGE_TEXT)
LISTS = pa.ListArray.from_arrays(pa.array(EACH_ROW, pa.int32()), LARGE_TEXT)
FIXED = pa.DictionaryArray.from_arrays(LARGE_TEXT.indices, pa.array([b"x" * 32_768], pa.binary(32_768)))
BOMB = r"some.parquet: its [\d,]+ bytes hold more than [\d,]+ MB once decoded"
NO_PLACE = r"some.parquet, column 'a': of type .*; expected integers, floats, .*; write its parts as separate"
BOMBS = {
    "bytes of a fixed size": (FIXED, BOMB),
    "lists of bytes of a fixed size": (pa.ListArray.from_arrays(pa.array(EACH_ROW, pa.int32()), FIXED), BOMB),
    "large lists": (LARGE_LISTS, BOMB),
    "lists of a fixed size": (pa.FixedSizeListArray.from_arrays(LARGE_TEXT, 1), BOMB),
    "large text": (LARGE_TEXT.cast(pa.dictionary(pa.int32(), pa.large_string())), BOMB),
    "large bytes": (LARGE_TEXT.cast(pa.dictionary(pa.int32(), pa.large_binary())), BOMB),
    "empty texts": (
        pa.ListArray.from_arrays(
            pa.array([0, 70_000_000], pa.int32()),
            pa.DictionaryArray.from_arrays(np.zeros(70_000_000, np.int8), pa.array([""])),
        ),
        BOMB,
    ),
    "lists of lists": (pa.ListArray.from_arrays(pa.array(EACH_ROW, pa.int32()), LISTS), NO_PLACE),
    "lists of structs": (
        pa.ListArray.from_arrays(pa.array(EACH_ROW, pa.int32()), pa.StructArray.from_arrays([LARGE_TEXT], ["s"])),
        NO_PLACE,
    ),
    "structs": (pa.StructArray.from_arrays([LARGE_TEXT], ["s"]), NO_PLACE),
    "maps": (pa.MapArray.from_arrays(pa.array(EACH_ROW, pa.int32()), LARGE_TEXT, LARGE_TEXT), NO_PLACE),
}


@pytest.mark.slow
@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize(("column", "words"), BOMBS.values(), ids=list(BOMBS))
def test_text_of_no_type_fills_memory_before_it_is_refused(
    tmp_path: Path, column: pa.Array, words: str, store_schema: bool
):
    file = tmp_path / "some.parquet"
    table_of_it = pa.table({"a": column, "other": pa.array(np.zeros(len(column)))})
    parquet.write_table(table_of_it, file, compression="zstd", store_schema=store_schema)
    with bounded(5, 350), pytest.raises(UserError, match=words):
        read(file)


@pytest.mark.parametrize(
    "type_",
    [
        pa.binary(3),
        pa.large_string(),
        pa.large_list(pa.large_string()),
        pa.list_(pa.binary(3)),
        pa.list_(pa.large_binary(), 2),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.decimal128(9, 2)),
        pa.large_list(pa.float32()),
    ],
    ids=str,
)
def test_text_and_lists_of_any_type_are_read(tmp_path: Path, type_: pa.DataType):
    of_list = pa.types.is_fixed_size_list(type_)
    value = Decimal("2.50") if "decimal" in str(type_) else 2.5 if "float" in str(type_) else "abc"
    value = value.encode() if "binary" in str(type_) and isinstance(value, str) else value
    rows = [[value, value], [value, value]] if of_list else [[value], None, [], [value, value]]
    rows = rows if table.is_list(type_) else [value, None, value]
    file = tmp_path / "some.parquet"
    # pyarrow takes "a" for "a.b", too.
    struct = pa.array([{"b": 1}] * len(rows))
    parquet.write_table(pa.table({"a": pa.array(rows, type_), "a_b": struct, "a.b": rows}), file)
    (found,) = parquet_files.read(table.Unit(str(file), "parquet"), ["a"])
    assert found.table.to_pydict() == {"a": rows}


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_text_in_an_encoding_without_limits_is_refused_by_name(tmp_path: Path, encoding: str):
    file = tmp_path / "some.parquet"
    column = pa.table({"a": ["x" * 100_000] * 100})
    parquet.write_table(column, file, use_dictionary=False, column_encoding={"a": encoding})
    with bounded(5, 100), pytest.raises(UserError, match="some.parquet: found text in a delta encoding, which may"):
        read(file)


@pytest.mark.slow
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


def content(tag: bytes, *parts: bytes) -> bytes:
    """A field of a protocol buffer, and its length."""
    whole = b"".join(parts)
    length = len(whole)
    size = bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return tag + bytes([*size, length]) + whole


def feature(name: str, values: bytes) -> bytes:
    return content(b"\x0a", content(b"\x0a", name.encode()), content(b"\x12", values))


MANY_FEATURES = content(b"\x0a", *(feature(f"{number:07d}", b"") for number in range(1_000_000)))
MANY_INTEGERS = content(b"\x0a", feature("a", content(b"\x1a", content(b"\x0a", bytes(100_000_000)))))
MANY_TEXTS = content(b"\x0a", feature("a", content(b"\x0a", b"\x0a\x00" * 50_000_000)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "words"),
    [
        (MANY_FEATURES, "row 2: found more than 20,000 features; expected no more"),
        (MANY_INTEGERS, "row 2: found 762 MB in a row; expected at most 256"),
        (MANY_TEXTS, "row 2: found 286 MB in a row; expected at most 256"),
    ],
    ids=["features", "integers", "texts"],
)
def test_an_example_that_becomes_gigabytes_is_refused_before_it_does(tmp_path: Path, record: bytes, words: str):
    file = tmp_path / "some.tfrecord.gz"
    with tf.io.TFRecordWriter(str(file), "GZIP") as writer:
        writer.write(tf.train.Example().SerializeToString())
        writer.write(record)
    with bounded(5, 450), pytest.raises(UserError, match=rf"some.tfrecord.gz, {words}"):
        read(file)


@pytest.mark.slow
def test_large_records_after_small_ones_are_read_a_few_at_a_time(tmp_path: Path):
    file = tmp_path / "some.tfrecord.gz"
    large = content(b"\x0a", feature("a", content(b"\x0a", content(b"\x0a", bytes(30 << 20)))))
    small = content(b"\x0a", feature("a", content(b"\x0a", content(b"\x0a", b"x"))))
    with tf.io.TFRecordWriter(str(file), "GZIP") as writer:
        for record in (*[small] * 20, *[large] * 5):
            writer.write(record)
    with bounded(10, 450):
        sizes = [rows.table.nbytes for rows in tfrecord_files.read(table.Unit(str(file), "tfrecord"))]
    assert max(sizes) < 64 << 20


@pytest.mark.parametrize("record", [1 << 40, (1 << 64) - 1])
def test_a_length_that_is_a_lie_is_refused_by_who_reads_without_a_scan(tmp_path: Path, record: int):
    file = tmp_path / "some.tfrecord"
    file.write_bytes(length_of(record) + bytes(100))
    with pytest.raises(UserError, match=r"row 1: found a length of"):
        list(tfrecord_files.read(table.Unit(str(file), "tfrecord")))


def read_with_little_memory(file: str) -> None:
    """Read and write a file's rows with 100 MB more memory than this process has; print the problems."""
    job = shards.Job((("all", file),), "parquet", ("all",), str(Path(file).parent / "out"))
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (100 << 20), taken + (100 << 20)))
    scan = shards.scan(job.files[0], job)
    print(shard_files.write(next(iter(shards.plan(job, [scan]))), job).problem)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit on memory")
def test_memory_that_does_not_suffice_is_a_sentence(tmp_path: Path):
    file = tmp_path / "some.parquet"
    parquet.write_table(pa.table({"a": [np.random.default_rng(0).bytes(1 << 20) * 100] * 2}), file, compression="zstd")
    code = f"from tests.data.test_limits import *; read_with_little_memory({str(file)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "its rows take more memory than this process may have" in done.stdout, done.stderr
