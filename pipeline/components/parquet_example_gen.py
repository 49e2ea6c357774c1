"""Parquet files → tf.Examples, with every value as it was.

TFX's own Parquet executor turns each 0, 0.0, False and "" into a missing value (``dict_to_example``: ``if not pyval``).
This one encodes whole Arrow tables, in C++, and a null is missing and nothing else is.
"""

from __future__ import annotations

import os
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from tfx.components.example_gen.base_example_gen_executor import BaseExampleGenExecutor
from tfx.types import standard_component_specs
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder


class Executor(BaseExampleGenExecutor):
    """Reads the Parquet files of each split; integers and booleans become int64, floats float32, text bytes."""

    def GetInputSourceToExamplePTransform(self) -> beam.PTransform:
        """Returns the transform from a file pattern to serialized tf.Examples."""
        return _parquet_to_examples


@beam.ptransform_fn
@beam.typehints.with_input_types(beam.Pipeline)
@beam.typehints.with_output_types(bytes)
def _parquet_to_examples(
    pipeline: beam.Pipeline, exec_properties: dict[str, Any], split_pattern: str
) -> beam.PCollection[bytes]:
    pattern = os.path.join(exec_properties[standard_component_specs.INPUT_BASE_KEY], split_pattern)
    return pipeline | "ReadParquet" >> beam.io.ReadFromParquetBatched(pattern) | "Encode" >> beam.FlatMap(encode_table)


def encode_table(table: pa.Table) -> list[bytes]:
    """Encodes a table as serialized tf.Examples, one a row.

    Raises:
        ValueError: a column is of a type that a tf.Example cannot hold.
    """
    lists = {name: _as_lists(name, table.column(name).combine_chunks()) for name in table.column_names}
    return RecordBatchToExamplesEncoder().encode(pa.RecordBatch.from_pydict(lists))


def _as_lists(name: str, column: pa.Array) -> pa.ListArray:
    """A column as Arrow lists of one value, null where the column is: what the encoder takes."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        values = column.cast(pa.int64())
    elif pa.types.is_floating(column.type):
        values = column.cast(pa.float32())
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_binary(column.type):
        values = column.cast(pa.large_binary())
    elif pa.types.is_dictionary(column.type):
        return _as_lists(name, column.dictionary_decode())
    else:
        raise ValueError(
            f"column {name!r} is of type {column.type}; expected integers, floats, booleans or text, one value a row"
        )
    present = np.asarray(column.is_valid())
    starts = np.concatenate([[0], np.cumsum(present)]).astype(np.int32)
    # A null offset makes a null list; the last one only ends the array.
    offsets = pa.array(starts, pa.int32(), mask=np.append(~present, False))
    return pa.ListArray.from_arrays(offsets, values.drop_null())
