"""Stored blocks equal what the decoder returns, whatever features the examples have."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from pipeline.data import blocks
from pipeline.data.examples import serialize
from pipeline.data.shard_files import write_records
from pipeline.data.tfrecord_files import read_records

SCHEMA = """
    feature { name: "text" type: BYTES }
    feature { name: "whole" type: INT }
    feature { name: "nowhere" type: FLOAT }
    feature { name: "rare" type: FLOAT }
"""


def example(**features: list | None) -> bytes:
    made = {}
    for name, values in features.items():
        if values is None:
            made[name] = tf.train.Feature()
        elif name == "text":
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif name == "whole":
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Blocks of other features and types than their neighbours: missing, empty, without a kind, several values."""
    examples = [
        *(example(text=[b"a"], whole=[1], number=[0.5]), example(text=[], whole=[2, 3]), example(whole=None)),
        *(example(text=None, whole=None, number=[]), example(text=None), example(number=[1.0, 2.0])),
        *(example(rare=[2.0], text=["ü".encode()]), example()),
    ]
    path = str(tmp_path / "rows.gz")
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for each in examples:
            writer.write(each)
    return path


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 3)


def decoded(file: str, schema: bytes | None) -> list[pa.RecordBatch]:
    decoder = ExamplesToRecordBatchDecoder(schema)
    return [decoder.DecodeBatch(records) for records in read_records(file, blocks.BLOCK)]


@pytest.mark.parametrize("of_schema", [False, True])
def test_a_file_without_blocks_is_decoded(file, of_schema):
    schema = text_format.Parse(SCHEMA, schema_pb2.Schema()).SerializeToString() if of_schema else None
    assert not blocks.has_blocks(file)
    assert list(blocks.read_blocks(file, schema)) == decoded(file, schema)


ROWS = {
    "text": [[b"a"], None, ["ü".encode(), b""], [], [b"b"], None, [b"c"], None],
    "number": [None, None, None, [0.5], [float("inf")], [1.0, 2.0], [], None],
    "whole": [[1], [-2], [3], [4], [2**62], [6], [7], [8]],
    "a list": [[1, 2], [3, 4], [5, 6], None, None, None, [7], [8]],
    "Ärger": [None] * 8,
}
TYPES = {"text": pa.large_binary(), "number": pa.float32(), "whole": pa.int64(), "a list": pa.int64()}


def written(folder: Path, names: list[str], rows: Sequence[int] = range(8)) -> str:
    """Writes a file of examples with its blocks."""
    columns = {name: pa.array(ROWS[name], pa.list_(TYPES.get(name, pa.int64()))) for name in names}
    table, chosen = pa.table(columns), np.array(rows, int)
    file = str(folder / "Split-train/rows.gz")
    write_records(serialize(table.take(chosen).select(sorted(names))), file, str(folder))
    assert blocks.write_blocks(file, table, chosen) == str(folder / "blocks/Split-train/rows.gz.arrow")
    return file


@pytest.mark.parametrize("names", [[*ROWS], ["whole"], ["text", "number"]])
@pytest.mark.parametrize("rows", [range(8), [5, 3, 1, 0, 7, 2], [4], []])
@pytest.mark.parametrize("of_schema", [False, True])
def test_stored_blocks_equal_those_of_the_decoder(names, rows, of_schema, tmp_path, monkeypatch):
    file = written(tmp_path, names, rows)
    schema = text_format.Parse(SCHEMA, schema_pb2.Schema()).SerializeToString() if of_schema else None
    expected = decoded(file, schema)
    monkeypatch.setattr(blocks, "read_records", lambda *_: pytest.fail("the file is decoded"))
    found = list(blocks.read_blocks(file, schema))
    assert [batch.schema for batch in found] == [batch.schema for batch in expected]
    assert found == expected


def test_another_type_than_that_of_the_schema_is_the_error_of_the_decoder(tmp_path):
    file = written(tmp_path, ["whole"])
    schema = text_format.Parse('feature { name: "whole" type: FLOAT }', schema_pb2.Schema()).SerializeToString()
    with pytest.raises(RuntimeError) as expected:
        decoded(file, schema)
    with pytest.raises(RuntimeError) as found:
        list(blocks.read_blocks(file, schema))
    assert str(found.value) == str(expected.value)


def test_a_file_in_a_bucket_has_no_blocks():
    assert not blocks.has_blocks("gs://bucket/Split-train/rows.gz")


def test_a_file_whose_blocks_cannot_be_written_is_decoded(tmp_path):
    (tmp_path / "blocks").touch()  # in the way of the folder
    table = pa.table({"whole": pa.array(ROWS["whole"], pa.list_(pa.int64()))})
    file = str(tmp_path / "Split-train/rows.gz")
    write_records(serialize(table), file, str(tmp_path))
    assert blocks.write_blocks(file, table, np.arange(8)) is None
    assert list(blocks.read_blocks(file)) == decoded(file, None)


def test_a_file_that_changed_after_its_blocks_is_decoded(tmp_path):
    file = written(tmp_path, ["whole"])
    assert blocks.has_blocks(file)
    with tf.io.TFRecordWriter(file) as writer:
        writer.write(example(whole=[7]))
    later = Path(blocks.blocks_file(file)).stat().st_mtime_ns + 10**9
    os.utime(file, ns=(later, later))
    (batch,) = blocks.read_blocks(file)
    assert batch.column("whole").to_pylist() == [[7]]
