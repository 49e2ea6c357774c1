"""Convert tables to the columns that ``serialize`` takes: lists of int64, float32 or bytes.

| column | in the example |
|---|---|
| integers, booleans | int64; True is 1 |
| floats, decimals | float32 |
| text, bytes | bytes, text as UTF-8 |
| timestamps | int64: microseconds since 1970-01-01 UTC; without a time zone, taken as UTC |
| dates | int64: days since 1970-01-01 |
| times of day, durations | int64: microseconds |
| lists of these | several values |

A null is a missing value and nothing else is.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.table import (
    IN_AN_EXAMPLE,
    LARGEST,
    TIMES,
    Rows,
    as_integers,
    is_list,
    one_array,
    too_large,
    type_name,
)
from pipeline.errors import UserError, first_line


def as_lists(rows: Rows, file: str) -> pa.Table:
    """Return the table with its columns sorted by name, each of type list<int64>, list<float> or list<large_binary>.

    A column of nothing but nulls stays of type null.

    Raises:
        UserError: a column's type has no place in a tf.Example, or a value does not fit.
    """
    columns = {}
    for name in sorted(rows.table.column_names):
        column = rows.table.column(name)
        try:
            columns[name] = _lists(column)
        except (_NoPlace, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            where = f"{file}, between rows {rows.numbers[0]} and {rows.numbers[-1]}, column {name!r}"
            raise UserError(f"{where}: {first_line(error)}") from error
    return pa.table(columns)


class _NoPlace(ValueError):
    """A value that a tf.Example cannot hold."""


def _lists(column: pa.ChunkedArray) -> pa.Array:
    array = one_array(column)
    if pa.types.is_null(array.type):
        return array
    if is_list(array.type):
        values = array.flatten()  # leaves out what lies under nulls
        if values.null_count:
            raise _NoPlace("a list holds a null; a tf.Example has no missing value inside a list")
        lengths = pc.fill_null(pc.list_value_length(array), 0)
    else:
        lengths = pc.cast(array.is_valid(), pa.int32())
        values = array.drop_null()
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths))]).astype(np.int32)
    # A null offset makes a null list; the last one only ends the array.
    missing: np.ndarray = np.append(np.asarray(array.is_null()), False)
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32(), mask=missing), _values(values))


def _values(values: pa.Array) -> pa.Array:
    kind = type_name(values.type)
    if kind in ("integers", "booleans"):
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise _NoPlace(
                f"a value is beyond the largest int64, {2**63 - 1}; a tf.Example holds int64 only"
            ) from error
    if kind == "nothing":
        return values.cast(pa.int64())
    if kind == "floats":
        numbers = values.cast(pa.float64())
        large = too_large(np.asarray(numbers))
        if large.any():
            raise _NoPlace(
                f"found {numbers.filter(pa.array(large))[0].as_py():g}; a tf.Example holds 32-bit floats, up to "
                f"{LARGEST:.2g}"
            )
        return numbers.cast(pa.float32())
    if kind == "text":
        return values.cast(pa.large_binary())
    if kind in TIMES:
        return as_integers(values)
    raise _NoPlace(f"of type {values.type}; expected {IN_AN_EXAMPLE}")
