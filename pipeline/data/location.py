"""Find the raw data and check its label before anything heavy starts."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.data import files
from pipeline.errors import UserError
from pipeline.filesystem import is_remote, stamps
from pipeline.settings.config import BIGQUERY, SPLITS, Data, PipelineConfig
from pipeline.settings.names import did_you_mean, shortened


def find_files(data: Data) -> files.Files:
    """Find the files of every split."""
    folder, patterns = locate(data)
    return files.find(
        folder,
        patterns,
        data.last_spans,
        images=data.images is not None,
        until_span=data.until_span,
        test_newest=data.test_newest,
    )


def locate(data: Data) -> tuple[str, dict[str, str]]:
    """Return the folder of the data and the file pattern by split ("all": rows are assigned by their content)."""
    path = data.path
    if not is_remote(path) and not Path(path).exists():
        images = "images, or of " if data.images else ""
        raise UserError(
            f"no data at {path}; expected a file or folder of {images}.csv, .parquet or .tfrecord files: correct "
            "data.path in the config, or give other data to a run with --data"
        )
    if Path(path).is_file() or (is_remote(path) and files.format_of(path)):
        folder, _, name = path.rpartition("/")
        return folder, {"all": name}
    every = "**" if data.images and data.files == "*" else data.files  # images lie at any depth
    return path, {split: data.splits[split] for split in SPLITS} if data.splits else {"all": every}


def query_of(data: Data) -> str:
    """Return the query of the data; UserError: the .sql file is missing or empty."""
    names = ", ".join(f"`{name}`" for name in data.leave_out)
    every = f"SELECT * EXCEPT ({names})" if names else "SELECT *"
    if data.path.startswith(BIGQUERY):
        return f"{every} FROM `{data.path[len(BIGQUERY) :]}`"
    if not Path(data.path).is_file():
        raise UserError(f"no query at {data.path}; expected a .sql file with one SELECT of BigQuery")
    query = Path(data.path).read_text(encoding="utf-8").strip().rstrip(";")
    if not query:
        raise UserError(f"{data.path} is empty; expected one SELECT of BigQuery")
    return f"{every} FROM (\n{query}\n)" if names else query


def prepare(config: PipelineConfig) -> None:
    """Create the data on first use, if the config says how."""
    if config.data.prepare and not Path(config.data.path).exists():
        command = [sys.executable, config.data.prepare, "--output", config.data.path]
        # Standard output belongs to the command, and its reader may have closed it.
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise UserError(f"{config.data.prepare} failed; its message stands above")


def check_data(config: PipelineConfig) -> list[str]:
    """Find the files and check the label in CSV and Parquet files, and the form of every CSV row; return ``notes``."""
    if config.data.query_source:
        query_of(config.data)
        return []
    found = find_files(config.data)
    if found.format == files.IMAGES:
        _check_classes(found, config)
    if found.format in ("tfrecord", files.IMAGES):
        return notes(config.data, found)
    if config.data.leave_out:
        from pipeline.data.shards import check_left_out

        names = {name for file in found.all for name in _columns(file, found.format)}
        check_left_out(config.data.leave_out, {*names, *found.partitions}, config.data.path)
    for split, paths in found.by_split.items():
        if images := config.data.images:
            from pipeline.data import csv_files, image_dataset

            for file in paths:
                image_dataset.holds_paths(file, found.format, images)  # checks the columns of a Parquet file
                if found.format == "csv":
                    image_dataset.check_columns(csv_files.read_header(file), file, images)
        rows = sum(_check_label(file, found, config) for file in paths)
        if not rows:
            which = "the files" if split == "all" else f"the files of the {split} split"
            raise UserError(f"{which} have no rows: {', '.join(paths)}; expected at least one row")
    return notes(config.data, found)


def notes(data: Data, found: files.Files | None = None) -> list[str]:
    """Return what the names of folders add to the rows, and which files of the folder add nothing."""
    found = found or find_files(data)
    lines = []
    if found.partitions:
        own = set(_columns(found.all[0], found.format)).intersection(found.partitions)
        added = [f"{name} ({kind})" for name, kind in found.partitions.items() if name not in own]
        if added:
            lines.append(f"columns from the names of folders: {shortened(added)}")
        if own:
            lines.append(
                f"{shortened(sorted(own))} in the names of folders: the files have such a column, which is read instead"
            )
    if found.format != files.IMAGES:
        empty = [file for file, stamp in stamps(found.folder, found.all) if stamp and not stamp[0]]
        if empty:
            lines.append(f"empty files: {len(empty)}, {shortened(empty)}")
    others = [] if Path(data.path).is_file() else files.unread(found.folder, {*found.all, *found.other_spans})
    if others:
        setting = "data.splits names" if data.splits else f"data.files={data.files!r} names"
        lines.append(
            f"files of {data.path} that are not read: {len(others)}, {shortened(others)}; {setting} those that are"
        )
    return lines


def _check_classes(found: files.Files, config: PipelineConfig) -> None:
    """Check that the folders of images are the classes."""
    from pipeline.data import labels
    from pipeline.data.image_dataset import classes_of

    numbers = config.label.numbers
    present: set[int] = set()
    for split, paths in found.by_split.items():
        present |= {numbers[name] for name in set(classes_of(paths, found.folder, found.patterns[split], numbers))}
    missing = [name for number, name in enumerate(config.label.classes) if number not in present]
    if missing:
        raise UserError(
            f"{found.folder} has no images of the class {missing[0]!r}; expected a folder with images for each class "
            f"of the label: {labels.choices(numbers)}"
        )


def _check_label(file: str, found_files: files.Files, config: PipelineConfig) -> int:
    """Check the label in every row; return the number of rows."""
    # Imported here: --help and setting errors must not wait for it.
    import pyarrow as pa
    import pyarrow.compute as pc

    from pipeline.data import labels
    from pipeline.data.table import type_name

    label, format = config.label, found_files.format
    row = 0
    for rows in _read_column(file, found_files, label.name, label.csv_type):
        if rows.bad and not config.data.max_bad_rows:
            raise UserError(f"{rows.bad[0]}; correct it, or allow a share of bad rows with data.max_bad_rows")
        column = rows.table.column(0).combine_chunks()
        row += len(rows.numbers) + len(rows.bad)
        if label.task == "regression":
            expected = "a number in every row"
            if type_name(column.type) not in ("integers", "floats"):
                raise UserError(
                    f"{file}: the label {label.name!r} is {column.type}, such as {column[0].as_py()!r}; expected "
                    "numbers, or label.classes in the config"
                )
            right = pc.is_finite(column)
        else:
            expected = f"{labels.choices(label.numbers)} in every row"
            numbers, _ = labels.encode(column, label.numbers)
            right = pc.is_in(numbers, pa.array(range(len(label.classes)), numbers.type))
        wrong = pc.fill_null(pc.invert(right), True)
        # A value outside the classes makes a CSV row invalid; the settings may allow some invalid rows.
        if config.data.max_bad_rows and format == "csv" and label.csv_type == "text":
            wrong = pc.is_null(column)
        if pc.any(wrong).as_py():
            at = pc.index(wrong, True).as_py()
            found = column[at].as_py()
            raise UserError(
                f"{file}, row {rows.numbers[at]}: the label {label.name!r} is {'missing' if found is None else found}; "
                f"expected {expected}{labels.spelling_hint(found, label.numbers)}"
            )
    return row


def _columns(file: str, format: str) -> list[str]:
    """Return the names of a file's columns; none of TFRecords, which do not list them."""
    from pipeline.data import csv_files, parquet_files

    if format == "csv":
        return csv_files.read_header(file)
    return list(parquet_files.scan(file)[0]) if format == "parquet" else []


def _read_column(file: str, found: files.Files, name: str, csv_type: str) -> Iterator[Any]:
    """Yield one column, as ``pipeline.data.table.Rows``."""
    from pipeline.data import csv_files, shards
    from pipeline.data.table import Unit

    names, partitions = _columns(file, found.format), files.partitions_of(file, found.folder)
    if found.format == "csv" and not names:
        return  # an empty file has no header and no rows
    if name not in (*names, *partitions):
        raise UserError(
            f"{file} has no column {name!r}, the label; it has {', '.join((*names, *partitions)) or 'no columns'}"
            f"{csv_files.column_hint(file, names, [name]) or did_you_mean(name, names)}"
        )
    types = {name: csv_type} if found.format == "csv" or name not in names else {}
    yield from shards.read(Unit(file, found.format, partitions=tuple(partitions.items())), types, [name])
