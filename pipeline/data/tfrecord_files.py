"""Read TFRecords of tf.Examples as tables; their checksums are verified."""

import contextlib
import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from pipeline import filesystem
from pipeline.data import files
from pipeline.data.table import MOST_ROW_BYTES, Rows, Unit, check_decoded, rows_at_once
from pipeline.errors import UserError, first_line
from pipeline.settings.names import shortened

BATCH_ROWS = 8_192
# Features of an example: each takes some kilobytes once it is a column, and a hundred thousand take a minute.
MOST_FEATURES = 20_000
# A record of fewer bytes cannot hold more features, or become a row that is too large.
_SMALL = 64 << 10
# By the first records of a file, the size of the others is judged.
RECORDS_WEIGHED = 16
_GZIP = b"\x1f\x8b"
# Messages take many times their bytes in memory; larger records are not parsed for what they are.
_MOST_PARSED = 1 << 20
_FEATURES = 0x0A  # tag of the only field of a tf.Example
# Before a record: its length and the checksum of that; after it: its checksum.
_HEADER_BYTES, _CHECKSUM_BYTES = 12, 4


def scan(file: str) -> list[Unit]:
    """Return one unit, because records are found only sequentially; their types are known when they are read."""
    _check_lengths(file)
    # A gzipped record takes about six times its bytes once it is a row.
    size = filesystem.size(file) * (6 if files.is_compressed(file) else 1)
    return [Unit(file, "tfrecord", 0, None, 1, size)] if size else []


def read(unit: Unit, columns: Sequence[str] | None = None, at_once: int = BATCH_ROWS) -> Iterator[Rows]:
    """Read the records in batches, as columns of lists of int64, float32 or binary."""
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    decoder = ExamplesToRecordBatchDecoder()
    row = 1
    longest = _check_lengths(unit.file)
    for records in read_records(unit.file, rows_at_once(at_once, 1, longest)):
        _check_examples(records, unit.file, row)
        try:
            table = pa.table(decoder.DecodeBatch(records))
        except Exception as error:
            for number, record in enumerate(records, row):
                if problem := _problem(record):
                    raise UserError(f"{unit.file}, row {number}: {problem}") from error
            raise UserError(
                f"{unit.file}, between rows {row} and {row + len(records) - 1}: the tf.Examples do not fit together: "
                f"{first_line(error)}; expected one type of each feature in every record"
            ) from error
        if columns is not None:
            table = table.select([name for name in table.column_names if name in columns])
        yield Rows(table, np.arange(row, row + len(records)))
        row += len(records)


def _check_examples(records: Sequence[bytes], file: str, row: int) -> None:
    """Reject records of which a column would hold only a part, and those that would take far more memory as columns."""
    for number, record in enumerate(records, row):
        # Fields below the first one are the same in all records of a program.
        if not _has_features_only(record) or number < row + RECORDS_WEIGHED:
            if problem := _problem(record):
                raise UserError(f"{file}, row {number}: {problem}")
        if len(record) < _SMALL:
            continue
        count = size = 0
        with contextlib.suppress(ValueError, IndexError):  # it is no tf.Example, as decoding it says
            for feature in _features(record):
                count += 1
                size += feature
                if count > MOST_FEATURES or size > MOST_ROW_BYTES:
                    break
        if count > MOST_FEATURES:
            raise UserError(
                f"{file}, row {number}: found more than {MOST_FEATURES:,} features; expected no more: write values of "
                "one kind as one feature with several values"
            )
        if size > MOST_ROW_BYTES:
            raise UserError(
                f"{file}, row {number}: found {size >> 20:,} MB in a row; expected at most {MOST_ROW_BYTES >> 20}"
            )


def _has_features_only(record: bytes) -> bool:
    """Return whether the only field of a record is the one that a tf.Example has."""
    at = 0
    with contextlib.suppress(IndexError):
        while at < len(record) and record[at] == _FEATURES:
            length, at = _varint(record, at + 1)
            at += length
    return at == len(record)


def _problem(record: bytes) -> str | None:
    """Return what a record is, and what was expected, if it is not a tf.Example or has unknown fields."""
    from tensorflow import train

    if len(record) > _MOST_PARSED and _has_features_only(record):
        return None
    for number in (1, 2, 3):
        with contextlib.suppress(ValueError, IndexError):
            for start, end in _fields(record, 0, len(record), number):
                inner = _parsed(train.Example, record[start:end])
                if inner and any(feature.WhichOneof("kind") for feature in inner.features.feature.values()):
                    return f"found a tf.Example in field {number} of another message; expected the tf.Example itself"
    if _parsed(train.Example, record):
        return None
    sequence = _parsed(train.SequenceExample, record)
    if sequence and (names := sorted(sequence.feature_lists.feature_list)):
        return (
            f"found a tf.SequenceExample with the feature lists {shortened(map(repr, names))}, of which nothing would "
            "be read; expected a tf.Example: write each list as one feature with several values"
        )
    return (
        f"found a record that begins with {record[:20]!r} and is no tf.Example, or has fields that tf.Example does not "
        "have; expected the bytes of tf.train.Example(...).SerializeToString()"
    )


def _parsed(kind: Any, record: bytes) -> Any:
    """Return a message of a kind; None if the bytes are none, or have other fields."""
    if len(record) > _MOST_PARSED:
        return None
    with contextlib.suppress(DecodeError):
        message = kind.FromString(record)
        size = message.ByteSize()
        message.DiscardUnknownFields()
        return message if message.ByteSize() == size else None
    return None


def _features(record: bytes) -> Iterator[int]:
    """Yield for each feature of a serialized tf.Example about the bytes of its values as a column.

    There each integer takes 8 bytes, of which the record has at least one; each text 4 bytes and its content.
    """
    for start, end in _fields(record, 0, len(record)):  # Example.features
        for entry, entry_end in _fields(record, start, end):  # Features.feature, by name
            size = 0
            for value, value_end in _fields(record, entry, entry_end, 2):
                for list_, list_end in _fields(record, value, value_end, 3):  # Feature.int64_list
                    size += 8 * (list_end - list_)
                for list_, list_end in _fields(record, value, value_end, 1):  # Feature.bytes_list
                    size += 3 * (list_end - list_)
            yield size


def _fields(record: bytes, at: int, end: int, number: int = 1) -> Iterator[tuple[int, int]]:
    """Yield start and end of the fields with a number and a length, in the wire format; else raise a ValueError."""
    while at < end:
        tag = record[at]
        if tag & 7 != 2 or tag >> 3 > 3:
            raise ValueError(tag)
        length, at = _varint(record, at + 1)
        if tag >> 3 == number:
            yield at, min(at + length, end)
        at += length


def _varint(record: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7


def read_records(file: str, at_once: int) -> Iterator[list[bytes]]:
    """Read a local or remote TFRecord file, plain or gzipped, in blocks; UserError: it is damaged or cut short."""
    import tensorflow as tf

    with _local(file) as path:
        with open(path, "rb") as stream:
            kind = "GZIP" if stream.read(2) == _GZIP else ""
        records = tf.data.TFRecordDataset(path, compression_type=kind, buffer_size=1 << 20)
        try:
            first = [len(record) for record in records.take(RECORDS_WEIGHED).as_numpy_iterator()]
            blocks = records.batch(rows_at_once(at_once, len(first), sum(first)))
            for block in blocks.prefetch(1).as_numpy_iterator():
                yield block.tolist()
        except tf.errors.OpError as error:
            raise UserError(
                f"{file}, row {_whole_records(path, kind) + 1}: damaged or cut short: {error.message}; expected "
                "TFRecords with right checksums, plain or gzipped; write or copy it again"
            ) from error


def _whole_records(path: str, kind: str) -> int:
    """Return the number of records before the damaged one."""
    import tensorflow as tf

    whole = 0
    with contextlib.suppress(tf.errors.OpError):
        for _ in tf.data.TFRecordDataset(path, compression_type=kind):
            whole += 1
    return whole


def _check_lengths(file: str) -> int:
    """Reject a length that would exhaust memory or crash TensorFlow; return the greatest length."""
    row, decoded, longest, stored = 1, 0, 0, filesystem.size(file)
    with filesystem.open_file(file) as stored_stream:
        is_gzip = stored_stream.read(2) == _GZIP
        stored_stream.seek(0)
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=stored_stream)) if is_gzip else stored_stream
        with contextlib.suppress(EOFError, OSError, zlib.error):
            while len(header := stream.read(_HEADER_BYTES)) == _HEADER_BYTES:
                length = int.from_bytes(header[:8], "little")
                if length > MOST_ROW_BYTES:
                    raise UserError(
                        f"{file}, row {row}: found a length of {length:,} bytes; expected TFRecords of at most "
                        f"{MOST_ROW_BYTES >> 20} MB; if they are none, write or copy it again"
                    )
                decoded += len(header) + length
                longest = max(longest, length)
                check_decoded(file, decoded, stored)
                stream.seek(length + _CHECKSUM_BYTES, io.SEEK_CUR)
                row += 1
    return longest


@contextlib.contextmanager
def _local(file: str) -> Iterator[str]:
    """Yield a path that TensorFlow can read: a local copy of a remote file."""
    if not filesystem.is_remote(file):
        yield file
        return
    with (
        tempfile.NamedTemporaryFile(suffix=Path(file).suffix) as copy,
        filesystem.open_file(file) as stream,
    ):
        shutil.copyfileobj(stream, copy, 16 << 20)
        copy.flush()
        yield copy.name
