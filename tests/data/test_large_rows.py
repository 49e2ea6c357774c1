"""Rows of many megabytes, such as images, are read a few at a time."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from pipeline.data import parquet_files, tfrecord_files

ROWS = [os.urandom(1 << 20) * 24 for _ in range(3)]  # more than two do not fit into what is read at once


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_large_records_come_in_small_blocks(tmp_path: Path, compression: str):
    file = str(tmp_path / "images.tfrecord")
    with tf.io.TFRecordWriter(file, compression) as writer:
        for row in ROWS:
            writer.write(row)
    blocks = list(tfrecord_files.read_records(file, 4_096))
    assert list(map(len, blocks)) == [2, 1]
    assert [row for block in blocks for row in block] == ROWS


@pytest.mark.slow
def test_large_parquet_rows_come_in_small_batches(tmp_path: Path):
    file = str(tmp_path / "images.parquet")
    parquet.write_table(pa.table({"image": ROWS}), file)
    _, (unit,) = parquet_files.scan(file)
    batches = list(parquet_files.read(unit))
    assert [batch.table.num_rows for batch in batches] == [2, 1]
    assert [row for batch in batches for row in batch.table["image"].to_pylist()] == ROWS
    assert [number for batch in batches for number in batch.numbers] == [1, 2, 3]


def test_records_that_hold_nothing_are_read(tmp_path: Path):
    file = str(tmp_path / "empty.tfrecord")
    with tf.io.TFRecordWriter(file) as writer:
        for _ in range(3):
            writer.write(b"")
    assert list(tfrecord_files.read_records(file, 2)) == [[b"", b""], [b""]]


def test_parquet_columns_come_in_any_order_that_is_asked_for(tmp_path: Path):
    file = str(tmp_path / "table.parquet")
    parquet.write_table(pa.table({"name": ["a", "b"], "age": [1, 2]}), file)
    _, (unit,) = parquet_files.scan(file)
    (rows,) = parquet_files.read(unit, ["age", "name"])
    assert rows.table.select(["age", "name"]).to_pylist() == [{"age": 1, "name": "a"}, {"age": 2, "name": "b"}]
