"""Write shards of examples as TFRecord files, and a summary of all of them."""

import contextlib
import csv
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import filesystem
from pipeline.data import image_dataset, kept, labels, splits
from pipeline.data.blocks import write_blocks
from pipeline.data.examples import as_lists, serialize
from pipeline.data.image_dataset import Listing
from pipeline.data.shards import FileScan, Job, Shard, check_left_out, merge_types, out_of_memory, read
from pipeline.data.table import BadRow, Rows, Unit, type_name
from pipeline.errors import UserError

# A shard this many times as large as planned is written in several files.
FULL = 2
# Level 1 writes four times as fast as the usual 6, for files half as large again (benchmarks/example_gen.py).
COMPRESSION_LEVEL = 1
# Images are mixed in smaller parts, because memory holds several copies, and a file continues until it is full.
IMAGE_PART_BYTES = 16 << 20
FULL_OF_IMAGES = 1.5
# Images are compressed already.
IMAGE_COMPRESSION_LEVEL = 0
SUMMARY = "summary.json"
BAD_ROWS = "bad_rows"
# Unfinished files, out of sight of readers of Split-*; on local disks only.
PARTIAL = "_partial"
# Of the names of files, in a window of spans.
SPAN_PREFIX = "span-"
SHOWN = 3


@dataclass(frozen=True)
class WrittenShard:
    """Rows, types and files of a written shard, or its problem; and the folder where it is kept."""

    rows: dict[str, int] = field(default_factory=dict)
    types: dict[str, dict[str, str]] = field(default_factory=dict)  # by file
    bad_rows: int = 0
    first_bad: tuple[BadRow, ...] = ()
    problem: str | None = None
    files: tuple[str, ...] = ()  # below the folder of the examples
    left_out: frozenset[str] = frozenset()  # columns of TFRecords that were there
    kept: str = ""


def write(shard: Shard, job: Job) -> WrittenShard:
    """Write a shard's examples, or reuse an earlier run's files of the same rows."""
    if shard.problem:
        return WrittenShard(problem=shard.problem)
    if not job.kept:
        return _write(shard, job)
    stamps = [(unit.file, job.stamps[unit.file]) for unit in shard.units]
    folder = kept.folder_of(job.kept, "shards", job.lasting, shard, stamps)
    if kept.is_whole(folder):
        written: WrittenShard = kept.read_value(folder)
        for name in written.files:
            filesystem.copy(f"{folder}/{name}", f"{job.uri}/{name}")
        return written
    written = _write(shard, job)
    if written.problem is None:
        written = replace(written, kept=folder)
        for name in written.files:
            filesystem.copy(f"{job.uri}/{name}", f"{folder}/{name}")
        kept.write_value(folder, written)
        kept.seal(folder)
    return written


def _write(shard: Shard, job: Job) -> WrittenShard:
    """Write a shard's examples, one complete file for each output split that it has rows for."""
    pending: list[tuple[pa.Table, np.ndarray | None]] = []
    rows: dict[str, int] = dict.fromkeys(job.output_splits, 0)
    types: dict[str, dict[str, str]] = {}
    bad: list[BadRow] = []
    left_out: set[str] = set()
    most = IMAGE_PART_BYTES if job.images else FULL * shard.bytes
    try:
        with _ShardFiles(shard, job) as shard_files:
            for unit in shard.units:
                for batch in _batches(unit, shard.types, job):
                    if job.format == "tfrecord":
                        absent = [name for name in batch.table.column_names if name in job.leave_out]
                        batch = replace(batch, table=batch.table.drop_columns(absent))
                        left_out.update(absent)
                    if job.classes and job.format != "tfrecord":
                        batch = labels.with_numbers(batch, job.label, job.classes, unit)
                    if job.weight:
                        batch = labels.with_weights(batch, job.weight, unit)
                    bad += batch.bad
                    times = splits.times_of(batch, job.time_column, unit.file) if job.time_column else None
                    table = as_lists(batch, unit.file)
                    if job.format == "tfrecord":
                        kinds = {field.name: type_name(field.type).removeprefix("lists of ") for field in table.schema}
                        merged = merge_types([*types.items(), (unit.file, kinds)], job)
                        types[unit.file] = {name: merged[name] for name in {*types.get(unit.file, {}), *kinds}}
                    pending.append((table, times))
                    if sum(part.nbytes for part, _ in pending) > most:
                        _write_part(pending, shard_files, rows)
                        pending = []
            if pending:
                _write_part(pending, shard_files, rows)
        names = list(shard_files.names)
        if bad:
            names.append(_write_bad_rows(bad, shard, job))
    except UserError as error:
        return WrittenShard(problem=str(error))
    except MemoryError:
        return WrittenShard(problem=out_of_memory(", ".join(sorted({unit.file for unit in shard.units}))))
    return WrittenShard(rows, types, len(bad), tuple(bad[:SHOWN]), None, tuple(names), frozenset(left_out))


class _ShardFiles(contextlib.ExitStack):
    """Open files of a shard, one for each output split and part of a table, or for as many images as fill it."""

    def __init__(self, shard: Shard, job: Job):
        super().__init__()
        self.shard, self.job = shard, job
        self.names: list[str] = []
        self._part = self._number = self._bytes = 0
        self._writers: dict[int, Any] = {}

    def write(self, table: pa.Table, records: Sequence[bytes], places: np.ndarray) -> None:
        """Mix the rows of a part, and write the record of each to the file of its output split."""
        # The legacy generator, whose numbers no release of NumPy may change.
        order = np.random.RandomState([self.shard.number, self._part]).permutation(len(records))
        suffix = f"-{self._number:03d}" if self._number else ""
        name = f"{_prefix(self.shard)}data_tfrecord-{self.shard.number:05d}{suffix}-of-{self.shard.of:05d}.gz"
        level = IMAGE_COMPRESSION_LEVEL if self.job.images else COMPRESSION_LEVEL
        written: dict[str, np.ndarray] = {}
        for index in np.unique(places).tolist():
            file = f"Split-{self.job.output_splits[index]}/{name}"
            path = f"{self.job.uri}/{file}"
            if index not in self._writers:
                self.names.append(file)
                self._writers[index] = self.enter_context(_record_writer(path, self.job.uri, level))
            rows = order[places[order] == index]
            for row in rows.tolist():
                self._writers[index].write(records[row])
            written[path] = rows
        self._part += 1
        self._bytes += sum(map(len, records))
        if self._bytes > (FULL_OF_IMAGES * self.shard.bytes if self.job.images else 0):
            self.close()
            self._writers = {}
            self._number += 1
            self._bytes = 0
            if self.job.blocks and not self.job.images and table.num_columns:
                for path, rows in written.items():
                    if blocks := write_blocks(path, table, rows):
                        self.names.append(os.path.relpath(blocks, self.job.uri))


def _prefix(shard: Shard) -> str:
    """Return the prefix of a shard's file names, which sorts the files of a window by span."""
    return "" if shard.span is None else f"{SPAN_PREFIX}{shard.span:020d}_"


def _write_part(
    pending: list[tuple[pa.Table, np.ndarray | None]], shard_files: _ShardFiles, rows: dict[str, int]
) -> None:
    job = shard_files.job
    table = pa.concat_tables([part for part, _ in pending], promote_options="default")
    for at, column in enumerate(table.schema):
        if pa.types.is_null(column.type):
            table = table.set_column(at, column.name, pa.nulls(len(table), pa.list_(pa.int64())))
    records = serialize(table)
    places = _assign(table, records, pending, job, shard_files.shard)
    shard_files.write(table, records, places)
    for index, number in Counter(places.tolist()).items():
        rows[job.output_splits[index]] += number


def write_records(records: Iterable[bytes], path: str, uri: str) -> None:
    """Write gzipped TFRecords atomically; ``uri`` is a folder above them on the same filesystem."""
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
    if shard.output or not job.shares:
        return np.full(len(table), job.output_splits.index(shard.output or shard.split))
    if job.time_column:
        times = np.concatenate([times for _, times in pending if times is not None])
        return np.asarray(np.searchsorted(np.array(shard.cuts), times, side="right"))
    # The same picture comes into the same split, wherever it lies.
    hash_column = job.hash_column or (job.images.column if job.images else None)
    if hash_column is None:
        return splits.places_of(records, job.shares)
    if hash_column not in table.column_names:
        raise UserError(f"no column {hash_column!r}, by which rows are assigned to splits, in {shard.units[0].file}")
    where = ", ".join(dict.fromkeys(unit.file for unit in shard.units))
    keys, rows = splits.value_keys(table.column(hash_column), hash_column, where)
    return splits.places_of(keys, job.shares)[rows]


def _batches(unit: Unit, types: Mapping[str, str], job: Job) -> Iterator[Rows]:
    """Read a part of a file, images with their facts."""
    if job.images is None:
        yield from read(unit, types)
    elif isinstance(unit, Listing):
        yield from image_dataset.read(unit, job.images)
    else:
        for rows in read(unit, types):
            yield from image_dataset.with_facts(rows, unit.file, job.folder, job.images)


def finish(job: Job, scans: Sequence[FileScan], written: Sequence[WrittenShard]) -> dict[str, Any]:
    """Write summary.json next to the splits; its "problems" are empty if all is well."""
    problems = [file.problem for file in scans if file.problem] or [shard.problem for shard in written if shard.problem]
    rows = {split: sum(shard.rows.get(split, 0) for shard in written) for split in job.output_splits}
    bad = sum(shard.bad_rows for shard in written)
    total = sum(rows.values()) + bad
    if not problems:
        try:
            merge_types(sorted(pair for shard in written for pair in shard.types.items()), job)
            if job.format == "tfrecord":
                seen = {name for shard in written for name in shard.left_out}
                names = {name for shard in written for types in shard.types.values() for name in types}
                check_left_out(job.leave_out, seen | names, job.folder)
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
    if job.kept and not problems:
        kept.prune(job.kept, "scans", [scan.kept for scan in scans])
        kept.prune(job.kept, "shards", [shard.kept for shard in written])
    summary = {"rows": rows, "bad_rows": bad, "problems": problems}
    filesystem.write(f"{job.uri}/{SUMMARY}", json.dumps(summary, indent=2))
    if not filesystem.is_remote(job.uri):
        shutil.rmtree(f"{job.uri}/{PARTIAL}", ignore_errors=True)
    return summary


def read_summary(uri: str) -> dict[str, Any]:
    """Read the summary that ``finish`` wrote."""
    return dict(json.loads(filesystem.read_bytes(f"{uri}/{SUMMARY}")))


def _write_bad_rows(bad: Sequence[BadRow], shard: Shard, job: Job) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("file", "row", "reason", "text"))
    writer.writerows((row.file, row.row, row.reason, row.text) for row in bad)
    name = f"{BAD_ROWS}/{_prefix(shard)}{shard.split}-{shard.number:05d}-of-{shard.of:05d}.csv"
    filesystem.write(f"{job.uri}/{name}", text.getvalue())
    return name
