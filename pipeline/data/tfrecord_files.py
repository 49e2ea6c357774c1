"""Read TFRecords of tf.Examples as tables; their checksums are verified."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline import filesystem
from pipeline.data import files
from pipeline.data.table import Rows, Unit, rows_at_once
from pipeline.errors import UserError, first_line

BATCH_ROWS = 8_192
# By the first records of a file, the size of the others is judged.
RECORDS_WEIGHED = 16


def scan(file: str) -> list[Unit]:
    """Return one unit: records can only be found one after the other. Their types are known when they are read."""
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
            kind = "GZIP" if stream.read(2) == b"\x1f\x8b" else ""
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
