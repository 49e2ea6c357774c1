"""Tables, one after the other, into one Parquet, CSV or JSON lines file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from pipeline.errors import UserError


class TableWriter(contextlib.AbstractContextManager["TableWriter"]):
    """Writes tables of equal columns to a file, in the format that its name says."""

    def __init__(self, file: Path):
        self._file = file
        self._sink: Any = None
        self._schema: pa.Schema | None = None

    def write(self, table: pa.Table) -> None:
        """Adds the rows.

        Raises:
            UserError: a column is of another type than in the tables before.
        """
        if self._schema is None:
            self._schema = table.schema
            self._sink = self._open(table.schema)
        try:
            table = table.cast(self._schema)
        except (pa.ArrowInvalid, ValueError) as error:
            raise UserError(f"a column is of other types further on: {str(error).splitlines()[0]}") from error
        if self._file.suffix == ".jsonl":
            for row in table.to_pylist():
                self._sink.write(json.dumps(row, default=str) + "\n")
        else:
            self._sink.write_table(table)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the file; without any row it is empty."""
        if self._sink is not None:
            self._sink.close()
        elif error is None:
            self._file.touch()

    def _open(self, schema: pa.Schema) -> Any:
        if self._file.suffix == ".parquet":
            return parquet.ParquetWriter(self._file, schema)
        if self._file.suffix == ".csv":
            return csv.CSVWriter(self._file, schema)
        return self._file.open("w", encoding="utf-8")
