"""Columns that no row has a value in, and lists of numbers of any length."""

import pyarrow as pa

from pipeline.data.examples import serialize
from tests.components.example_gen import values


def test_a_column_without_any_value_is_a_feature_without_values_in_every_row():
    table = pa.table({"gone": pa.nulls(2), "there": pa.array([[1], [2]], pa.list_(pa.int64()))})
    assert [values(record) for record in serialize(table)] == [
        {"gone": None, "there": [1]},
        {"gone": None, "there": [2]},
    ]


def test_lists_of_any_length_hold_the_numbers_they_were_made_of():
    integers = [[], None, [0], [127, 128, -1], [2**63 - 1, -(2**63)], [300] * 40]
    floats = [[1.5, -0.0], [], None, [float("inf")], [3.0] * 40, [2.0]]
    table = pa.table({"f": pa.array(floats, pa.list_(pa.float32())), "i": pa.array(integers, pa.list_(pa.int64()))})
    table = pa.concat_tables([table, table]).combine_chunks().slice(3, 6)  # a part of what lies in memory
    expected = [{"f": f, "i": i} for f, i in zip(floats, integers, strict=True)]
    assert [values(record) for record in serialize(table)] == expected[3:] + expected[:3]
