"""Scan the footers of Parquet files for row groups and types; read them row group by row group."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from pipeline import filesystem
from pipeline.data.table import (
    BYTES_AT_ONCE,
    IN_AN_EXAMPLE,
    MOST_ROW_BYTES,
    Rows,
    Unit,
    check_decoded,
    has_place,
    is_list,
    rows_at_once,
    type_name,
)
from pipeline.errors import UserError, first_line
from pipeline.settings.names import how_to_leave_out

BATCH_ROWS = 16_384
# Bytes of a value in memory, by its type in the file; of text, its index into the dictionary.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "INT96": 8, "DOUBLE": 8, "BYTE_ARRAY": 4}
_DECIMAL_WIDTH = 32
# pyarrow's words for a delta encoding, which it does not read as a dictionary.
_NO_DICTIONARY = "DecodeArrow of DictAccumulator"


def scan(file: str) -> tuple[dict[str, str], list[Unit]]:
    """Read the footer: types by column, and one unit for each row group."""
    with filesystem.open_file(file) as stream:
        opened = open_parquet(stream, file)
        types: dict[str, str] = {}
        for column in opened.schema_arrow:
            if column.name in types:
                raise UserError(f"{file}: the column name {column.name!r} occurs twice; expected different names")
            types[column.name] = type_name(column.type)
        units, row, decoded, stored = [], 1, 0, filesystem.size(file)
        for group in range(opened.metadata.num_row_groups):
            rows, values = opened.metadata.row_group(group).num_rows, _bytes(opened, group)
            size = max(opened.metadata.row_group(group).total_byte_size, 8 * rows * len(types))
            decoded += values
            check_decoded(file, decoded, stored)
            if values > MOST_ROW_BYTES * max(1, rows):
                raise UserError(_too_large(file, row, values // max(1, rows)))
            units.append(Unit(file, "parquet", group, 1, row, size))
            row += rows
    return types, units


def read(unit: Unit, columns: Sequence[str] | None = None) -> Iterator[Rows]:
    """Read the rows of a unit in batches; UserError: a type does not fit a tf.Example, or the file is damaged."""
    with filesystem.open_file(unit.file) as stream:
        opened = open_parquet(stream, unit.file)
        names = opened.schema_arrow.names if columns is None else columns
        _check_types(opened, names, unit.file)
        opened = open_parquet(stream, unit.file, _text_paths(opened))
        groups = range(unit.start, opened.metadata.num_row_groups if unit.length is None else unit.start + unit.length)
        first = unit.first_row
        rows = sum(opened.metadata.row_group(group).num_rows for group in groups)
        at_once = rows_at_once(BATCH_ROWS, rows, sum(_bytes(opened, group) for group in groups))
        decoded, stored = 0, filesystem.size(unit.file)
        try:
            for batch in opened.iter_batches(at_once, row_groups=list(groups), columns=columns, use_threads=False):
                # pyarrow takes "a" for "a.b", too.
                wanted = batch.select([name for name in batch.schema.names if name in names])
                for part, count in _in_parts(wanted, unit.file, first):
                    decoded += part.nbytes
                    check_decoded(unit.file, decoded, stored)
                    yield Rows(part, np.arange(first, first + count))
                    first += count
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            if _NO_DICTIONARY in str(error):
                raise UserError(
                    f"{unit.file}: found text in a delta encoding, which may stand for any number of bytes; expected a "
                    "dictionary or plain text, as pandas, pyarrow and Spark write it by default"
                ) from error
            raise UserError(
                f"{unit.file} is damaged after row {first - 1}, in row group {unit.start}: {first_line(error)}; "
                "write or copy it again"
            ) from error


def with_integers(rows: Rows, names: Sequence[str], file: str) -> Rows:
    """Convert columns of floats to integers, so that large ones keep their last digits; UserError: one is not whole."""
    table = rows.table
    for name in names:
        if name not in table.column_names or not pa.types.is_floating(table.column(name).type):
            continue
        column = table.column(name)
        try:
            whole = column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            numbers = np.asarray(column.fill_null(0.0))
            at = int(np.flatnonzero(~(np.abs(numbers) < 2**63) | (numbers != np.floor(numbers)))[0])
            raise UserError(
                f"{file}, row {rows.numbers[at]}, column {name!r}: found {column[at].as_py()!r}, expected an integer, "
                "as the schema says"
            ) from error
        table = table.set_column(table.column_names.index(name), name, whole)
    return replace(rows, table=table)


def _bytes(opened: parquet.ParquetFile, group: int) -> int:
    """Return the bytes of a row group's values by its metadata; a repeated text counts once.

    Its ``total_byte_size`` does not help: a run of a million equal numbers is stored in some bytes.
    """
    metadata = opened.metadata.row_group(group)
    columns = [metadata.column(at) for at in range(metadata.num_columns)]
    return sum(
        max(column.total_uncompressed_size, column.num_values * _width(opened.schema.column(at)))
        for at, column in enumerate(columns)
    )


def _width(column: Any) -> int:
    if column.logical_type.type == "DECIMAL":
        return _DECIMAL_WIDTH
    return int(column.length) if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[column.physical_type]


def _check_types(opened: parquet.ParquetFile, names: Sequence[str], file: str) -> None:
    """Reject types without an equivalent in a tf.Example before their values, of unlimited size, are read."""
    for field in opened.schema_arrow:
        # pyarrow takes "a" for "a.b", too.
        asked = any(field.name == name or field.name.startswith(f"{name}.") for name in names)
        if asked and not has_place(field.type):
            raise UserError(
                f"{file}, column {field.name!r}: of type {str(field.type)[:200]}; expected {IN_AN_EXAMPLE}; write its "
                f"parts as separate columns, or {how_to_leave_out(field.name)}"
            )


def _in_parts(batch: pa.RecordBatch, file: str, row: int) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows, and their number, in parts that stay small with texts expanded; UserError: a row is too large."""
    sizes: np.ndarray = sum((_row_bytes(column) for column in batch.columns), np.zeros(len(batch), np.int64))
    if len(sizes) and sizes.max() > MOST_ROW_BYTES:
        raise UserError(_too_large(file, row + int(sizes.argmax()), int(sizes.max())))
    starts = np.flatnonzero(np.diff(np.cumsum(sizes) // BYTES_AT_ONCE, prepend=0)).tolist()
    for start, end in itertools.pairwise(sorted({0, *starts, len(batch)})):
        columns = [_written_out(column) for column in batch.slice(start, end - start).columns]
        yield pa.table(columns, names=batch.schema.names), end - start


def _written_out(column: pa.Array) -> pa.Array:
    """Return a column with each text expanded, of a part's rows only."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if is_list(column.type) and pa.types.is_dictionary(column.type.value_type):
        offsets = pa.array(_offsets(column), pa.int32())
        missing = column.is_null() if column.null_count else None
        return pa.ListArray.from_arrays(offsets, _written_out(column.flatten()), mask=missing)
    return column


def _row_bytes(column: pa.Array) -> np.ndarray:
    """Return the bytes of each row with expanded texts, int64 [rows]."""
    if is_list(column.type):
        ends = np.concatenate([[0], np.cumsum(_row_bytes(column.flatten()))])
        return np.asarray(np.diff(ends[_offsets(column)]))
    if not pa.types.is_dictionary(column.type):
        return np.full(len(column), column.nbytes // max(1, len(column)), np.int64)
    lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).cast(pa.int64())
    return np.asarray(pc.fill_null(lengths.take(column.indices), 0))


def _offsets(lists: pa.Array) -> np.ndarray:
    """Return where each row's values begin among all, and where the last ones end, int64 [rows + 1]."""
    return np.concatenate([[0], np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(lists), 0)), dtype=np.int64)])


def _text_paths(opened: parquet.ParquetFile) -> list[str]:
    """Return the paths of columns of text or bytes, which the file may store once for many rows."""
    columns = map(opened.schema.column, range(len(opened.schema)))
    texts = (column for column in columns if column.physical_type == "BYTE_ARRAY")
    return [column.path for column in texts if column.logical_type.type != "DECIMAL"]


def _too_large(file: str, row: int, size: int) -> str:
    return f"{file}, row {row}: found {size >> 20:,} MB in a row; expected at most {MOST_ROW_BYTES >> 20}"


def open_parquet(stream: object, file: str, repeating: Sequence[str] | None = None) -> parquet.ParquetFile:
    """Open a Parquet file, with columns of repeating text as dictionaries."""
    try:
        opened = parquet.ParquetFile(stream, read_dictionary=repeating)
        _ = opened.schema_arrow.names  # raises for a name that is not text
        return opened
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        raise UserError(
            f"{file} is not a Parquet file, whatever its name says, or is cut short: {first_line(error)}"
        ) from error
