"""Plan shards of examples by the files alone, and write them.

Functions on plain values, so that any Beam runner can carry them to any worker. A ``UserError`` travels as a value too:
Beam would retry it and bury its message.
"""

import contextlib
import csv
import io
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import filesystem
from pipeline.data import csv_files, examples, files, image_files, labels, parquet_files, splits, tfrecord_files
from pipeline.data.serialize import serialize
from pipeline.data.table import BadRow, Rows, Unit, type_name
from pipeline.errors import UserError
from pipeline.settings.images import Images

# About what the rows of one shard take in memory: the measure of how finely work is split, and of the step's memory.
SHARD_BYTES = 24 << 20
# A shard whose parts turn out larger is written in several files.
MOST_BYTES = 2 * SHARD_BYTES
# Level 1 writes four times as fast as the usual 6, for files half as large again (benchmarks/example_gen.py).
COMPRESSION_LEVEL = 1
# The bytes of a file of images; less of them is mixed, and in memory several times, at once.
IMAGE_SHARD_BYTES = 128 << 20
IMAGE_PART_BYTES = 16 << 20
MOST_IMAGE_BYTES = 192 << 20
# Images are compressed already.
IMAGE_COMPRESSION_LEVEL = 0
SUMMARY = "summary.json"
BAD_ROWS = "bad_rows"
# Unfinished files, out of sight of readers of Split-*; on local disks only.
PARTIAL = "_partial"
SHOWN = 3


@dataclass(frozen=True)
class Job:
    """Files to read and examples to write.

    Attributes:
        files: (input split, path) of every file; none where the files are images, which may be millions: each step of a
            job carries the job.
        format: A key of ``files.FORMATS``, or ``files.IMAGES``.
        output_splits: Names of the splits to write.
        shares: Of the output splits, when rows are assigned to them; empty when the input splits are the output splits.
        hash_column: Assign by the hash of this column; None assigns by the hash of the whole row.
        time_column: Assign by the order of this column instead.
        types: Types of columns that are decided already; of Parquet columns, those of floats that are integers.
        max_bad_rows: Share of CSV rows that may be bad.
        uri: Of the examples.
        label: Column whose values become the numbers of classes.
        classes: Those numbers by value; empty leaves the column as it is.
        images: The rows are images, with these limits; None: they are rows of tables.
        paths: The column of images holds paths.
        folder: Of the data.
        patterns: File pattern by input split.
        last_spans: How many of the newest spans are read; None reads all.
    """

    files: tuple[tuple[str, str], ...]
    format: str
    output_splits: tuple[str, ...]
    uri: str
    shares: tuple[int, ...] = ()
    hash_column: str | None = None
    time_column: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    max_bad_rows: float = 0.0
    label: str = ""
    classes: Mapping[str, int] = field(default_factory=dict)
    images: Images | None = None
    paths: bool = False
    folder: str = ""
    patterns: Mapping[str, str] = field(default_factory=dict)
    last_spans: int | None = 1


@dataclass(frozen=True)
class FileScan:
    """Types and parts of a file, or the problem with it."""

    split: str
    file: str
    types: dict[str, str] = field(default_factory=dict)
    units: tuple[Unit, ...] = ()
    points: tuple[splits.Points, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Shard:
    """Parts of files whose rows are mixed and written together.

    Attributes:
        split: Input split.
        number: From 0, of ``of`` in its input split.
        types: Type by column of all files.
        cuts: Times at which the second and every later output split begins.
    """

    split: str
    number: int
    of: int
    units: tuple[Unit, ...]
    types: dict[str, str]
    cuts: tuple[float, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class WrittenShard:
    """Rows and types of a shard that was written, or the problem with it."""

    rows: dict[str, int] = field(default_factory=dict)
    types: dict[str, dict[str, str]] = field(default_factory=dict)  # by file
    bad_rows: int = 0
    first_bad: tuple[BadRow, ...] = ()
    problem: str | None = None


def scan(split_and_file: tuple[str, str], job: Job) -> FileScan:
    """Scan one file; all of it only where there is no other way to know its types and parts."""
    split, file = split_and_file
    try:
        if job.format == "csv":
            types, units = csv_files.scan(file, job.types)
        elif job.format == "parquet":
            types, units = parquet_files.scan(file)
            # pandas writes integers with gaps as floats; those of a schema that says integers keep every digit.
            types |= {
                name: csv_files.INTEGERS
                for name, kind in types.items()
                if kind == csv_files.FLOATS and job.types.get(name) == csv_files.INTEGERS
            }
        else:
            types, units = {}, tfrecord_files.scan(file)
        points = []
        if job.time_column:
            for unit in units:
                for rows in read(unit, types, [job.time_column]):
                    points.append(splits.Points.of(splits.times_of(rows, job.time_column, file)))
    except UserError as error:
        return FileScan(split, file, problem=str(error))
    return FileScan(split, file, types, tuple(units), tuple(point for point in points if len(point.values)))


def plan(job: Job, scans: Sequence[FileScan]) -> Iterator[Shard]:
    """Assign the parts of all files to shards; every n-th part of a split goes to the same one of its n shards."""
    scans = sorted(scans, key=lambda file: job.files.index((file.split, file.file)))
    try:
        for scan in scans:
            if scan.problem:
                raise UserError(scan.problem)
        types = merge_types([(scan.file, scan.types) for scan in scans], job)
        points = [point for scan in scans for point in scan.points]
        cuts = tuple(splits.cuts(points, job.shares).tolist()) if job.time_column and points else ()
        listings = _list_images(job, scans, types) if job.images and job.paths else {}
    except UserError as error:
        yield Shard("", 0, 0, (), {}, problem=str(error))
        return
    if job.images and job.paths:
        for split, of_images in listings.items():
            rows = sum(len(listing.rows.table) for listing in of_images)
            size = rows * image_files.mean_bytes(of_images, job.images)
            number = min(max(1, round(size / IMAGE_SHARD_BYTES)), max(1, rows))
            for index, part in enumerate(image_files.deal(of_images, number)):
                yield Shard(split, index, number, part, types, cuts)
        return
    shard_bytes = IMAGE_SHARD_BYTES if job.images else SHARD_BYTES
    for split, of_split in itertools.groupby(scans, key=lambda scan: scan.split):
        units = [unit for scan in of_split for unit in scan.units]
        number = max(1, round(sum(unit.bytes for unit in units) / shard_bytes))
        for index in range(min(number, len(units))):
            yield Shard(split, index, min(number, len(units)), tuple(units[index::number]), types, cuts)


def _list_images(job: Job, scans: Sequence[FileScan], types: Mapping[str, str]) -> dict[str, list[image_files.Listing]]:
    """Return the rows with the paths of the images, by input split."""
    assert job.images is not None
    listings: dict[str, list[image_files.Listing]] = {}
    if job.format == files.IMAGES:
        # Found here and not in the job: their names would not pass through Beam with it.
        found = files.find(job.folder, job.patterns, job.last_spans, images=True)
        for split, paths in found.by_split.items():
            pattern = job.patterns[split]
            listing = image_files.list_folder(job.folder, pattern, paths, job.images, job.label, job.classes)
            listings[split] = [listing]
        return listings
    for scan in scans:
        batches = [rows for unit in scan.units for rows in read(unit, types)]
        listings.setdefault(scan.split, [])
        if batches:
            listings[scan.split].append(image_files.list_table(scan.file, job.format, batches, job.images))
    return listings


def _batches(unit: Unit, types: Mapping[str, str], job: Job) -> Iterator[Rows]:
    """Read a part of a file, images with their facts."""
    if job.images is None:
        yield from read(unit, types)
    elif isinstance(unit, image_files.Listing):
        yield from image_files.read(unit, job.images)
    else:
        for rows in read(unit, types):
            yield from image_files.with_facts(rows, unit.file, job.folder, job.images)


def read(unit: Unit, types: Mapping[str, str], columns: Sequence[str] | None = None) -> Iterator[Rows]:
    """Read a part of a file of any format."""
    if unit.format == "csv":
        return csv_files.read(unit, types, columns)
    if unit.format == "parquet":
        whole = [name for name, kind in types.items() if kind == csv_files.INTEGERS]
        return (parquet_files.with_integers(rows, whole, unit.file) for rows in parquet_files.read(unit, columns))
    return tfrecord_files.read(unit, columns)


def write(shard: Shard, job: Job) -> WrittenShard:
    """Write a shard's examples, one file for each output split it has rows for, each whole or not at all."""
    if shard.problem:
        return WrittenShard(problem=shard.problem)
    pending: list[tuple[pa.Table, np.ndarray | None]] = []
    rows: dict[str, int] = dict.fromkeys(job.output_splits, 0)
    types: dict[str, dict[str, str]] = {}
    bad: list[BadRow] = []
    try:
        with _ShardFiles(shard, job) as shard_files:
            for unit in shard.units:
                for batch in _batches(unit, shard.types, job):
                    if job.classes and job.format != "tfrecord":
                        batch = labels.with_numbers(batch, job.label, job.classes, unit)
                    bad += batch.bad
                    times = splits.times_of(batch, job.time_column, unit.file) if job.time_column else None
                    table = examples.as_lists(batch, unit.file)
                    if job.format == "tfrecord":
                        kinds = {field.name: type_name(field.type).removeprefix("lists of ") for field in table.schema}
                        merged = merge_types([*types.items(), (unit.file, kinds)], job)
                        types[unit.file] = {name: merged[name] for name in {*types.get(unit.file, {}), *kinds}}
                    pending.append((table, times))
                    if sum(part.nbytes for part, _ in pending) > (IMAGE_PART_BYTES if job.images else MOST_BYTES):
                        _write_part(pending, shard_files, rows)
                        pending = []
            if pending:
                _write_part(pending, shard_files, rows)
        if bad:
            _write_bad_rows(bad, shard, job)
    except UserError as error:
        return WrittenShard(problem=str(error))
    return WrittenShard(rows=rows, types=types, bad_rows=len(bad), first_bad=tuple(bad[:SHOWN]))


class _ShardFiles(contextlib.ExitStack):
    """Open files of a shard, one for each output split.

    Every part of a table has its own; those of images are left when they are full.
    """

    def __init__(self, shard: Shard, job: Job):
        super().__init__()
        self.shard, self.job = shard, job
        self._part = self._number = self._bytes = 0
        self._writers: dict[int, Any] = {}

    def write(self, records: Sequence[bytes], places: Sequence[int]) -> None:
        """Mix the records of a part and write each to the file of its output split."""
        # The legacy generator, whose numbers no release of NumPy may change.
        order = np.random.RandomState([self.shard.number, self._part]).permutation(len(records))
        suffix = f"-{self._number:03d}" if self._number else ""
        name = f"data_tfrecord-{self.shard.number:05d}{suffix}-of-{self.shard.of:05d}.gz"
        level = IMAGE_COMPRESSION_LEVEL if self.job.images else COMPRESSION_LEVEL
        for row in order.tolist():
            index = places[row]
            if index not in self._writers:
                path = f"{self.job.uri}/Split-{self.job.output_splits[index]}/{name}"
                self._writers[index] = self.enter_context(_record_writer(path, self.job.uri, level))
            self._writers[index].write(records[row])
        self._part += 1
        self._bytes += sum(map(len, records))
        if self._bytes > (MOST_IMAGE_BYTES if self.job.images else 0):
            self.close()
            self._writers = {}
            self._number += 1
            self._bytes = 0


def _write_part(
    pending: list[tuple[pa.Table, np.ndarray | None]], shard_files: _ShardFiles, rows: dict[str, int]
) -> None:
    job = shard_files.job
    table = pa.concat_tables([part for part, _ in pending], promote_options="default")
    for at, column in enumerate(table.schema):
        if pa.types.is_null(column.type):
            table = table.set_column(at, column.name, pa.nulls(len(table), pa.list_(pa.int64())))
    records = serialize(table)
    places = _assign(table, records, pending, job, shard_files.shard).tolist()
    shard_files.write(records, places)
    for index, number in Counter(places).items():
        rows[job.output_splits[index]] += number


def write_records(records: Iterable[bytes], path: str, uri: str) -> None:
    """Write gzipped TFRecords whole or not at all; ``uri`` is a folder above them on the same filesystem."""
    with _record_writer(path, uri) as writer:
        for record in records:
            writer.write(record)


@contextlib.contextmanager
def _record_writer(path: str, uri: str, level: int = COMPRESSION_LEVEL) -> Iterator[Any]:
    import tensorflow as tf

    options = tf.io.TFRecordOptions(compression_type="GZIP", compression_level=level)
    with filesystem.new_file(path, f"{uri}/{PARTIAL}") as new, tf.io.TFRecordWriter(new, options) as writer:
        yield writer


def _assign(
    table: pa.Table,
    records: Sequence[bytes],
    pending: Sequence[tuple[pa.Table, np.ndarray | None]],
    job: Job,
    shard: Shard,
) -> np.ndarray:
    """Return the output split of every row, as its place in ``job.output_splits``, int64 [rows]."""
    if not job.shares:
        return np.full(len(table), job.output_splits.index(shard.split))
    if job.time_column:
        times = np.concatenate([times for _, times in pending if times is not None])
        return np.asarray(np.searchsorted(np.array(shard.cuts), times, side="right"))
    # The same picture comes into the same split, wherever it lies.
    hash_column = job.hash_column or (job.images.column if job.images else None)
    if hash_column is None:
        return splits.places_of(records, job.shares)
    if hash_column not in table.column_names:
        raise UserError(f"no column {hash_column!r}, by which rows are assigned to splits, in {shard.units[0].file}")
    try:
        keys, rows = splits.value_keys(table.column(hash_column), hash_column)
    except UserError as error:
        names = ", ".join(dict.fromkeys(unit.file for unit in shard.units))
        raise UserError(f"{names}: {error}") from error
    return splits.places_of(keys, job.shares)[rows]


def merge_types(types_by_file: Iterable[tuple[str, Mapping[str, str]]], job: Job) -> dict[str, str]:
    """Return one type by column for all files.

    Raises:
        UserError: two files have other columns, or a column is of different types in them.
    """
    merged: dict[str, tuple[str, str]] = {}
    first: tuple[str, set[str]] | None = None
    for file, types in types_by_file:
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
                "in every file"
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
                    f"file{remedy}"
                )
    return {name: type_ for name, (type_, _) in merged.items()}


def finish(job: Job, scans: Sequence[FileScan], written: Sequence[WrittenShard]) -> dict[str, Any]:
    """Write summary.json beside the splits; its "problems" are empty when all is well."""
    problems = [file.problem for file in scans if file.problem] or [shard.problem for shard in written if shard.problem]
    rows = {split: sum(shard.rows.get(split, 0) for shard in written) for split in job.output_splits}
    bad = sum(shard.bad_rows for shard in written)
    total = sum(rows.values()) + bad
    if not problems:
        try:
            merge_types(sorted(pair for shard in written for pair in shard.types.items()), job)
        except UserError as error:
            problems.append(str(error))
        first_bad = sorted((row for shard in written for row in shard.first_bad), key=lambda row: (row.file, row.row))[
            :SHOWN
        ]
        if bad > job.max_bad_rows * total:
            shown = " | ".join(map(str, first_bad))
            problems.append(
                f"{shown}. {bad:,} of {total:,} rows are bad, {bad / total:.2%}, and data.max_bad_rows allows "
                f"{job.max_bad_rows:.2%}; correct them, or allow a larger share"
            )
        for split, number in rows.items():
            if not number and not problems:
                problems.append(
                    f"the {split} split has no rows: {total:,} rows in all, {rows}; give it files with rows, or other "
                    "shares"
                )
    summary = {"rows": rows, "bad_rows": bad, "problems": problems}
    filesystem.write(f"{job.uri}/{SUMMARY}", json.dumps(summary, indent=2))
    if not filesystem.is_remote(job.uri):
        shutil.rmtree(f"{job.uri}/{PARTIAL}", ignore_errors=True)
    return summary


def read_summary(uri: str) -> dict[str, Any]:
    """Read the summary that ``finish`` wrote."""
    return dict(json.loads(filesystem.read_bytes(f"{uri}/{SUMMARY}")))


def _write_bad_rows(bad: Sequence[BadRow], shard: Shard, job: Job) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("file", "row", "reason", "text"))
    writer.writerows((row.file, row.row, row.reason, row.text) for row in bad)
    path = f"{job.uri}/{BAD_ROWS}/{shard.split}-{shard.number:05d}-of-{shard.of:05d}.csv"
    filesystem.write(path, text.getvalue())
