"""Plan shards of examples by the files alone; ``shard_files`` writes them.

These are functions on plain values, so that any Beam runner can pass them to workers. A ``UserError`` is passed as a
value too: Beam would retry it and bury its message.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

import pyarrow as pa

from pipeline.data import csv_files, files, kept, parquet_files, splits, tfrecord_files
from pipeline.data.image_dataset import Listing, deal, list_folder, list_table, mean_bytes
from pipeline.data.table import Rows, Unit
from pipeline.errors import UserError
from pipeline.settings.image_data import Images
from pipeline.settings.names import did_you_mean, how_to_leave_out, shortened

# About what the rows of one shard take in memory: the measure of how finely work is split, and of the step's memory.
SHARD_BYTES = 24 << 20
# Of more data shards are larger, up to this, and not more: a hundred thousand files are slow to list and to open.
MANY_SHARDS, LARGEST_SHARD_BYTES = 4_096, 128 << 20
# Columns in the remedy of a message.
MOST_NAMED = 10
# Of images: the bytes of their files.
IMAGE_SHARD_BYTES = 128 << 20


@dataclass(frozen=True)
class Job:
    """Files to read and examples to write."""

    files: tuple[tuple[str, str], ...]  # (input split, path); none if the files are images, which may be millions
    format: str  # a key of files.FORMATS, or files.IMAGES
    output_splits: tuple[str, ...]
    uri: str  # of the examples
    shares: tuple[int, ...] = ()  # of the output splits; empty: the input splits are the output splits
    hash_column: str | None = None  # assign rows to splits by its hash; None: by the hash of the whole row
    time_column: str | None = None  # assign rows by the order of this column instead
    types: Mapping[str, str] = field(default_factory=dict)  # decided types; of Parquet: floats that are integers
    max_bad_rows: float = 0.0  # share of CSV rows
    label: str = ""
    classes: Mapping[str, int] = field(default_factory=dict)  # numbers by label value; empty: keep the label
    weight: str | None = None
    leave_out: tuple[str, ...] = ()  # columns that are not read
    images: Images | None = None  # rows are images with these limits
    paths: bool = False  # the column of images holds paths
    folder: str = ""  # of the data
    patterns: Mapping[str, str] = field(default_factory=dict)  # by input split
    last_spans: int | None = 1  # None: all
    shard_mb: int | None = None  # in memory; None: by the size of the split
    spans: Mapping[str, int] = field(default_factory=dict)  # by path, of a window: each shard is of one span
    test_span: int | None = None  # whose rows are the test split
    kept: str = ""  # folder of scans and shards kept for later runs
    code: str = ""  # fingerprint of the code that creates them
    stamps: Mapping[str, tuple[int, float] | None] = field(default_factory=dict)  # size and mtime of kept files
    partitions: Mapping[str, str] = field(default_factory=dict)  # types of columns in the names of folders
    blocks: bool = False  # also write the decoded rows of each file, see pipeline.data.blocks; on this machine only

    @property
    def lasting(self) -> "Job":
        """Return everything that the shards of a span depend on besides its files, the same in later runs."""
        return replace(self, files=(), uri="", spans={}, test_span=None, stamps={}, last_spans=None, max_bad_rows=0.0)


@dataclass(frozen=True)
class FileScan:
    """Types and parts of a file, or its problem; and the folder where it is kept."""

    split: str
    file: str
    types: dict[str, str] = field(default_factory=dict)
    units: tuple[Unit, ...] = ()
    points: tuple[splits.Points, ...] = ()
    problem: str | None = None
    kept: str = ""


@dataclass(frozen=True)
class Shard:
    """Parts of files whose rows are mixed and written together."""

    split: str  # input split
    number: int  # from 0
    of: int  # shards in the input split, or in its span
    bytes: int  # about what its rows take in memory
    units: tuple[Unit, ...]
    types: dict[str, str]  # by column of all files
    cuts: tuple[float, ...] = ()  # times at which the second and later output splits begin
    problem: str | None = None
    span: int | None = None
    output: str | None = None  # split of all its rows; None: each row is assigned


# An input split, a span of it, the number of its shards, about the bytes of each, and the parts of each.
Dealt: TypeAlias = tuple[str, int | None, int, int, Iterable[tuple[Unit, ...]]]


def scan(split_and_file: tuple[str, str], job: Job) -> FileScan:
    """Scan one file, or take the scan of an earlier run."""
    if not job.kept:
        return _scan(split_and_file, job)
    folder = kept.folder_of(job.kept, "scans", job.lasting, split_and_file, job.stamps[split_and_file[1]])
    if kept.is_whole(folder):
        return cast(FileScan, kept.read_value(folder))
    found = _scan(split_and_file, job)
    if found.problem is None:
        found = replace(found, kept=folder)
        kept.write_value(folder, found)
        kept.seal(folder)
    return found


def _scan(split_and_file: tuple[str, str], job: Job) -> FileScan:
    """Scan one file; all of it only if its types and parts cannot be known otherwise."""
    split, file = split_and_file
    try:
        if job.format == "csv":
            types, units = csv_files.scan(file, {**job.types, **dict.fromkeys(job.leave_out, csv_files.NOTHING)})
        elif job.format == "parquet":
            types, units = parquet_files.scan(file)
            # pandas writes integers with gaps as floats; with a schema that says integers, they keep every digit.
            types |= {
                name: csv_files.INTEGERS
                for name, kind in types.items()
                if kind == csv_files.FLOATS and job.types.get(name) == csv_files.INTEGERS
            }
        else:
            types, units = {}, tfrecord_files.scan(file)
        partitions = files.partitions_of(file, job.folder)
        units = [replace(unit, partitions=tuple(partitions.items())) for unit in units]
        if types or units:  # not an empty file
            types = {name: job.types.get(name, job.partitions.get(name, csv_files.TEXT)) for name in partitions} | types
        points = []
        if job.time_column:
            for unit in units:
                for rows in read(unit, types, [job.time_column]):
                    points.append(splits.Points.of(splits.times_of(rows, job.time_column, file)))
    except UserError as error:
        return FileScan(split, file, problem=str(error))
    except MemoryError:
        return FileScan(split, file, problem=out_of_memory(file))
    return FileScan(split, file, types, tuple(units), tuple(point for point in points if len(point.values)))


def plan(job: Job, scans: Sequence[FileScan]) -> Iterator[Shard]:
    """Assign the parts of all files to shards; every n-th part of a split goes to the same one of its n shards.

    In a window of spans, every n-th part of a span, so that a shard stays the same when the window moves on.
    """
    places = {pair: place for place, pair in enumerate(job.files)}
    in_order = list(dict.fromkeys(split for split, _ in job.files))
    scans = sorted(
        scans,
        key=lambda scan: (
            in_order.index(scan.split),
            job.spans.get(scan.file, 0),
            places[scan.split, scan.file],
        ),
    )
    try:
        for scan in scans:
            if scan.problem:
                raise UserError(scan.problem)
        types = merge_types([(scan.file, scan.types) for scan in scans], job)
        if job.format != "tfrecord":
            check_left_out(job.leave_out, {name for scan in scans for name in scan.types}, job.folder)
        points = [point for scan in scans for point in scan.points if not _is_test(job, job.spans.get(scan.file))]
        shares = [share for share in job.shares if share]
        cuts = tuple(splits.cuts(points, shares).tolist()) if job.time_column and points else ()
        dealt = _deal_images(job, scans, types) if job.images and job.paths else _deal_units(job, scans)
        for split, span, number, size, parts in dealt:
            output = "test" if _is_test(job, span) else None
            for index, units in enumerate(parts):
                yield Shard(split, index, number, size, units, types, () if output else cuts, span=span, output=output)
    except UserError as error:
        yield Shard("", 0, 0, 0, (), {}, problem=str(error))


def _is_test(job: Job, span: int | None) -> bool:
    return job.test_span is not None and span == job.test_span


def _deal_units(job: Job, scans: Sequence[FileScan]) -> Iterator[Dealt]:
    """Yield input splits, or spans of them, with the parts of their files assigned to shards."""
    for (split, span), several in itertools.groupby(scans, key=lambda scan: (scan.split, job.spans.get(scan.file))):
        units = [unit for scan in several for unit in scan.units]
        total = sum(unit.bytes for unit in units)
        size = shard_bytes(job, total)
        number = min(max(1, round(total / size)), len(units))
        yield split, span, number, size, (tuple(units[index::number]) for index in range(number))


def shard_bytes(job: Job, total: float) -> int:
    """Return about the bytes of each shard of a split, by the data alone, so that files are the same anywhere."""
    if job.shard_mb:
        return job.shard_mb << 20
    if job.images:
        return IMAGE_SHARD_BYTES
    return min(max(SHARD_BYTES, int(total / MANY_SHARDS)), LARGEST_SHARD_BYTES)


def _deal_images(job: Job, scans: Sequence[FileScan], types: Mapping[str, str]) -> Iterator[Dealt]:
    """Yield input splits with the paths of their images assigned to shards."""
    assert job.images is not None
    by_split: dict[str, list[Listing]] = {}
    if job.format == files.IMAGES:
        # Found here and not in the job: their names would not pass through Beam with it.
        for split, paths in files.find(job.folder, job.patterns, job.last_spans, images=True).by_split.items():
            listing = list_folder(job.folder, job.patterns[split], paths, job.images, job.label, job.classes)
            by_split[split] = [listing]
    for scan in scans:  # of tables of paths
        listings = by_split.setdefault(scan.split, [])
        if batches := [rows for unit in scan.units for rows in read(unit, types)]:
            listings.append(list_table(scan.file, job.format, batches, job.images))
    for split, listings in by_split.items():
        rows = sum(len(listing.rows.table) for listing in listings)
        total = rows * mean_bytes(listings, job.images)
        size = shard_bytes(job, total)
        number = min(max(1, round(total / size)), max(1, rows))
        yield split, None, number, size, deal(listings, number)


def read(unit: Unit, types: Mapping[str, str], columns: Sequence[str] | None = None) -> Iterator[Rows]:
    """Read a part of a file, with the columns in the names of its folders.

    ``columns`` None: those with a type, or all of TFRecords.
    """
    try:
        if unit.format == "csv":
            found = csv_files.read(unit, types, columns)
        elif unit.format == "parquet":
            whole = [name for name, kind in types.items() if kind == csv_files.INTEGERS]
            wanted = list(types) if columns is None else columns
            found = (parquet_files.with_integers(rows, whole, unit.file) for rows in parquet_files.read(unit, wanted))
        else:
            found = tfrecord_files.read(unit, columns)
        for rows in found:
            yield _with_partitions(rows, unit, types, columns) if unit.partitions else rows
    except MemoryError as error:
        raise UserError(out_of_memory(unit.file)) from error


def _with_partitions(rows: Rows, unit: Unit, types: Mapping[str, str], columns: Sequence[str] | None) -> Rows:
    """Return rows with the columns in the names of folders; a column of the file itself counts instead."""
    table = {name: rows.table.column(name) for name in rows.table.column_names}
    for name, value in unit.partitions:
        if name not in table and name in (types if columns is None else columns):
            kind = types.get(name, csv_files.TEXT)
            parsed, wrong = csv_files.parse(pa.chunked_array([pa.array([value], pa.string())]), kind)
            if wrong is not None:
                raise UserError(
                    f"{unit.file}: the folder's column {name!r} is {value!r}; expected {csv_files.EXPECTED[kind]}, as "
                    "the schema says"
                )
            table[name] = pa.repeat(parsed[0], len(rows.numbers))
    return replace(rows, table=pa.table(table))


def out_of_memory(file: str) -> str:
    """Return the problem of a file whose rows do not fit into this process's memory."""
    return f"{file}: its rows take more memory than this process may have; give it more, or write smaller row groups"


def check_left_out(leave_out: Iterable[str], names: Collection[str], where: str) -> None:
    """Raise a UserError for a column to leave out that no file has."""
    for name in leave_out:
        if name not in names:
            raise UserError(
                f"{where} has no column {name!r}, which data.leave_out names; it has {shortened(sorted(names))}"
                f"{did_you_mean(name, sorted(names))}"
            )


def merge_types(types_by_file: Iterable[tuple[str, Mapping[str, str]]], job: Job) -> dict[str, str]:
    """Return one type by column for all files; UserError: columns or types differ."""
    merged: dict[str, tuple[str, str]] = {}
    first: tuple[str, set[str]] | None = None
    for file, types in types_by_file:
        types = {name: kind for name, kind in types.items() if name not in job.leave_out}
        if not types:
            continue  # an empty file, or TFRecords, whose columns are known when they are read
        if first is None:
            first = file, set(types)
        elif first[1] != set(types) and job.format != "tfrecord":
            differences = [
                f"{which} has {', '.join(map(repr, sorted(names)))} more"
                for which, names in ((first[0], first[1] - set(types)), (file, set(types) - first[1]))
                if names
            ]
            raise UserError(
                f"{first[0]} and {file} have different columns: {' and '.join(differences)}; expected the same columns "
                f"in every file, or {how_to_leave_out(*sorted(first[1] ^ set(types))[:MOST_NAMED])}"
            )
        for name, type_ in types.items():
            known, where = merged.get(name, (csv_files.NOTHING, file))
            numbers = {csv_files.INTEGERS, csv_files.FLOATS}
            if known == csv_files.NOTHING:
                merged[name] = type_, file
            elif job.format == "csv" and {known, type_} == numbers:
                merged[name] = csv_files.FLOATS, file if type_ == csv_files.FLOATS else where
            elif type_ not in (known, csv_files.NOTHING):
                remedy = "; or say its type in a reviewed schema" if job.format == "csv" else ""
                raise UserError(
                    f"the column {name!r} holds {known} in {where} and {type_} in {file}; expected one type in every "
                    f"file{remedy}; or {how_to_leave_out(name)}"
                )
    return {name: type_ for name, (type_, _) in merged.items()}
