"""Typed rows with their numbers, and rejected rows, as every reader yields them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import UserError

BYTES_AT_ONCE = 64 << 20
# Of a Parquet or TFRecord file; of an image, data.images.max_bytes decides below that.
MOST_ROW_BYTES = 256 << 20
# No useful data expand that much when decoded, except small files.
MOST_EXPANSION = 1_000
ALWAYS_DECODED = 256 << 20
# Of a tf.Example's floats, which have 32 bits.
LARGEST = float(np.finfo(np.float32).max)


def too_large(numbers: np.ndarray) -> np.ndarray:
    """Return a mask of the numbers [n] that are finite and would not be so as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(numbers) & np.isinf(numbers.astype(np.float32)))


def check_decoded(file: str, decoded: int, stored: int) -> None:
    """Raise a UserError for a file whose stored bytes expand to very many when decoded."""
    if decoded > max(ALWAYS_DECODED, MOST_EXPANSION * stored):
        raise UserError(
            f"{file}: its {stored:,} bytes hold more than {decoded >> 20:,} MB once decoded, over {MOST_EXPANSION:,} "
            "times as many, as a bomb does; if they are data, write them as CSV without compression"
        )


def rows_at_once(most: int, rows: int, size: int) -> int:
    """Return how many rows to read together, if ``rows`` take ``size`` bytes: ``most``, or fewer large ones."""
    return max(1, min(most, BYTES_AT_ONCE * rows // max(1, size)))


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, with dictionary-encoded values decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


@dataclass(frozen=True)
class Unit:
    """A part of a file that any worker can read separately."""

    file: str
    format: str  # a key of files.FORMATS
    start: int = 0  # first byte of a CSV part (0: the whole file), or first row group of Parquet
    length: int | None = None  # bytes or row groups; None: to the end
    first_row: int = 1  # in the file
    bytes: int = 0  # about what its rows take in memory
    partitions: tuple[tuple[str, str | None], ...] = ()  # columns and values in the names of its folders


@dataclass(frozen=True)
class BadRow:
    """A CSV row that does not fit the table, or an image that cannot be decoded."""

    file: str
    row: int  # from 1, without header and blank lines; 0: the file itself is the row
    reason: str  # found and expected, with the column
    text: str

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}: {self.reason}" if self.row else f"{self.file}: {self.reason}"


@dataclass(frozen=True)
class Rows:
    """Some rows of a file."""

    table: Any  # pa.Table: one column a feature, one row an example
    numbers: np.ndarray  # of the rows in the file, int64 [rows]
    bad: list[BadRow] = field(default_factory=list)

    def without(self, bad: Mapping[int, BadRow]) -> "Rows":
        """Return the rows with some of them, by place from 0, moved to the bad ones."""
        good: np.ndarray = np.ones(len(self.numbers), bool)
        good[list(bad)] = False
        rejected = sorted([*self.bad, *bad.values()], key=lambda row: row.row)
        return Rows(self.table.filter(pa.array(good)), self.numbers[good], rejected)


def type_name(type_: pa.DataType) -> str:
    """Return the type as in the types table of docs/data.md; "nothing" for a column without any value."""
    if pa.types.is_dictionary(type_):
        return type_name(type_.value_type)
    if is_list(type_):
        return f"lists of {type_name(type_.value_type)}"
    return next((name for name, checks in _NAMES.items() if any(check(type_) for check in checks)), str(type_))


def as_integers(times: Any) -> Any:
    """Convert dates to days, other times to microseconds, without finer parts; int64."""
    if pa.types.is_date(times.type):
        return times.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(times.type):
        microseconds = pa.timestamp("us", times.type.tz)
    else:
        microseconds = pa.time64("us") if pa.types.is_time(times.type) else pa.duration("us")
    return times.cast(microseconds, safe=False).cast(pa.int64())


def is_list(type_: pa.DataType) -> bool:
    """Return whether a row may have several values."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def has_place(type_: pa.DataType) -> bool:
    """Return whether values of a type fit a tf.Example; see ``pipeline.data.examples``."""
    if pa.types.is_dictionary(type_):
        return has_place(type_.value_type)
    value = type_.value_type if is_list(type_) else type_
    return not is_list(value) and type_name(value) in _NAMES


def single_values(column: pa.ChunkedArray) -> Any:
    """Return the one value of every row; null for none or several, which is as wrong."""
    values = one_array(column)
    if not is_list(values.type):
        return values
    single = pc.equal(pc.fill_null(pc.list_value_length(values), 0), 1)
    return pc.list_element(pc.if_else(single, values, pa.scalar([None], values.type)), 0)


IN_AN_EXAMPLE = "integers, floats, booleans, text, bytes, timestamps, dates or lists of these"
TIMES = ("timestamps", "dates", "times of day", "durations")
_NAMES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "nothing": (pa.types.is_null,),
    "booleans": (pa.types.is_boolean,),
    "integers": (pa.types.is_integer,),
    "floats": (pa.types.is_floating, pa.types.is_decimal),
    "text": (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view),
    ),
    "timestamps": (pa.types.is_timestamp,),
    "dates": (pa.types.is_date,),
    "times of day": (pa.types.is_time,),
    "durations": (pa.types.is_duration,),
}
