"""Columns that no row has a value in."""

import pyarrow as pa

from pipeline.data.serialize import serialize
from tests.components.example_gen import values


def test_a_column_without_any_value_is_a_feature_without_values_in_every_row():
    table = pa.table({"gone": pa.nulls(2), "there": pa.array([[1], [2]], pa.list_(pa.int64()))})
    assert [values(record) for record in serialize(table)] == [
        {"gone": None, "there": [1]},
        {"gone": None, "there": [2]},
    ]
