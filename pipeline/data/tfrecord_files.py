"""Read TFRecords of tf.Examples as tables; their checksums are verified."""

import contextlib
import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa

from pipeline import filesystem
from pipeline.data import files
from pipeline.data.table import MOST_ROW_BYTES, Rows, Unit, check_decoded, rows_at_once
from pipeline.errors import UserError, first_line

BATCH_ROWS = 8_192
# By the first records of a file, the size of the others is judged.
RECORDS_WEIGHED = 16
_GZIP = b"\x1f\x8b"
# Before a record: its length and the checksum of that; after it: its checksum.
_HEADER_BYTES, _CHECKSUM_BYTES = 12, 4


def scan(file: str) -> list[Unit]:
    """Return one unit: records can only be found one after the other. Their types are known when they are read.

    Raises:
        UserError: a record is longer than ``MOST_ROW_BYTES``, or the file decodes to too many bytes.
    """
    _check_lengths(file)
    # A gzipped record takes about six times its bytes once it is a row.
    size = filesystem.size(file) * (6 if files.is_compressed(file) else 1)
    return [Unit(file, "tfrecord", 0, None, 1, size)] if size else []


def read(unit: Unit, columns: Sequence[str] | None = None, at_once: int = BATCH_ROWS) -> Iterator[Rows]:
    """Read the records in batches, as columns of lists of int64, float32 or binary.

    Raises:
        UserError: see ``read_records``; or a record is no tf.Example.
    """
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    decoder = ExamplesToRecordBatchDecoder()
    row = 1
    for records in read_records(unit.file, at_once):
        try:
            table = pa.table(decoder.DecodeBatch(records))
        except Exception as error:
            raise UserError(
                f"{unit.file}, between rows {row} and {row + len(records) - 1}: a record is no tf.Example: "
                f"{first_line(error)}"
            ) from error
        if columns is not None:
            table = table.select([name for name in table.column_names if name in columns])
        yield Rows(table, np.arange(row, row + len(records)))
        row += len(records)


def read_records(file: str, at_once: int) -> Iterator[list[bytes]]:
    """Read the records of a file, plain or gzipped, in blocks.

    Args:
        file: TFRecords of any content, local or remote.
        at_once: Most records of a block; see ``rows_at_once``.

    Raises:
        UserError: a checksum is wrong, or the file is cut short.
    """
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


def _check_lengths(file: str) -> None:
    """Refuse a length that TensorFlow would take memory for at once, or end the process on.

    Whatever else is wrong, such as a checksum or the end, is left to ``read_records``.
    """
    row, decoded, stored = 1, 0, filesystem.size(file)
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
                try:
                    check_decoded(decoded, stored)
                except UserError as error:
                    raise UserError(f"{file}: {error}") from error
                stream.seek(length + _CHECKSUM_BYTES, io.SEEK_CUR)
                row += 1


@contextlib.contextmanager
def _local(file: str) -> Iterator[str]:
    """Yield a path that TensorFlow can read: of a remote file, a copy on local disk."""
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
