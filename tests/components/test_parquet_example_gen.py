"""Every value of a table arrives as it was; TFX's own reader loses zeros."""

from __future__ import annotations

import pyarrow as pa
import pytest
import tensorflow as tf

from pipeline.components.parquet_example_gen import encode_table


def values(example: bytes) -> dict[str, list | None]:
    found = {}
    for name, feature in tf.train.Example.FromString(example).features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = list(getattr(feature, kind).value) if kind else None
    return found


def test_zeros_and_empty_texts_stay_and_only_nulls_are_missing():
    table = pa.table(
        {
            "integer": pa.array([0, None, -3], pa.int32()),
            "float": pa.array([0.0, None, 1.5], pa.float64()),
            "flag": pa.array([False, None, True]),
            "text": ["", None, "é"],
            "category": pa.array(["a", None, "b"]).dictionary_encode(),
        }
    )
    first, second, third = map(values, encode_table(table))
    assert first == {"integer": [0], "float": [0.0], "flag": [0], "text": [b""], "category": [b"a"]}
    assert second == dict.fromkeys(table.column_names)
    assert third == {"integer": [-3], "float": [1.5], "flag": [1], "text": ["é".encode()], "category": [b"b"]}


def test_a_table_in_chunks_and_an_empty_one():
    chunked = pa.concat_tables([pa.table({"x": [1, 2]}), pa.table({"x": [3]})])
    assert [values(example) for example in encode_table(chunked)] == [{"x": [1]}, {"x": [2]}, {"x": [3]}]
    assert encode_table(pa.table({"x": pa.array([], pa.int64())})) == []


def test_a_type_that_an_example_cannot_hold_is_named():
    table = pa.table({"when": pa.array([0], pa.timestamp("s"))})
    with pytest.raises(ValueError, match=r"column 'when' is of type timestamp\[s\]; expected integers, floats"):
        encode_table(table)
