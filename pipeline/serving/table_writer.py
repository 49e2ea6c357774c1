"""Write tables sequentially to one Parquet, CSV or JSON lines file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from pipeline.data.table import one_array
from pipeline.errors import UserError, first_line
from pipeline.settings.names import shortened

Names = Mapping[str, Sequence[str]]


class TableWriter:
    """Write tables of equal columns to a file, in the format of its ending.

    CSV has no lists: a list of fixed size becomes one column for each value (``probabilities_0`` or, with ``names``,
    ``probabilities_setosa``), and any other nested value becomes JSON.
    """

    def __init__(self, file: Path, names: Names | None = None):
        self._file = file
        self._names = names or {}
        self._sink: Any = None
        self._schema: pa.Schema | None = None

    def write(self, table: pa.Table) -> None:
        """Append the rows; raise a UserError if a column changes its type, or CSV would have a duplicate column."""
        if self._file.suffix == ".csv":
            table = flat(table, self._names)
        if self._schema is None:
            self._schema = table.schema
            self._sink = self._open(table.schema)
        try:
            table = table.cast(self._schema)
        except (pa.ArrowInvalid, ValueError) as error:
            raise UserError(f"a column is of other types further on: {first_line(error)}") from error
        if self._file.suffix == ".jsonl":
            for row in pa.table({name: shortest(table.column(name)) for name in table.column_names}).to_pylist():
                self._sink.write(_json(row) + "\n")
        else:
            self._sink.write_table(table)

    def close(self) -> None:
        """Close the file."""
        if self._sink is not None:
            self._sink.close()

    def _open(self, schema: pa.Schema) -> Any:
        if self._file.suffix == ".parquet":
            return parquet.ParquetWriter(self._file, schema)
        if self._file.suffix == ".csv":
            return csv.CSVWriter(self._file, schema)
        return self._file.open("w", encoding="utf-8")


def flat(table: pa.Table, names: Names) -> pa.Table:
    """Replace nested columns by columns that CSV can hold."""
    columns: list[tuple[str, Any]] = []
    for name in table.column_names:
        columns += _flat(name, one_array(table.column(name)), names.get(name, ()))
    flat_names = [name for name, _ in columns]
    twice = sorted({name for name in flat_names if flat_names.count(name) > 1})
    if twice:
        raise UserError(
            "CSV would have two columns of one name, for a value of a list becomes a column; write to a .parquet "
            f"file, or leave out of --columns: {shortened(twice)}"
        )
    return pa.table([column for _, column in columns], names=flat_names)


def _flat(name: str, column: Any, names: Sequence[str]) -> list[tuple[str, Any]]:
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        endings = names if len(names) == width else [str(place) for place in range(width)]
        return [
            part
            for place, ending in enumerate(endings)
            for part in _flat(f"{name}_{ending}", pc.list_element(column, place), ())
        ]
    if pa.types.is_nested(column.type):
        texts = [None if value is None else _json(value) for value in shortest(column).to_pylist()]
        return [(name, pa.array(texts, pa.string()))]
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [(name, pa.array([_text(value) for value in column.to_pylist()], pa.string()))]
    return [(name, column)]


def shortest(column: Any) -> Any:
    """Convert float32 to the float64 numbers with the fewest digits.

    The float32 nearest to 0.4267325 would be written as 0.42673251032829285. Arrow writes the shortest text that reads
    back as the same float32, a hundred times as fast as Python.
    """
    texts = _replace_float32(column.type, pa.string())
    return column if texts == column.type else column.cast(texts).cast(_replace_float32(column.type, pa.float64()))


def _replace_float32(type_: pa.DataType, replacement: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_replace_float32(type_.value_type, replacement), type_.list_size)
    if pa.types.is_list(type_):
        return pa.list_(_replace_float32(type_.value_type, replacement))
    return replacement if pa.types.is_float32(type_) else type_


def _json(value: Any) -> str:
    """Return JSON, with null for NaN and infinity."""
    return orjson.dumps(value, default=_text, option=orjson.OPT_PASSTHROUGH_DATETIME).decode()


def _text(value: Any) -> str | None:
    """Return bytes as text, and times as ISO 8601."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)
