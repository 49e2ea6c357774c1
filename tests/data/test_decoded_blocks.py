"""Blocks that are kept are those of the decoder, whatever features the examples have."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from pipeline.data import decoded_blocks
from pipeline.data.decoded_blocks import are_kept, keep_decoded, read_blocks, were_kept
from pipeline.data.examples import serialize
from pipeline.data.shard_files import write_records
from pipeline.data.tfrecord_files import read_records

AT_ONCE = 3
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


def decoded(file: str, schema: bytes | None) -> list[pa.RecordBatch]:
    decoder = ExamplesToRecordBatchDecoder(schema)
    return [decoder.DecodeBatch(records) for records in read_records(file, AT_ONCE)]


@pytest.mark.parametrize("of_schema", [False, True])
def test_they_are_those_of_the_decoder_the_first_time_and_again(file, of_schema, monkeypatch):
    schema = text_format.Parse(SCHEMA, schema_pb2.Schema()).SerializeToString() if of_schema else None
    expected = decoded(file, schema)
    with keep_decoded():
        for _ in range(2):
            found = list(read_blocks(file, AT_ONCE, schema))
            assert [batch.schema for batch in found] == [batch.schema for batch in expected]
            assert found == expected
            # From now on nobody reads the file.
            monkeypatch.setattr(decoded_blocks, "read_records", lambda *_: pytest.fail("read again"))


ROWS = {
    "text": [[b"a"], None, ["ü".encode(), b""], [], [b"b"], None, [b"c"], None],
    "number": [None, None, None, [0.5], [float("inf")], [1.0, 2.0], [], None],
    "whole": [[1], [-2], [3], [4], [2**62], [6], [7], [8]],
    "a list": [[1, 2], [3, 4], [5, 6], None, None, None, [7], [8]],
    "Ärger": [None] * 8,
}
TYPES = {"text": pa.large_binary(), "number": pa.float32(), "whole": pa.int64(), "a list": pa.int64()}


@pytest.mark.slow
@pytest.mark.parametrize("names", [[*ROWS], ["whole"], ["text", "number"]])
@pytest.mark.parametrize("rows", [range(8), [5, 3, 1, 0, 7, 2], [4], []])
def test_blocks_of_what_was_written_are_those_of_the_decoder(names, rows, tmp_path, monkeypatch):
    columns = {name: pa.array(ROWS[name], pa.list_(TYPES.get(name, pa.int64()))) for name in names}
    table, rows = pa.table(columns), np.array(rows, int)
    file = str(tmp_path / "rows.gz")
    chosen = table.take(rows)
    write_records(serialize(chosen.select(sorted(names))), file, str(tmp_path))
    expected = decoded(file, None)
    with keep_decoded():
        decoded_blocks.keep_written(file, table, rows, AT_ONCE)
        monkeypatch.setattr(decoded_blocks, "read_records", lambda *_: pytest.fail("read again"))
        found = list(read_blocks(file, AT_ONCE))
    assert [batch.schema for batch in found] == [batch.schema for batch in expected]
    assert found == expected


def test_where_nothing_is_kept_or_nothing_can_be_what_is_written_is_not_kept(tmp_path):
    table = pa.table({"x": pa.array([[1]], pa.list_(pa.int64()))})
    file = str(tmp_path / "rows.gz")
    write_records(serialize(table), file, str(tmp_path))
    decoded_blocks.keep_written(file, table, np.array([0]), AT_ONCE)
    with keep_decoded(str(tmp_path / "kept")):
        decoded_blocks.keep_written("gs://bucket/rows.gz", table, np.array([0]), AT_ONCE)
        assert not (tmp_path / "kept").exists()
        assert not were_kept(file, AT_ONCE)


def test_another_type_than_the_schemas_is_the_decoders_error(file):
    schema = text_format.Parse('feature { name: "whole" type: FLOAT }', schema_pb2.Schema()).SerializeToString()
    with pytest.raises(RuntimeError) as expected:
        decoded(file, schema)
    with keep_decoded(), pytest.raises(RuntimeError) as found:
        list(read_blocks(file, AT_ONCE, schema))
    assert str(found.value) == str(expected.value)


def test_a_file_that_has_changed_is_decoded_anew(file):
    with keep_decoded():
        assert sum(batch.num_rows for batch in read_blocks(file, AT_ONCE)) == 8
        with tf.io.TFRecordWriter(file) as writer:
            writer.write(example(whole=[7]))
        os.utime(file, (1, 1))
        (batch,) = read_blocks(file, AT_ONCE)
        assert batch.column("whole").to_pylist() == [[7]]


@pytest.mark.parametrize("limit", ["MOST_BYTES", "SHARE_OF_DISK"])
def test_what_has_no_room_is_decoded_each_time(file, limit, tmp_path, monkeypatch):
    monkeypatch.setattr(decoded_blocks, limit, 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with keep_decoded():
        for _ in range(2):
            assert list(read_blocks(file, AT_ONCE)) == decoded(file, None)
            assert not are_kept(file, AT_ONCE)
            assert not [path for path in tmp_path.glob("decoded-*/**/*") if path.is_file()]
    assert not list(tmp_path.glob("decoded-*"))


def test_nothing_is_kept_elsewhere(file, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert list(read_blocks(file, AT_ONCE)) == decoded(file, None)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.gz"]
    assert not are_kept(file, AT_ONCE)


def test_those_of_a_window_stay_for_the_next_run_and_a_damaged_one_is_made_anew(file, tmp_path, monkeypatch):
    root = tmp_path / "kept"
    with keep_decoded(str(root)):
        list(read_blocks(file, AT_ONCE))
    (blocks,) = root.glob("decoded/*/blocks.arrow")
    again = str(tmp_path / "the same file in the next run.gz")
    os.link(file, again)
    with keep_decoded(str(root)), monkeypatch.context() as patched:
        patched.setattr(decoded_blocks, "read_records", lambda *_: pytest.fail("read again"))
        assert list(read_blocks(again, AT_ONCE)) == decoded(file, None)

    content = blocks.read_bytes()
    blocks.write_bytes(content[:-9] + b"?" + content[-8:])
    with keep_decoded(str(root)):
        assert list(read_blocks(again, AT_ONCE)) == decoded(file, None)
    assert blocks.read_bytes() == content


def test_those_of_other_files_are_deleted_in_a_window(file, tmp_path):
    other, root = shutil.copy(file, tmp_path / "other.gz"), tmp_path / "kept"
    for files, left in (([file, other], 2), ([other], 1)):
        with keep_decoded(str(root)):
            assert all(are_kept(each, AT_ONCE) for each in files)
            decoded_blocks.prune(files, AT_ONCE)
        assert len(list(root.glob("decoded/*/blocks.arrow"))) == len(list(root.glob("decoded/*.json"))) == left
    with keep_decoded(str(root)):
        decoded_blocks.prune([file], AT_ONCE)  # whose blocks are not there
    assert not list(root.glob("decoded/*"))
