"""Random tables with nulls, unicode and extreme numbers, written as CSV and Parquet: equal examples come back."""

import csv
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data import csv_files, csv_rows, parquet_files
from pipeline.data.examples import as_lists, serialize
from pipeline.data.table import too_large
from tests.components.example_gen import values

pytestmark = pytest.mark.slow

TEXT = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ['"', "a,b", "x\ny", "\r", "1", "nan", " 7"]
)
COLUMNS = {
    "integers": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), -1, 0, 2**63 - 1])),
    "floats": (
        pa.float64(),
        st.floats().filter(lambda value: not too_large(np.array(value)))
        | st.sampled_from([3.4e38, -1e-308, 5e-324, math.inf, math.nan, 0.0, -0.0]),
    ),
    "text": (pa.string(), TEXT),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=2, max_size=4))
    rows = draw(st.integers(0, 30))
    columns = {}
    for number, kind in enumerate(kinds):
        type_, cells = COLUMNS[kind]
        column = draw(st.lists(st.none() | cells, min_size=rows, max_size=rows))
        columns[f"{kind}{number}"] = pa.array(column, type_)
    return pa.table(columns)


def expected(kind: str, value: object, file: str) -> list | None:
    """A value in a tf.Example; an empty field of a CSV file is a missing value, and so is a number that is "nan"."""
    if value is None or (file == "csv" and (value == "" or value != value)):
        return None
    if kind == "text":
        return [str(value).encode()]
    if kind == "floats":
        return [float(np.float32(value))]
    return [value]


def same(one: object, other: object) -> bool:
    return one == other or repr(one) == repr(other)  # nan


@settings(deadline=None)
@given(tables(), st.integers(1, 400))
def test_a_csv_file_gives_the_values_that_were_written(tmp_path_factory, table, block):
    file = tmp_path_factory.mktemp("random") / "some.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(table.column_names)
        writer.writerows(
            ["" if value is None else repr(value) if isinstance(value, float) else value for value in row.values()]
            for row in table.to_pylist()
        )
    types = {name: name.rstrip("0123456789") for name in table.column_names}
    usual = csv_rows.BLOCK_BYTES
    try:
        csv_rows.BLOCK_BYTES = block
        types, units = csv_files.scan(str(file), types)
        found = [rows for unit in units for rows in csv_files.read(unit, types)]
    finally:
        csv_rows.BLOCK_BYTES = usual
    assert not any(rows.bad for rows in found)
    check(table, [values(record) for rows in found for record in serialize(as_lists(rows, "f"))], "csv")


@settings(deadline=None)
@given(tables(), st.integers(1, 40))
def test_a_parquet_file_gives_the_values_that_were_written(tmp_path_factory, table, group):
    file = str(tmp_path_factory.mktemp("random") / "some.parquet")
    pq.write_table(table, file, row_group_size=group)
    _, units = parquet_files.scan(file)
    found = [rows for unit in units for rows in parquet_files.read(unit)]
    assert [number for rows in found for number in rows.numbers] == list(range(1, table.num_rows + 1))
    check(table, [values(record) for rows in found for record in serialize(as_lists(rows, "f"))], "parquet")


def check(table: pa.Table, found: list[dict], file: str) -> None:
    assert len(found) == table.num_rows
    for row, example in zip(table.to_pylist(), found, strict=True):
        for name, value in row.items():
            assert same(example[name], expected(name.rstrip("0123456789"), value, file)), name


LISTS = {
    "a": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    "b": st.none() | st.lists(st.floats(width=32), max_size=3),
    "c": st.none() | st.lists(st.binary(max_size=200), max_size=3),
    "d": st.none() | st.lists(st.integers(-3, 300), min_size=1, max_size=1),
    "e": st.none() | st.lists(st.binary(max_size=3), min_size=1, max_size=1),
    "é" * 70: st.none() | st.lists(st.floats(width=32), min_size=1, max_size=1),
}
TYPES = [pa.int64(), pa.float32(), pa.large_binary(), pa.int64(), pa.large_binary(), pa.float32()]


@settings(deadline=None)
@given(st.lists(st.tuples(*LISTS.values()), min_size=1, max_size=20))
def test_what_is_serialized_is_what_protobuf_parses(rows):
    columns = zip(*rows, strict=True)
    table = pa.table(
        {
            name: pa.array(list(column), pa.list_(type_))
            for name, type_, column in zip(LISTS, TYPES, columns, strict=True)
        }
    )
    for record, row in zip(serialize(table), rows, strict=True):
        # No byte more than protobuf itself needs, and the same ones wherever the order of features is.
        example = tf.train.Example.FromString(record)
        assert example.ByteSize() == len(record)
        assert [same(found, wanted) for found, wanted in zip(by_name(record), row, strict=True)] == [True] * len(row)


def by_name(record: bytes) -> list:
    found = values(record)
    return [found[name] for name in LISTS]
