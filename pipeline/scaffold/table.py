"""Read a table: typed rows, the label, the columns, and the splits that a run will assign them to."""

import dataclasses
import math
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.data import csv_files, labels, shards, splits
from pipeline.data.csv_rows import REPEATED_HEADER
from pipeline.data.examples import as_lists, serialize
from pipeline.data.files import Files
from pipeline.data.location import find_files
from pipeline.data.table import BadRow, Rows, Unit
from pipeline.errors import UserError, first_line
from pipeline.quality.rows import SAMPLE, leaks
from pipeline.scaffold.columns import Column, describe, without_too_many_codes
from pipeline.scaffold.labels import label_of
from pipeline.scaffold.texts import Place
from pipeline.settings.config import SPLITS, Data, HashSplit, Label
from pipeline.settings.gates import DataChecks
from pipeline.settings.names import did_you_mean, how_to_leave_out, shortened
from pipeline.settings.tasks import Task

# Rows that are read; the run itself reads all.
MOST_ROWS = 2_000_000
FEWEST_ROWS = 50
# Shares of train, eval and test: the usual ones, and those of small data, whose parts must not be tiny.
SHARES = (HashSplit().shares, {"train": 6, "eval": 2, "test": 2}, {"train": 5, "eval": 2, "test": 3})
SMALL = 1_000


@dataclass(frozen=True)
class Table:
    """The data, as far as it was read."""

    rows: pa.Table  # as ExampleGen writes them: lists of int64, float32 or bytes
    label: Label
    values: np.ndarray  # of the label: numbers of classes, int64, or numbers, float64, [rows]
    columns: tuple[Column, ...]  # the others
    whole: bool  # all rows were read
    shares: Mapping[str, int]  # of the splits
    places: np.ndarray  # the split of each row as its place in SPLITS, int64 [rows]
    leave_out: tuple[str, ...] = ()  # columns that were not read
    repeated: tuple[BadRow, ...] = ()  # headers among the rows, which were not read
    label_note: str = ""  # on spellings of classes

    @property
    def max_bad_rows(self) -> float:
        """Return the share of bad rows that the run must allow, rounded up."""
        share = len(self.repeated) / (self.rows.num_rows + len(self.repeated))
        digit = 10.0 ** math.floor(math.log10(share)) if share else 1.0
        return float(f"{math.ceil(share / digit) * digit:.1g}")

    def split(self, name: str) -> pa.Table:
        """Return the rows of a split."""
        return self.rows.filter(pa.array(self.places == SPLITS.index(name)))

    @property
    def weights(self) -> np.ndarray | None:
        """Return how much each row counts, [rows]; None where all count the same."""
        if self.label.weight is None:
            return None
        return np.asarray(self.rows.column(self.label.weight).combine_chunks().values)

    @property
    def features(self) -> tuple[Column, ...]:
        """Return the columns that a model can use."""
        return tuple(column for column in self.columns if not column.left_out)


class Read(NamedTuple):
    """Columns as they stand in the files."""

    format: str
    scans: list[shards.FileScan]
    by_name: dict[str, pa.ChunkedArray]
    whole: bool  # all rows were read
    place: Place  # how messages name a row
    repeated: tuple[BadRow, ...]  # headers among the rows


def look(data: Data, label_name: str, task: Task | None, weight: str | None = None) -> Table:
    """Read a table and infer label and columns; ``weight`` names the column of how much each row counts."""
    if weight in data.leave_out:
        raise UserError(f"the column {weight!r} is the weight, which is no input of the model; it cannot be left out")
    read = read_columns(data, label_name)
    names, count = list(read.by_name), len(read.by_name[label_name])
    if weight and weight not in names:
        hint = did_you_mean(weight, names)
        raise UserError(f"no column {weight!r}{hint}; --weight names one of how much each row counts")

    label, values, label_note = label_of(label_name, read.by_name[label_name], task, read.place)
    label = dataclasses.replace(label, weight=weight)
    columns = without_too_many_codes(
        [
            describe(name, values, from_text=read.format == "csv", place=read.place)
            for name, values in read.by_name.items()
            if name not in (label_name, weight)
        ]
    )
    if all(column.left_out for column in columns):
        reasons = "; ".join(f"{column.name}: {column.left_out}" for column in columns[:30])
        raise UserError(f"{data.path} has no column to predict {label_name!r} by: {reasons}")
    types = {column.name: column.type for column in columns}
    columns += [Column(name, csv_files.NOTHING, left_out="as requested") for name in data.leave_out]
    table = pa.concat_tables(_typed(read, types, label), promote_options="default")
    encoded = pa.array(values, pa.float32() if label.task == "regression" else pa.int64())
    offsets = pa.array(np.arange(count + 1, dtype=np.int32))
    lists = pa.ListArray.from_arrays(offsets, encoded)
    table = table.append_column(label_name, lists)
    table = table.select(sorted(table.column_names))
    shares, places = _assign(table, label, values)
    found = Table(
        table, label, values, tuple(columns), read.whole, shares, places, data.leave_out, read.repeated, label_note
    )
    for place, split in enumerate(SPLITS):
        if found.weights is not None and not found.weights[places == place].any():
            raise UserError(f"the weight {weight!r} is 0 in every row of the {split} split; give rows that count")
    return found


def read_columns(data: Data, label: str) -> Read:
    """Read CSV or Parquet files."""
    found = find_files(data)
    if found.format == "tfrecord":
        raise UserError("pipeline new reads CSV and Parquet files; for TFRecords copy configs/flights.py and edit it")
    if label in data.leave_out:
        raise UserError(f"the column {label!r} is the label, and cannot be left out")
    scans = _scan(found, label, data)
    batches, whole = _read(scans)
    count = sum(len(rows.table) for rows, _ in batches)
    if count < FEWEST_ROWS:
        raise UserError(f"{data.path} has {count:,} rows; expected at least {FEWEST_ROWS} to train, choose and test by")

    def values_of(name: str) -> pa.ChunkedArray:
        parts = [rows.table.select([name]) for rows, _ in batches]
        try:
            return pa.concat_tables(parts, promote_options="permissive").column(name)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(f"column {name!r}: {first_line(error)}; or {how_to_leave_out(name)}") from error

    by_name = {name: values_of(name) for name in batches[0][0].table.column_names}
    starts = np.cumsum([0, *(len(rows.table) for rows, _ in batches)])

    def place(row: int) -> str:
        at = int(np.searchsorted(starts, row, side="right")) - 1
        rows, file = batches[at]
        within = f"row {int(rows.numbers[row - starts[at]]):,}"
        return f"{within} of {file}" if len(scans) > 1 else within

    return Read(found.format, scans, by_name, whole, place, tuple(row for rows, _ in batches for row in rows.bad))


def check_leaks(table: Table, keep: Collection[str]) -> None:
    """Refuse columns that contain a leaked label, by the rows and the rule of the run itself."""
    for name in keep:
        if name == table.label.name:
            raise UserError(f"the column {name!r} is the label, which is no input of the model; it cannot be kept")
        if name not in table.rows.column_names:
            raise UserError(f"no column {name!r} to keep{did_you_mean(name, table.rows.column_names)}")
    usable = {column.name for column in table.features} - set(keep)
    names = [name for name in table.rows.column_names if name in usable or name == table.label.name]
    sample = pa.concat_tables([table.split(split).select(names).slice(0, SAMPLE) for split in ("train", "eval")])
    found = list(leaks(sample, table.label.name, DataChecks(), len(table.label.classes)))
    if not found:
        return
    columns = [f"column {leak.feature!r}: {leak.found}" for leak in found[:10]]
    names = [shlex.quote(leak.feature) for leak in found[:10]]
    flags = {flag: " ".join(f"{flag} {name}" for name in names) for flag in ("--leave-out", "--keep")}
    raise UserError(
        f"{'; '.join(columns)}. The run would stop there: such a column mostly is known only when the label is. "
        f"If so, leave it out: {flags['--leave-out']}. If it is known at prediction time: {flags['--keep']}"
    )


def _scan(found: Files, label: str, data: Data) -> list[shards.FileScan]:
    """Scan every file; a column of a CSV file is read as text, until all of it is known."""
    job = shards.Job(
        tuple(("all", file) for file in found.all),
        found.format,
        output_splits=(),
        uri="",
        folder=found.folder,
        partitions=found.partitions,
        leave_out=data.leave_out,
    )
    scans = []
    for split, file in job.files:
        names = (*csv_files.read_header(file), *found.partitions) if found.format == "csv" else ()
        known = dict.fromkeys(names, csv_files.TEXT)
        scan = shards.scan((split, file), dataclasses.replace(job, types=known))
        if scan.problem:
            raise UserError(scan.problem)
        _check_columns(file, list(scan.types), label)
        scans.append(scan)
    shards.check_left_out(data.leave_out, {name for scan in scans for name in scan.types}, data.path)
    shards.merge_types([(scan.file, scan.types) for scan in scans], job)
    used = [{name: kind for name, kind in scan.types.items() if name not in data.leave_out} for scan in scans]
    return [dataclasses.replace(scan, types=types) for scan, types in zip(scans, used, strict=True)]


def _read(scans: list[shards.FileScan]) -> tuple[list[tuple[Rows, str]], bool]:
    """Read the rows with their files; return also whether these are all. Only headers may be among the bad rows."""
    batches: list[tuple[Rows, str]] = []
    count = 0
    for scan in scans:
        for unit in scan.units:
            if count >= MOST_ROWS:
                return batches, False
            for rows in shards.read(unit, scan.types):
                for row in rows.bad:
                    if row.reason != REPEATED_HEADER:
                        raise UserError(f"{row}; correct it, or leave this row out")
                if len(rows.table) or rows.bad:
                    batches.append((rows, scan.file))
                    count += len(rows.table)
    return batches, True


def _typed(read: Read, types: Mapping[str, str], label: Label) -> Iterator[pa.Table]:
    """Yield the rows as ExampleGen will make examples of them, without the label."""
    others = {label.weight: csv_files.FLOATS} if label.weight else {}
    scans = [
        dataclasses.replace(scan, types={**types, **others, label.name: scan.types[label.name]}) for scan in read.scans
    ]
    for rows, file in _read(scans)[0]:
        if label.weight:
            good = dataclasses.replace(rows, bad=[])
            rows = labels.with_weights(good, label.weight, Unit(file, read.format))
            if rows.bad:
                raise UserError(f"{rows.bad[0]}; correct it, or leave this row out")
        table = rows.table.drop_columns(label.name)
        for at, name in enumerate(table.column_names):
            if types.get(name) == csv_files.NOTHING:
                table = table.set_column(at, name, pa.nulls(len(table), pa.int64()))
        yield as_lists(dataclasses.replace(rows, table=table), file)


def _assign(table: pa.Table, label: Label, values: np.ndarray) -> tuple[Mapping[str, int], np.ndarray]:
    """Return shares with which every split has rows of both classes, and the split of each row."""
    records = serialize(table)
    reason = ""
    for shares in SHARES[1 if len(values) < SMALL else 0 :]:
        places = splits.places_of(records, list(shares.values()))
        reason = _lacking(places, label, values)
        if not reason:
            return shares, places
    different = len(set(records))
    equal = (
        f", of which {different:,} are different, and equal rows go to one split" if different < len(values) / 2 else ""
    )
    raise UserError(f"{len(values):,} rows{equal}, are too few for train, eval and test: {reason}; give more rows")


def _lacking(places: np.ndarray, label: Label, values: np.ndarray) -> str:
    for place, split in enumerate(SPLITS):
        mine = values[places == place]
        if not len(mine):
            return f"the {split} split would have none"
        absent = np.setdiff1d(range(len(label.classes)), mine)
        if len(absent) and (label.task == "binary" or split == "train"):
            return f"the {split} split would have none of {label.classes[absent[0]]!r}"
        if label.task == "regression" and len(np.unique(mine)) < 2:
            return f"{label.name!r} would be the same in all rows of the {split} split"
    return ""


def _check_columns(file: str, names: list[str], label: str) -> None:
    if len(names) == 1:
        raise UserError(
            f"{file} has one column, {names[0]!r}; expected the label and at least one to predict it by"
            f"{csv_files.column_hint(file, names, [label])}"
        )
    if not names:
        raise UserError(f"{file} is empty; expected a header with the names of the columns, and rows")
    if label not in names:
        reason = csv_files.column_hint(file, names, [label])
        hint = f"{reason}." if reason else did_you_mean(label, names) or "."
        raise UserError(f"{file} has no column {label!r}, the label{hint} It has {shortened(names)}")
