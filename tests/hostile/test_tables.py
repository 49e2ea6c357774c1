"""Files of rows that were damaged or made to do harm are read, or refused in a sentence; in bounded time and memory."""

import bz2
import gzip
import io
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from pyarrow import parquet

from pipeline.data import files, shards
from pipeline.data.examples import as_lists, serialize
from pipeline.errors import UserError
from tests.bounds import bounded
from tests.hostile.mutations import CASES, attempt, mutated

pytestmark = pytest.mark.slow

CSV = (
    b'id,name,"amount, total",day\n1,Z\xc3\xbcrich,2.5,2024-01-31\n2,"a ""b""\nc",,\n3,=cmd|\' /C calc\'!A0,-1e308,x\n'
)
TABLE = pa.table(
    {
        "id": pa.array([1, 2, 3]),
        "name": pa.array(["Zürich", None, "x" * 50]).dictionary_encode(),
        "amount": pa.array([2.5, None, float("inf")]),
        "day": pa.array([1, 2, 3], pa.timestamp("us")),
        "list": pa.array([[1, 2], [], None], pa.list_(pa.int64())),
    }
)


NESTED = pa.table(
    {
        "fixed": pa.array([b"abc", None, b"xyz"], pa.binary(3)),
        "texts": pa.array([["a", "b"], None, ["a"]], pa.large_list(pa.large_string())),
        "pairs": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        "bytes": pa.array([[b"abc"], [], [b"abc"]], pa.list_(pa.binary(3))),
        "price": pa.array([[Decimal("1.50")], None, []], pa.list_(pa.decimal128(9, 2))),
        "a.b": pa.array(["x", "x", None]),
    }
)
# Of types that have no place in a tf.Example.
OTHERS = pa.table(
    {
        "struct": pa.array([{"text": "x" * 50, "number": 1}] * 3),
        "map": pa.array([[("key", "x" * 50)]] * 3, pa.map_(pa.string(), pa.string())),
        "lists": pa.array([[["x" * 50]], [], [[]]]),
        "half": pa.array(np.zeros(3, np.float16)),
    }
)


def written(table: pa.Table = TABLE, **options: object) -> bytes:
    content = io.BytesIO()
    parquet.write_table(table, content, **options)
    return content.getvalue()


def records(kind: str) -> bytes:
    example = tf.train.Example()
    example.features.feature["id"].int64_list.value.extend([1])
    example.features.feature["name"].bytes_list.value.append(b"Z\xff")
    example.features.feature["amount"].float_list.value.extend([2.5, float("nan")])
    with tempfile.TemporaryDirectory() as folder:
        with tf.io.TFRecordWriter(f"{folder}/rows", kind) as writer:
            for _ in range(3):
                writer.write(example.SerializeToString())
        return Path(folder, "rows").read_bytes()


SEEDS = {
    "rows.csv": [CSV, CSV.replace(b"\n", b"\r\n"), CSV.replace(b",", b";"), CSV.decode().encode("utf-16")],
    "rows.csv.gz": [gzip.compress(CSV * 20), bz2.compress(CSV)],
    "rows.csv.bz2": [bz2.compress(CSV * 20)],
    "rows.parquet": [written(compression=None), written(compression="zstd", row_group_size=1), written(version="1.0")],
    "nested.parquet": [
        *(written(NESTED, store_schema=known) for known in (True, False)),
        *(written(OTHERS.select([name])) for name in OTHERS.column_names),
        written(NESTED.select(["texts", "a.b"]), use_dictionary=False),
        written(NESTED.select(["a.b"]), use_dictionary=False, column_encoding={"a.b": "DELTA_BYTE_ARRAY"}),
    ],
    "rows.tfrecord": [records("")],
    "rows.tfrecord.gz": [records("GZIP")],
}


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_parquet_file_whose_column_has_a_name_that_is_no_text_is_refused(tmp_path: Path, store_schema: bool):
    file = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"distance": [1, 2]}), file, store_schema=store_schema)
    file.write_bytes(file.read_bytes().replace(b"distance", b"\xffistance"))
    with pytest.raises(UserError, match=r"rows.parquet is not a Parquet file, .*: .*can't decode byte 0xff"):
        read(str(file))


@pytest.mark.parametrize("name", list(SEEDS))
def test_a_damaged_file_is_read_or_refused_in_a_sentence(tmp_path: Path, name: str):
    file = tmp_path / name

    @CASES
    @given(mutated(SEEDS[name]))
    def holds(content: bytes) -> None:
        file.write_bytes(content)
        with bounded(seconds=5, megabytes=300):
            examples, refusal = attempt(lambda: read(str(file)), UserError)
        if examples is None:
            assert name in refusal
            assert len(refusal) < 2_000
        # What was read can be read by TensorFlow.
        for example in examples or ():
            tf.train.Example.FromString(example)

    holds()


def read(file: str) -> list[bytes]:
    """Read a file as ExampleGen does, and return its rows as serialized examples."""
    job = shards.Job((("all", file),), str(files.format_of(file)), ("all",), "")
    scan = shards.scan(job.files[0], job)
    if scan.problem:
        raise UserError(scan.problem)
    found = [rows for unit in scan.units for rows in shards.read(unit, scan.types)]
    return [bytes(example) for rows in found for example in serialize(as_lists(rows, file))]
