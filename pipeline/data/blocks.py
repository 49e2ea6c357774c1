"""Store the decoded rows of an examples file next to it, so that each step does not decode them again.

Reading and decoding one tf.Example takes about 16 microseconds, and StatisticsGen, Transform and the Evaluator each
read all of them. ExampleGen has the rows as Arrow tables before it serializes them: it writes
``blocks/Split-x/NAME.arrow`` into the Examples artifact, next to ``Split-x/NAME``. A file without such blocks is
decoded each time.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from pipeline import filesystem
from pipeline.data.tfrecord_files import read_records

# Most rows of a block, and so most rows that a step processes at a time.
BLOCK = 4_096
FOLDER = "blocks"
# Most of the free disk space that the blocks of a file may take before compression.
SHARE_OF_DISK = 0.25
logger = logging.getLogger("pipeline.data")


def blocks_file(file: str) -> str:
    """Return the path for the blocks of ``<uri>/Split-x/<name>``."""
    folder, name = os.path.split(file)
    uri, split = os.path.split(folder)
    return f"{uri}/{FOLDER}/{split}/{name}.arrow"


def write_blocks(file: str, table: pa.Table, rows: np.ndarray) -> str | None:
    """Write the blocks of an examples file on this machine; return their path, or None where there is no room.

    Args:
        file: Path of the examples file.
        table: Columns of lists, as ``examples.serialize`` takes them.
        rows: Positions in the table of the rows of the file, in their order, int64 [rows].
    """
    path = blocks_file(file)
    written = table.take(rows)
    if written.nbytes > SHARE_OF_DISK * shutil.disk_usage(os.path.dirname(file)).free:
        logger.info("No room for the decoded rows of %s: the steps decode the file.", file)
        return None
    try:
        with filesystem.new_file(path) as partial, pa.OSFile(partial, "wb") as sink:
            for start in range(0, written.num_rows, BLOCK):
                (block,) = written.slice(start, BLOCK).combine_chunks().to_batches()
                batch = _as_decoded(block)
                # One stream per block: a column without any value in a block has the type null there.
                with ipc.new_stream(sink, batch.schema, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
                    writer.write_batch(batch)
    except OSError as error:
        logger.info("The decoded rows of %s are not stored, the steps decode the file: %s", file, error)
        return None
    return path


def has_blocks(file: str) -> bool:
    """Return whether the decoded rows of an examples file are stored, and the file has not changed since."""
    path = blocks_file(file)
    if filesystem.is_remote(file) or not os.path.exists(path):
        return False
    return os.stat(path).st_mtime_ns >= os.stat(file).st_mtime_ns


def read_blocks(file: str, schema: bytes | None = None, at_once: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a TFRecord file of tf.Examples as record batches of at most ``BLOCK`` rows.

    Args:
        file: Local or remote; gzipped or plain.
        schema: Serialized Schema of the features to return; None returns all features with the types they have.
        at_once: Most rows of a batch where no blocks are stored, for a caller that needs few rows.

    Raises:
        UserError: see ``read_records``.
    """
    if not has_blocks(file):
        yield from _decoded(file, schema, min(at_once or BLOCK, BLOCK))
        return
    wanted = _arrow_schema(schema) if schema else None
    read = 0
    for batch in _stored(file):
        selected = batch if wanted is None else _selected(batch, wanted)
        if selected is None:  # a type other than the schema's: the decoder reports it
            for decoded in _decoded(file, schema, BLOCK):
                if read < decoded.num_rows:
                    yield decoded.slice(read)
                read = max(0, read - decoded.num_rows)
            return
        read += batch.num_rows
        yield selected


def _decoded(file: str, schema: bytes | None, at_once: int) -> Iterator[pa.RecordBatch]:
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    return map(ExamplesToRecordBatchDecoder(schema).DecodeBatch, read_records(file, at_once))


def _arrow_schema(schema: bytes) -> pa.Schema:
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    return ExamplesToRecordBatchDecoder(schema).ArrowSchema()


def _as_decoded(block: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a block with the types that the decoder gives them, in the order of their names."""
    return pa.RecordBatch.from_pydict(
        {
            name: pa.nulls(block.num_rows)
            if column.null_count == block.num_rows
            else column.cast(pa.large_list(column.type.value_type))
            for name, column in sorted(zip(block.schema.names, block.columns, strict=True))
        }
    )


def _stored(file: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(blocks_file(file)) as source:
        while source.tell() < source.size():
            with ipc.open_stream(source) as reader:
                yield from reader


def _selected(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the features of a schema as its decoder returns them; None where one has another type."""
    columns: list[Any] = []
    for feature in schema:
        position = batch.schema.get_field_index(feature.name)
        column = batch.column(position) if position >= 0 else None
        if column is None or pa.types.is_null(column.type):
            column = pa.nulls(batch.num_rows, feature.type)
        if column.type != feature.type:
            return None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
