"""Decode each file of examples at most once in a run, and keep its blocks as Arrow writes them for the steps after.

To read and decode an example takes 16 microseconds, and Transform alone does it once in each phase of its analysis. A
block that is kept is mapped into memory: it takes no time to read, and the operating system gives its memory back
where others need it. Who writes a file keeps its blocks from what it has written. Of a window of spans they stay for
the next run.
"""

import contextlib
import glob
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from pipeline import filesystem
from pipeline.data import kept
from pipeline.data.tfrecord_files import read_records

# Most examples that a step handles at once; blocks are kept by it, too, so that steps find each other's.
BLOCK = 4_096
# Most bytes of all blocks that are kept: those of some five million flights.
MOST_BYTES = 2 << 30
# The part of what is free on the disk that they may take.
SHARE_OF_DISK = 0.25
# Of what is kept, and of its file.
KIND, BLOCKS = "decoded", "blocks.arrow"


@dataclass
class _Store:
    """Blocks of files: where, those that this process knows of, and whether one more file had no room."""

    root: str
    lasting: bool
    folders: set[str] = field(default_factory=set)
    full: bool = False


_store: _Store | None = None


@contextlib.contextmanager
def keep_decoded(root: str = "") -> Iterator[None]:
    """Keep decoded blocks until the end; in this process, and in others that ``share_decoded``.

    Args:
        root: Folder of all that is kept for a later run; the blocks, too. "": a temporary folder.
    """
    global _store
    with contextlib.ExitStack() as stack:
        lasting = bool(root) and not filesystem.is_remote(root)
        if not lasting:
            root = stack.enter_context(tempfile.TemporaryDirectory(prefix="decoded-", ignore_cleanup_errors=True))
        before, _store = _store, _Store(root, lasting)
        try:
            yield
        finally:
            _store = before


def where_decoded() -> tuple[str, bool] | None:
    """Return where this process keeps blocks, for ``share_decoded``; None where it does not."""
    return (_store.root, _store.lasting) if _store else None


def share_decoded(where: tuple[str, bool] | None) -> None:
    """Use and keep blocks where another process does, one that outlives this one."""
    global _store
    _store = _Store(*where) if where else None


def keep_written(file: str, table: pa.Table, rows: np.ndarray, at_once: int) -> None:
    """Keep the blocks of a file that has just been written, if there is room.

    Args:
        file: Local or remote; of a remote one nothing is kept.
        table: Its rows and perhaps others, as ``serialize`` takes them.
        rows: Places of its rows in the table, in its order.
        at_once: Most rows of a block.
    """
    if _store is not None and not _store.full and not filesystem.is_remote(file) and table.num_columns:
        blocks = _as_decoded(table.take(rows), at_once)
        _store.full = not _write(blocks, _name_of(file, at_once, _store), _store)


def prune(files: Iterable[str], at_once: int) -> None:
    """Delete the blocks that earlier runs have left of other files than these."""
    if _store is not None and _store.lasting:
        kept.prune(_store.root, KIND, [_name_of(file, at_once, _store) for file in files])


def are_kept(file: str, at_once: int) -> bool:
    """Return whether the blocks of a file are kept, those that ``read_blocks`` reads; decode and keep them, if not."""
    return _folder(file, at_once) is not None


def were_kept(file: str, at_once: int) -> bool:
    """Return whether the blocks of a file are kept already, for who needs its first rows only."""
    if _store is None or filesystem.is_remote(file):
        return False
    return _is_known(_name_of(file, at_once, _store), _store)


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

    folder = _folder(file, at_once)
    if folder is None:
        yield from _decoded(file, at_once, schema)
        return
    wanted = ExamplesToRecordBatchDecoder(schema).ArrowSchema() if schema else None
    for place, batch in enumerate(_read(folder)):
        selected = batch if wanted is None else _selected(batch, wanted)
        if selected is None:  # what the decoder makes of it, an error perhaps, is for the decoder to say
            yield from itertools.islice(_decoded(file, at_once, schema), place, None)
            return
        yield selected


def _decoded(file: str, at_once: int, schema: bytes | None = None) -> Iterator[pa.RecordBatch]:
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    return map(ExamplesToRecordBatchDecoder(schema).DecodeBatch, read_records(file, at_once))


def _folder(file: str, at_once: int) -> str | None:
    """Return the folder in which the blocks of a file lie; None where none are kept."""
    if _store is None or filesystem.is_remote(file):
        return None
    folder = _name_of(file, at_once, _store)
    if not _is_known(folder, _store):
        if _store.full or not _write(_decoded(file, at_once), folder, _store):
            _store.full = True
            return None
        _store.folders.add(folder)
    return folder


def _is_known(folder: str, store: _Store) -> bool:
    """Return whether a folder has its blocks; those that last are checked once."""
    if folder not in store.folders:
        if not (kept.is_whole(folder) if store.lasting else os.path.exists(f"{folder}/{BLOCKS}")):
            return False
        store.folders.add(folder)
    return True


def _name_of(file: str, at_once: int, store: _Store) -> str:
    """Return the folder for the blocks of a file, another one when the file changes."""
    # The same file under another name, as a span's has in the next run, is the same.
    status = os.stat(file)
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, at_once)
    return kept.folder_of(store.root, KIND, *state)


def _write(blocks: Iterable[pa.RecordBatch], folder: str, store: _Store) -> bool:
    """Keep the blocks of a file; return whether there was room."""
    try:
        os.makedirs(store.root, exist_ok=True)
        status = os.statvfs(store.root)
        # Other processes keep blocks there, too.
        size = sum(map(os.path.getsize, glob.glob(f"{glob.escape(store.root)}/{KIND}/*/{BLOCKS}")))
        room = min(MOST_BYTES - size, int(SHARE_OF_DISK * status.f_bavail * status.f_frsize))
        with filesystem.new_file(f"{folder}/{BLOCKS}") as partial, pa.OSFile(partial, "wb") as sink:
            for batch in blocks:
                # A stream for each: which features there are, and of which type, may differ from block to block.
                with ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch)
                if sink.tell() > room:
                    raise OSError("no room")
        if store.lasting:
            kept.seal(folder)
    except OSError:  # or the disk is full
        return False
    return True


def _as_decoded(table: pa.Table, at_once: int) -> Iterator[pa.RecordBatch]:
    """Yield blocks of a table as the decoder would make them of its rows, serialized."""
    for start in range(0, table.num_rows, at_once):
        (block,) = table.slice(start, at_once).combine_chunks().to_batches()
        columns = {
            name: pa.nulls(block.num_rows)  # where no row has a value, nothing tells of which type one would be
            if column.null_count == block.num_rows
            else column.cast(pa.large_list(column.type.value_type))
            for name, column in sorted(zip(block.schema.names, block.columns, strict=True))
        }
        yield pa.RecordBatch.from_pydict(columns)


def _read(folder: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(f"{folder}/{BLOCKS}") as source:
        while source.tell() < source.size():
            with ipc.open_stream(source) as reader:
                yield from reader


def _selected(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the features of a schema as its decoder gives them; None where one is of another type."""
    columns: list[Any] = []
    for feature in schema:
        place = batch.schema.get_field_index(feature.name)
        column = batch.column(place) if place >= 0 else None
        if column is None or pa.types.is_null(column.type):
            column = pa.nulls(batch.num_rows, feature.type)
        if column.type != feature.type:
            return None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
