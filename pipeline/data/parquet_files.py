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
    MOST_ROW_BYTES,
    Rows,
    Unit,
    check_decoded,
    is_text,
    rows_at_once,
    type_name,
)
from pipeline.errors import UserError, first_line

BATCH_ROWS = 16_384
# Bytes of a value in memory, by its type in the file.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "INT96": 8, "DOUBLE": 8}


def scan(file: str) -> tuple[dict[str, str], list[Unit]]:
    """Read the footer: types by column, and one unit for each row group.

    Raises:
        UserError: it is not a Parquet file, is cut short, or names a column twice; or a row or the whole is too large.
    """
    with filesystem.open_file(file) as stream:
        opened = _open(stream, file)
        types: dict[str, str] = {}
        for column in opened.schema_arrow:
            if column.name in types:
                raise UserError(f"{file}: the column name {column.name!r} occurs twice; expected different names")
            types[column.name] = type_name(column.type)
        units, row, decoded = [], 1, 0
        for group in range(opened.metadata.num_row_groups):
            rows, values = opened.metadata.row_group(group).num_rows, _bytes(opened.metadata.row_group(group))
            size = max(opened.metadata.row_group(group).total_byte_size, 8 * rows * len(types))
            decoded += values
            _check(file, decoded)
            if values > MOST_ROW_BYTES * max(1, rows):
                raise UserError(_too_large(file, row, values // max(1, rows)))
            units.append(Unit(file, "parquet", group, 1, row, size))
            row += rows
    return types, units


def read(unit: Unit, columns: Sequence[str] | None = None) -> Iterator[Rows]:
    """Read the rows of a unit in batches.

    Raises:
        UserError: the file is damaged.
    """
    with filesystem.open_file(unit.file) as stream:
        opened = _open(stream, unit.file)
        schema = pa.schema([(field.name, _plain(field.type)) for field in opened.schema_arrow])
        schema = schema if columns is None else pa.schema([field for field in schema if field.name in columns])
        opened = _open(stream, unit.file, _repeating(opened))
        groups = range(unit.start, opened.metadata.num_row_groups if unit.length is None else unit.start + unit.length)
        first = unit.first_row
        metadata = [opened.metadata.row_group(group) for group in groups]
        at_once = rows_at_once(BATCH_ROWS, sum(group.num_rows for group in metadata), sum(map(_bytes, metadata)))
        decoded = 0
        try:
            for batch in opened.iter_batches(at_once, row_groups=list(groups), columns=columns, use_threads=False):
                for part in _in_parts(batch, schema, unit.file, first):
                    decoded += part.nbytes
                    _check(unit.file, decoded)
                    yield Rows(part, np.arange(first, first + part.num_rows))
                    first += part.num_rows
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise UserError(
                f"{unit.file} is damaged after row {first - 1}, in row group {unit.start}: {first_line(error)}; "
                "write or copy it again"
            ) from error


def with_integers(rows: Rows, names: Sequence[str], file: str) -> Rows:
    """Return the rows with columns of floats as integers, so that large ones keep their last digits.

    Args:
        rows: Of the file.
        names: Columns that hold integers, whatever their type in the file.
        file: For the message.

    Raises:
        UserError: a value is no whole number.
    """
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


def _bytes(group: Any) -> int:
    """Return the bytes of a row group's values by its metadata, where a text that is repeated counts once.

    Its ``total_byte_size`` does not tell: a run of a million equal numbers is stored in some bytes.
    """
    columns = [group.column(at) for at in range(group.num_columns)]
    return sum(
        max(column.total_uncompressed_size, column.num_values * _WIDTHS.get(column.physical_type, 0))
        for column in columns
    )


def _check(file: str, decoded: int) -> None:
    try:
        check_decoded(decoded, filesystem.size(file))
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _in_parts(batch: pa.RecordBatch, schema: pa.Schema, file: str, row: int) -> Iterator[pa.Table]:
    """Yield the rows in parts that stay small when each text, which the file may hold once for all, is written out.

    Raises:
        UserError: a row takes more than ``MOST_ROW_BYTES``.
    """
    sizes: np.ndarray = sum((_text_bytes(column) for column in batch.columns), np.zeros(len(batch), np.int64))
    if len(sizes) and sizes.max() > MOST_ROW_BYTES:
        raise UserError(_too_large(file, row + int(sizes.argmax()), int(sizes.max())))
    starts = np.flatnonzero(np.diff(np.cumsum(sizes) // BYTES_AT_ONCE, prepend=0)).tolist()
    for start, end in itertools.pairwise(sorted({0, *starts, len(batch)})):
        columns = [_written_out(column) for column in batch.slice(start, end - start).columns]
        names = batch.schema.names  # in the order asked for
        yield pa.table(columns, names=names).cast(pa.schema([schema.field(name) for name in names]))


def _written_out(column: pa.Array) -> pa.Array:
    """Return a column with each text written out, of a part's rows only."""
    if _is_repeating(column.type):
        return column.cast(column.type.value_type)
    if pa.types.is_list(column.type) and _is_repeating(column.type.value_type):
        offsets = np.asarray(column.offsets)
        values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        return pa.ListArray.from_arrays(
            pa.array(offsets - offsets[0]), _written_out(values), mask=column.is_null() if column.null_count else None
        )
    return column


def _plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if _is_repeating(type_) else type_


def _is_repeating(type_: pa.DataType) -> bool:
    return pa.types.is_dictionary(type_) and is_text(type_.value_type)


def _text_bytes(column: pa.Array) -> np.ndarray:
    """Return the bytes that each row's text takes, int64 [rows]; 0 where it is stored for each row anyway."""
    if pa.types.is_list(column.type):
        ends = np.concatenate([[0], np.cumsum(_text_bytes(column.values))])
        return np.asarray(np.diff(ends[np.asarray(column.offsets)]))
    if not _is_repeating(column.type):
        return np.zeros(len(column), np.int64)
    lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).cast(pa.int64())
    return np.asarray(pc.fill_null(lengths.take(column.indices), 0))


def _repeating(opened: parquet.ParquetFile) -> list[str]:
    """Return the paths of columns of text, whose values the file may hold once for many rows."""
    paths = [opened.schema.column(at).path for at in range(len(opened.schema))]
    text = [
        field.name
        for field in opened.schema_arrow
        if is_text(field.type) or (pa.types.is_list(field.type) and is_text(field.type.value_type))
    ]
    return [path for path in paths if path in text or path.removesuffix(".list.element") in text]


def _too_large(file: str, row: int, size: int) -> str:
    return f"{file}, row {row}: found {size >> 20:,} MB in a row; expected at most {MOST_ROW_BYTES >> 20}"


def _open(stream: object, file: str, repeating: Sequence[str] | None = None) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(stream, read_dictionary=repeating)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f"{file} is not a Parquet file, whatever its name says, or is cut short: {first_line(error)}"
        ) from error
