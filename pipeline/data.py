"""The raw data's files: found, and looked at before anything heavy starts."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Data, PipelineConfig
from pipeline.errors import UserError

SPLITS = ("train", "eval", "test")
FORMATS = (".csv", ".parquet")


@dataclass(frozen=True)
class DataFiles:
    """Where the rows are.

    Attributes:
        folder: What the patterns start at.
        patterns: File pattern by split; one pattern "all" when rows are split at random.
        files: All files, sorted.
        format: Their ending, one of ``FORMATS``.
    """

    folder: Path
    patterns: dict[str, str]
    files: tuple[Path, ...]
    format: str


def find_files(data: Data) -> DataFiles:
    """Finds the files of every split.

    Raises:
        UserError: the path does not exist, a split has no files, or the files are of an unknown or of several formats.
    """
    path = Path(data.path)
    if not path.exists():
        raise UserError(f"no data at {path}; give a file or folder of .csv or .parquet files with --data")
    if path.is_file():
        folder, patterns = path.parent, {"all": path.name}
    elif data.splits:
        folder, patterns = path, {split: data.splits[split] for split in SPLITS}
    else:
        folder, patterns = path, {"all": "*"}

    files: list[Path] = []
    for split, pattern in patterns.items():
        found = sorted(file for file in folder.glob(pattern) if file.is_file() and not file.name.startswith((".", "_")))
        if not found:
            rows = "rows" if split == "all" else f"the {split} split"
            raise UserError(f"no files for {rows}: nothing matches {folder / pattern}; expected .csv or .parquet files")
        files += found

    formats = {file.suffix.lower() for file in files}
    if len(formats) > 1 or not formats <= set(FORMATS):
        example = next((file for file in files if file.suffix.lower() not in FORMATS), files[0])
        raise UserError(
            f"{folder}: found files ending in {', '.join(sorted(formats))} ({example.name}); "
            "expected all .csv or all .parquet"
        )
    return DataFiles(folder=folder, patterns=patterns, files=tuple(files), format=formats.pop())


def check_data(config: PipelineConfig) -> DataFiles:
    """Finds the files and reads their label column.

    Raises:
        UserError: a file is not what its name says, lacks the label, or has a label that is not 0 or 1.
    """
    found = find_files(config.data)
    for file in found.files:
        _check_label(file, config.label.name)
    return found


def _check_label(file: Path, label: str) -> None:
    # Imported here: the command line must answer --help and a wrong setting at once.
    import pyarrow as pa
    import pyarrow.compute as pc

    row = 0
    for column in _read_column(file, label):
        if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
            raise UserError(
                f"{file}: the label {label!r} is {column.type}, such as {column[0].as_py()!r}; "
                "expected the integers 0 and 1"
            )
        values = column.cast(pa.int64())
        wrong = pc.fill_null(pc.invert(pc.is_in(values, pa.array([0, 1], pa.int64()))), True)
        if pc.any(wrong).as_py():
            at = pc.index(wrong, True).as_py()
            found = values[at].as_py()
            raise UserError(
                f"{file}, row {row + at + 1}: the label {label!r} is {'missing' if found is None else found}; "
                "expected 0 or 1 in every row"
            )
        row += len(column)
    if row == 0:
        raise UserError(f"{file} has no rows; expected at least one, or remove the file")


def _read_column(file: Path, name: str) -> Iterator[Any]:
    """Streams one column, as pyarrow arrays."""
    import pyarrow as pa
    from pyarrow import csv as pa_csv
    from pyarrow import parquet

    if file.suffix.lower() == ".parquet":
        try:
            table = parquet.ParquetFile(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{file} is not a Parquet file, whatever its name says: {_first_line(error)}") from error
        _check_column(file, table.schema_arrow.names, name)
        for batch in table.iter_batches(columns=[name]):
            yield batch.column(0)
    else:
        try:
            with file.open(newline="", encoding="utf-8") as stream:
                header = next(csv.reader(stream), [])
            _check_column(file, header, name)
            for batch in pa_csv.open_csv(file, convert_options=pa_csv.ConvertOptions(include_columns=[name])):
                yield batch.column(0)
        except (pa.ArrowInvalid, UnicodeDecodeError, csv.Error) as error:
            raise UserError(
                f"{file} is not a CSV file with a header, whatever its name says: {_first_line(error)}"
            ) from error


def _check_column(file: Path, columns: list[str], label: str) -> None:
    if label not in columns:
        raise UserError(f"{file} has no column {label!r}, the label; it has {', '.join(columns) or 'no columns'}")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
