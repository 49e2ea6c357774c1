"""Assign rows to splits by their content: the same on every machine, in every release, for every format."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.examples import feature
from pipeline.data.table import Rows, as_integers, is_list, one_array, type_name
from pipeline.errors import UserError, first_line

# Points kept of a time column for each part of a file: the cuts between splits are right to a thousandth of the rows.
POINTS = 1_000


def buckets_of(keys: Sequence[bytes], buckets: int) -> np.ndarray:
    """Return the hash bucket of every key as TFX does: SHA-256, read as a big-endian number, modulo ``buckets``."""
    return np.array([int.from_bytes(hashlib.sha256(key).digest(), "big") % buckets for key in keys], np.int64)


def places_of(keys: Sequence[bytes], shares: Sequence[int]) -> np.ndarray:
    """Return the split of every key by its hash, as its place among splits with these shares, int64 [keys]."""
    return np.asarray(np.searchsorted(np.cumsum(shares), buckets_of(keys, sum(shares)), side="right"))


def value_keys(column: pa.ChunkedArray, name: str, where: str) -> tuple[list[bytes], np.ndarray]:
    """Return the distinct values of a column of lists as hash keys, and each row's place among them.

    A key is the value's serialized ``tf.train.Feature``, the same for the integer 7 of a CSV and of a Parquet file.
    """
    array = column.combine_chunks()
    if pa.types.is_null(array.type) or pc.any(pc.not_equal(pc.fill_null(pc.list_value_length(array), 0), 1)).as_py():
        raise UserError(
            f"{where}: the column {name!r}, by which rows are assigned to splits, has no value or several in some row; "
            "expected exactly one in every row"
        )
    values = array.flatten()
    if pa.types.is_floating(values.type):
        raise UserError(
            f"{where}: the column {name!r}, by which rows are assigned to splits, holds floats; expected integers or "
            "text, whose equality is certain"
        )
    coded = values.dictionary_encode()
    return [feature(value) for value in coded.dictionary.to_pylist()], np.asarray(coded.indices)


@dataclass(frozen=True)
class Points:
    """Evenly spaced order statistics of some rows of a time column, each of which stands for ``weight`` rows."""

    values: np.ndarray
    weight: float

    @classmethod
    def of(cls, times: np.ndarray) -> "Points":
        """Summarise int64 or float64 times."""
        kept = min(POINTS, len(times))
        at = (np.arange(kept) + 0.5) / max(kept, 1) * len(times)
        return cls(np.sort(times)[at.astype(np.int64)], len(times) / max(kept, 1))


def cuts(points: Sequence[Points], shares: Sequence[int]) -> np.ndarray:
    """Return the times at which the second and later splits begin, for about these shares of rows."""
    values = np.concatenate([part.values for part in points])
    weights = np.concatenate([np.full(len(part.values), part.weight) for part in points])
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weights[order])
    wanted = np.cumsum(shares)[:-1] / sum(shares) * upto[-1]
    return values[order][np.minimum(np.searchsorted(upto, wanted, side="right"), len(values) - 1)]


def times_of(rows: Rows, name: str, file: str) -> np.ndarray:
    """Return the time of every row as an increasing number, int64 or float64 [rows]; text must be ISO 8601."""
    if name not in rows.table.column_names:
        raise UserError(f"{file} has no column {name!r}, by whose order rows are assigned to splits")
    column = one_array(rows.table.column(name))
    where = f"{file}, between rows {rows.numbers[0]} and {rows.numbers[-1]}" if len(rows.numbers) else file
    if is_list(column.type):
        column = pc.list_element(column, 0) if len(column) else column.flatten()
    kind = type_name(column.type)
    if column.null_count:
        at = pc.index(column.is_null(), True).as_py()
        raise UserError(
            f"{file}, row {rows.numbers[at]}: no time in the column {name!r}, by whose order rows are assigned to "
            "splits"
        )
    if kind == "text":
        try:
            text = column.cast(pa.string())
            has_zone = pc.any(pc.match_substring_regex(text, r"(Z|[+-]\d\d:?\d\d)$")).as_py()
            column = text.cast(pa.timestamp("us", "UTC" if has_zone else None))
        except pa.ArrowInvalid as error:
            raise UserError(
                f"{where}, column {name!r}: {first_line(error)}; expected times as in ISO 8601, such as "
                "2013-01-31 or 2013-01-31T05:00:00"
            ) from error
        kind = "timestamps"
    if kind in ("timestamps", "dates"):
        column = as_integers(column)
    elif kind not in ("integers", "floats"):
        raise UserError(f"{where}, column {name!r}: holds {kind}; expected timestamps, dates, numbers or ISO 8601 text")
    return np.asarray(one_array(column))
