"""Scan the footers of Parquet files for row groups and types; read them row group by row group."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipeline import filesystem
from pipeline.data.table import Rows, Unit, rows_at_once, type_name
from pipeline.errors import UserError, first_line

BATCH_ROWS = 16_384


def scan(file: str) -> tuple[dict[str, str], list[Unit]]:
    """Read the footer: types by column, and one unit for each row group.

    Raises:
        UserError: it is not a Parquet file, is cut short, or names a column twice.
    """
    with filesystem.open_file(file) as stream:
        opened = _open(stream, file)
        types: dict[str, str] = {}
        for column in opened.schema_arrow:
            if column.name in types:
                raise UserError(f"{file}: the column name {column.name!r} occurs twice; expected different names")
            types[column.name] = type_name(column.type)
        units, row = [], 1
        for group in range(opened.metadata.num_row_groups):
            rows = opened.metadata.row_group(group).num_rows
            size = max(opened.metadata.row_group(group).total_byte_size, 8 * rows * len(types))
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
        groups = range(unit.start, opened.metadata.num_row_groups if unit.length is None else unit.start + unit.length)
        first = unit.first_row
        metadata = [opened.metadata.row_group(group) for group in groups]
        at_once = rows_at_once(
            BATCH_ROWS, sum(group.num_rows for group in metadata), sum(group.total_byte_size for group in metadata)
        )
        try:
            for batch in opened.iter_batches(at_once, row_groups=list(groups), columns=columns, use_threads=False):
                yield Rows(pa.table(batch), np.arange(first, first + batch.num_rows))
                first += batch.num_rows
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


def _open(stream: object, file: str) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f"{file} is not a Parquet file, whatever its name says, or is cut short: {first_line(error)}"
        ) from error
