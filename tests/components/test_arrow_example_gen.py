"""Our ExampleGen, through Beam: what its examples are, which split and which shard they lie in."""

import dataclasses
import hashlib
import itertools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tfx.components.example_gen import base_example_gen_executor
from tfx.proto import example_gen_pb2

from pipeline.components.base import files_of
from pipeline.data import csv_rows, shard_files, shards
from pipeline.data.examples import feature, serialize
from pipeline.data.splits import buckets_of
from pipeline.settings.config import Data, HashSplit, TimeSplit
from tests.components.example_gen import records, run, values


@pytest.fixture
def few(few_flights: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in sorted(few_flights.glob("*/*.parquet"))])


@pytest.mark.slow
def test_the_examples_of_csv_parquet_and_tfrecords_are_the_same(few, tmp_path):
    (tmp_path / "parquet").mkdir()
    pq.write_table(few, tmp_path / "parquet/few.parquet", row_group_size=700)
    (tmp_path / "csv").mkdir()
    pa_csv.write_csv(few, tmp_path / "csv/few.csv")
    floats = {field.name: "floats" for field in few.schema if pa.types.is_floating(field.type)}
    run(Data(str(tmp_path / "parquet")), tmp_path / "1")
    run(Data(str(tmp_path / "csv")), tmp_path / "2", types=floats)
    (tmp_path / "tfrecord").mkdir()
    for file in (tmp_path / "1").glob("Split-*/*"):
        shutil.copy(file, tmp_path / "tfrecord" / f"{file.parent.name}-{file.name}")
    run(Data(str(tmp_path / "tfrecord")), tmp_path / "3")
    # Split by split: the hash of a row does not depend on the format either.
    for split in ("train", "eval", "test"):
        first = sorted(records(tmp_path / "1", split))
        assert len(first) > 300
        assert sorted(records(tmp_path / "2", split)) == first
        assert sorted(records(tmp_path / "3", split)) == first


def test_a_data_step_leaves_nothing_in_the_temporary_folder(few_flights, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    run(Data(str(few_flights / "train")), tmp_path / "out")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_what_tfx_expects_of_an_artifact_is_there(few_flights, tmp_path):
    splits = {split: f"{split}/*.parquet" for split in ("train", "eval", "test")}
    examples = run(Data(str(few_flights), splits=splits), tmp_path / "out")
    assert examples.split_names == '["train", "eval", "test"]'
    assert examples.get_string_custom_property("payload_format") == "FORMAT_TF_EXAMPLE"
    assert examples.get_string_custom_property("file_format") == "tfrecords_gzip"
    assert examples.get_int_custom_property("span") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "Split-eval",
        "Split-test",
        "Split-train",
        "summary.json",
    ]
    raw = pa.concat_tables([pq.read_table(file) for file in sorted(few_flights.glob("test/*.parquet"))])
    assert len(records(tmp_path / "out", "test")) == raw.num_rows


@pytest.mark.slow
def test_the_same_files_give_the_same_bytes_and_rows_are_mixed(few, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 300_000)
    (tmp_path / "data").mkdir()
    few = few.append_column("row", pa.array(range(len(few))))
    pq.write_table(few, tmp_path / "data/few.parquet", row_group_size=200)
    written = []
    for out in ("1", "2"):
        run(Data(str(tmp_path / "data")), tmp_path / out)
        written.append({file.name: file.read_bytes() for file in sorted((tmp_path / out).glob("Split-train/*"))})
    assert written[0] == written[1]
    assert len(written[0]) == 4
    # A shard holds rows of the beginning and the end, and neighbours are strangers.
    file = sorted((tmp_path / "1").glob("Split-train/*"))[0]
    rows = [values(one.numpy())["row"][0] for one in tf.data.TFRecordDataset(str(file), "GZIP")]
    assert min(rows) < 300
    assert max(rows) > len(few) - 1000
    distances = [abs(one - other) for one, other in itertools.pairwise(rows)]
    assert sum(distances) / len(distances) > len(few) / 6


GB = 10**9


@pytest.mark.parametrize(
    ("total", "size"),
    [(GB, 24 << 20), (50 * GB, 24 << 20), (200 * GB, 200 * GB // 4096), (1000 * GB, 128 << 20)],
)
def test_shards_of_more_data_are_larger_up_to_what_memory_takes(total, size):
    job = shards.Job((), "parquet", ("train",), "examples")
    assert shards.shard_bytes(job, total) == size
    assert shards.shard_bytes(dataclasses.replace(job, shard_mb=5), total) == 5 << 20


@pytest.mark.slow
def test_a_setting_makes_more_shards_of_the_same_rows(tmp_path):
    texts = np.random.default_rng(1).integers(33, 127, (1_600, 2_000), np.uint8)  # 3.2 MB that nothing compresses
    table = pa.table({"x": [bytes(row).decode() for row in texts]})
    pq.write_table(table, tmp_path / "some.parquet", row_group_size=160, use_dictionary=False)
    found = []
    for name, shard_mb in (("one", None), ("three", 1)):
        run(Data(str(tmp_path / "some.parquet"), shard_mb=shard_mb), tmp_path / name)
        found.append(sorted(records(tmp_path / name, "train")))
        assert len(list((tmp_path / name).glob("Split-train/*"))) == (3 if shard_mb else 1)
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_shard_larger_than_foreseen_is_written_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_files, "FULL", 10_000 / shards.SHARD_BYTES)
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 1_000)
    (tmp_path / "some.csv").write_text("a,b\n" + "".join(f"{i},x{i}\n" for i in range(3000)))
    examples = run(Data(str(tmp_path / "some.csv")), tmp_path / "out")
    written = sorted(map(str, (tmp_path / "out").glob("Split-train/*")))
    assert len(written) > 2
    assert files_of(examples, "train") == written  # as the next steps find them
    assert sorted(values(one)["a"][0] for one in records(tmp_path / "out")) == list(range(3000))


def test_rows_of_one_customer_never_lie_in_two_splits_and_lie_where_tfx_puts_them(tmp_path):
    table = pa.table({"customer": [f"c{i % 100}" for i in range(1000)], "x": list(range(1000))})
    pq.write_table(table, tmp_path / "some.parquet")
    run(Data(str(tmp_path / "some.parquet"), split_by=HashSplit("customer")), tmp_path / "out")
    config = example_gen_pb2.SplitConfig(
        splits=[example_gen_pb2.SplitConfig.Split(name=n, hash_buckets=b) for n, b in (("a", 8), ("b", 1), ("c", 1))],
        partition_feature_name="customer",
    )
    for index, split in enumerate(("train", "eval", "test")):
        found = records(tmp_path / "out", split)
        assert len(found) % 10 == 0
        for record in found:
            example = tf.train.Example.FromString(record)
            assert base_example_gen_executor._PartitionFn(example, 3, [8, 9, 10], config) == index


def test_a_split_by_time_gives_the_newest_rows_to_test(tmp_path):
    days = [f"2013-{1 + i // 28:02d}-{1 + i % 28:02d}" for i in range(300)]
    (tmp_path / "some.csv").write_text("day,x\n" + "".join(f"{day},{i}\n" for i, day in enumerate(days)))
    run(Data(str(tmp_path / "some.csv"), split_by=TimeSplit("day")), tmp_path / "out")
    rows = {
        split: sorted(values(one)["x"][0] for one in records(tmp_path / "out", split))
        for split in ("train", "eval", "test")
    }
    assert rows == {"train": list(range(240)), "eval": list(range(240, 270)), "test": list(range(270, 300))}


@pytest.mark.slow
@pytest.mark.parametrize(("last", "expected"), [(1, {12}), (2, {9, 12}), (None, {2, 9, 12})])
def test_the_newest_spans_are_read(tmp_path, last, expected):
    for span in (2, 9, 12):
        folder = tmp_path / f"data/span-{span:02d}"
        folder.mkdir(parents=True)
        (folder / "some.csv").write_text("span,x\n" + "".join(f"{span},{i}\n" for i in range(200)))
    data = Data(str(tmp_path / "data"), files="span-{SPAN}/*.csv", last_spans=last)
    examples = run(data, tmp_path / "out")
    assert {values(one)["span"][0] for one in records(tmp_path / "out")} == expected
    assert examples.get_int_custom_property("span") == 12


def test_every_type_becomes_what_the_documentation_says(tmp_path):
    moment = 1357016400123456
    table = pa.table(
        {
            "integer": pa.array([0, None, -3], pa.int32()),
            "unsigned": pa.array([0, None, 255], pa.uint8()),
            "float": pa.array([0.0, None, 1.5], pa.float64()),
            "decimal": pa.array([None, None, 2], pa.decimal128(5, 2)),
            "flag": pa.array([False, None, True]),
            "text": ["", None, "é"],
            "bytes": pa.array([b"", None, b"\xff"], pa.binary()),
            "category": pa.array(["a", None, "b"]).dictionary_encode(),
            "moment": pa.array([0, None, moment * 1000], pa.timestamp("ns")),
            "zoned": pa.array([0, None, 1], pa.timestamp("s", "Europe/Vienna")),
            "day": pa.array([0, None, 365], pa.date32()),
            "clock": pa.array([0, None, 1], pa.time32("s")),
            "numbers": pa.array([[], None, [1, 2, 3]]),
            "words": pa.array([["a"], None, ["b", "", "c"]]),
            "nothing": pa.nulls(3),
        }
    )
    for split in ("train", "eval", "test"):
        (tmp_path / f"data/{split}").mkdir(parents=True)
        pq.write_table(table, tmp_path / f"data/{split}/some.parquet")
    run(
        Data(str(tmp_path / "data"), splits={name: f"{name}/*" for name in ("train", "eval", "test")}), tmp_path / "out"
    )
    by_integer = {str(one["integer"]): one for one in map(values, records(tmp_path / "out", "train"))}
    assert by_integer["None"] == dict.fromkeys(table.column_names)
    assert by_integer["[0]"] == {
        **{
            "integer": [0],
            "unsigned": [0],
            "float": [0.0],
            "decimal": None,
            "flag": [0],
            "text": [b""],
            "bytes": [b""],
        },
        **{"category": [b"a"], "moment": [0], "zoned": [0], "day": [0], "clock": [0]},
        **{"numbers": [], "words": [b"a"], "nothing": None},
    }
    assert by_integer["[-3]"] == {
        **{"integer": [-3], "unsigned": [255], "float": [1.5], "decimal": [2.0], "flag": [1], "text": ["é".encode()]},
        **{"bytes": [b"\xff"], "category": [b"b"], "moment": [moment], "zoned": [1_000_000], "day": [365]},
        **{"clock": [1_000_000], "numbers": [1, 2, 3], "words": [b"b", b"", b"c"], "nothing": None},
    }


def test_the_split_of_known_rows_and_keys_never_changes():
    keys = [feature(value) for value in (0, 7, -1, 2**40, b"", b"c1", "é".encode())]
    assert buckets_of(keys, 1000).tolist() == [int(hashlib.sha256(key).hexdigest(), 16) % 1000 for key in keys]
    assert buckets_of(keys, 1000).tolist() == [643, 333, 241, 525, 732, 804, 862]
    table = pa.table(
        {
            "a": pa.array([[7], None], pa.list_(pa.int64())),
            "b": pa.array([[1.5], [0.0]], pa.list_(pa.float32())),
            "c": pa.array([[b"x"], [b""]], pa.list_(pa.large_binary())),
        }
    )
    assert buckets_of(serialize(table), 1000).tolist() == [84, 890]
