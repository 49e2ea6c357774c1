"""Decode each file of examples once in a run, and keep its blocks as Arrow writes them for the steps after.

To read and decode an example takes 16 microseconds, and Transform alone does it once in each phase of its analysis. A
block that is kept is mapped into memory: it takes no time to read, and the operating system gives its memory back
where others need it.
"""

import contextlib
import hashlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from pipeline import filesystem
from pipeline.data.tfrecord_files import read_records

# Most bytes of all blocks that are kept: those of some five million flights.
MOST_BYTES = 2 << 30
# The part of what is free on the disk that they may take.
SHARE_OF_DISK = 0.25


@dataclass
class _Kept:
    """Blocks that are kept: where, how many bytes they have, and whether one more file had no room."""

    folder: Path
    size: int = 0
    full: bool = False


_kept: _Kept | None = None


@contextlib.contextmanager
def keep_decoded() -> Iterator[None]:
    """Keep decoded blocks in a temporary folder until the end; in this process, and not in those that it starts."""
    global _kept
    with tempfile.TemporaryDirectory(prefix="decoded-", ignore_cleanup_errors=True) as folder:
        before, _kept = _kept, _Kept(Path(folder))
        try:
            yield
        finally:
            _kept = before


def read_blocks(file: str, at_once: int, schema: bytes | None = None) -> Iterator[pa.RecordBatch]:
    """Decode the tf.Examples of a gzipped or plain TFRecord file, in blocks.

    Args:
        file: Local or remote.
        at_once: Most rows of a block.
        schema: Features to decode, and their types, a serialized Schema; None decodes all, with the types they have.

    Raises:
        UserError: see ``read_records``.
    """
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    blocks = None
    if _kept is not None and not filesystem.is_remote(file):
        path = _kept.folder / _name_of(file, at_once)
        if path.exists() or (not _kept.full and _keep(file, at_once, path, _kept)):
            blocks = _read(path)
    if blocks is None:
        yield from _decoded(file, at_once, schema)
        return
    wanted = ExamplesToRecordBatchDecoder(schema).ArrowSchema() if schema else None
    for place, batch in enumerate(blocks):
        selected = batch if wanted is None else _selected(batch, wanted)
        if selected is None:  # what the decoder makes of it, an error perhaps, is for the decoder to say
            yield from itertools.islice(_decoded(file, at_once, schema), place, None)
            return
        yield selected


def _decoded(file: str, at_once: int, schema: bytes | None = None) -> Iterator[pa.RecordBatch]:
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    return map(ExamplesToRecordBatchDecoder(schema).DecodeBatch, read_records(file, at_once))


def _name_of(file: str, at_once: int) -> str:
    """Return a name that changes with the file."""
    status = os.stat(file)
    state = (os.path.abspath(file), status.st_size, status.st_mtime_ns, at_once)
    return hashlib.sha256(repr(state).encode()).hexdigest()[:32]


def _keep(file: str, at_once: int, to: Path, kept: _Kept) -> bool:
    """Decode a file and keep its blocks; return whether there was room."""
    partial = to.with_suffix(f".{os.getpid()}")
    try:
        status = os.statvfs(kept.folder)
        room = min(MOST_BYTES - kept.size, int(SHARE_OF_DISK * status.f_bavail * status.f_frsize))
        with pa.OSFile(str(partial), "wb") as sink:
            for batch in _decoded(file, at_once):
                # A stream for each: which features there are, and of which type, may differ from block to block.
                with ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch)
                if sink.tell() > room:
                    raise OSError("no room")
            kept.size += sink.tell()
        partial.rename(to)
    except OSError:  # or the disk is full
        kept.full = True
        partial.unlink(missing_ok=True)
    return not kept.full


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        while source.tell() < source.size():
            with ipc.open_stream(source) as reader:
                yield from reader


def _selected(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the features of a schema as its decoder gives them; None where one is of another type."""
    columns: list[Any] = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        column = batch.column(place) if place >= 0 else None
        if column is None or pa.types.is_null(column.type):
            column = pa.nulls(batch.num_rows, field.type)
        if column.type != field.type:
            return None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
