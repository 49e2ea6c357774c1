"""Transformed examples → batches, fast enough that the model does not wait.

A split that fits into memory is loaded once, in the background while the model is built, and every epoch is then a
permutation of all its rows. A larger one is streamed: files in random order, read in parallel, records shuffled in a
buffer, parsed in blocks, from a cache on disk after the first epoch if there is room.

What a training sees depends on the seed alone: step s gets the same examples on one device, on several, on several
workers, and after a restart in the middle of an epoch.
"""

import gzip
import logging
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias, Union

import numpy as np
import tensorflow as tf

from pipeline.training.control_groups import free_memory
from pipeline.training.decoding import Decoder
from pipeline.training.errors import TrainingError
from pipeline.training.rows import WRONG_LABEL, IndexedRows, Rows
from pipeline.training.strategy import Part

logger = logging.getLogger("pipeline.training")

# A parse of a whole block is ten times as fast as a parse per record.
BLOCK = 1024
BYTES_IN_BLOCK = 64 << 20
# Of examples that are decoded: many small blocks keep all cores busy to the end, and little waits in memory.
BYTES_IN_DECODED_BLOCK = 4 << 20
# Of a streamed split; in blocks of this many rows the shuffling stays fine.
STREAMED_BLOCK = 128
RECORDS_SHUFFLED = 50_000
BYTES_SHUFFLED = 1 << 30
# One split after the other: the train split is needed first.
LOADER = ThreadPoolExecutor(1, thread_name_prefix="examples")
# The share of the free memory or disk that a split may take.
SHARE_OF_MEMORY, SHARE_OF_DISK = 0.4, 0.5
# Records read to estimate the size of a split.
RECORDS_SAMPLED = 10_000
# Files are dealt out to workers as long as none gets more than this many times the examples of another.
UNEVEN = 1.25
# The examples of one split. ``examples`` is their number, which waits for a split that is still being loaded; ``rows``
# packs batches; ``cache`` says where parsed examples are between epochs: "memory", "disk" or "none".
Split: TypeAlias = Union["_InMemory", "_Streamed"]


def find(patterns: Sequence[str]) -> list[str]:
    """Return the files of a split, as in ``fn_args.train_files``, in the order of their names."""
    return sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))


def estimate(files: Sequence[str]) -> int:
    """Estimate the number of records in files, from their sizes and the first records of the first."""
    size = sum(tf.io.gfile.stat(file).length for file in files)
    with tf.io.gfile.GFile(files[0], "rb") as stored:
        stream = gzip.GzipFile(fileobj=stored) if _gzipped(files) else stored
        records = 0
        while records < RECORDS_SAMPLED:
            header = stream.read(12)  # length, 8 bytes, and its checksum
            if len(header) < 12:
                break
            stream.read(int.from_bytes(header[:8], "little") + 4)
            records += 1
        return math.ceil(records * size / max(stored.tell(), 1))


def choose_cache(size: int, folder: str) -> tuple[str, str]:
    """Return the cache for a split of that many bytes, and the reason."""

    def mib(size: int) -> str:
        return f"{size / 2**20:,.0f} MiB"

    memory, disk = free_memory(), shutil.disk_usage(folder).free
    if size <= memory * SHARE_OF_MEMORY:
        return "memory", f"{mib(size)} of {mib(memory)} free"
    if size <= disk * SHARE_OF_DISK:
        return "disk", f"{mib(size)} is more than {SHARE_OF_MEMORY:.0%} of {mib(memory)} free memory"
    return "none", f"{mib(size)} is too much for {mib(memory)} of free memory and {mib(disk)} of free disk"


def read(
    patterns: Sequence[str],
    decoder: Decoder,
    *,
    classes: int = 0,
    cache: str = "auto",
    part: Part | None = None,
    on_cpu: bool = False,
    deterministic: bool = True,
    scratch: str | None = None,
) -> Split:
    """Open a split; load it in the background if it is kept in memory.

    Args:
        patterns: File patterns of TFRecords, gzipped when they end in ".gz", as in ``fn_args.train_files``.
        decoder: Turns a record into the model's features, before the cache.
        classes: Number of classes that the label counts from 0; 0 does not check it.
        cache: "memory", "disk", "none", or "auto": the first of these that there is room for.
        part: What this process feeds; a streamed split is read by files when every process can have some.
        on_cpu: Whether the steps run on the CPU, where a split in memory is directly accessible to them.
        deterministic: Whether a streamed split must come in the same order every time.
        scratch: Folder for a cache on disk.

    Raises:
        TrainingError: there are no files or, on the first use of a split in memory, no examples in them or an invalid
            label.
    """
    files = find(patterns)
    if not files:
        raise TrainingError(f"no examples: nothing matches {', '.join(patterns)}")
    rows = Rows(decoder, classes)
    examples = estimate(files)
    scratch = scratch or tempfile.gettempdir()
    if cache == "auto":
        cache, reason = choose_cache(examples * rows.bytes, scratch)
    else:
        reason = "asked for"
    logger.info(
        "About %d examples of %d bytes from %d files, cache: %s (%s).", examples, rows.bytes, len(files), cache, reason
    )
    if cache == "memory":
        return _InMemory(files, IndexedRows(decoder, classes) if on_cpu else rows)
    return _Streamed(files, rows, part or Part(), deterministic, scratch if cache == "disk" else None)


def as_training_error(error: tf.errors.InvalidArgumentError) -> Exception:
    """Return the error of a dataset as a TrainingError, if it is about the data."""
    problem = re.search(f"{WRONG_LABEL}.*?to \\d+", str(error))
    return TrainingError(f"{problem[0]}; correct the data or label.classes") if problem else error


def steps_per_epoch(examples: int, batch_size: int, replicas: int) -> int:
    """Return the steps of one training epoch; examples that do not fill a last batch are left out of it."""
    return examples // (batch_size * replicas)


def evaluation_steps(examples: int, batch_size: int, replicas: int) -> int:
    """Return the steps of one evaluation."""
    return math.ceil(examples / (batch_size * replicas))


def _evaluation_batch_sizes(examples: int, batch_size: int, replicas: int, same_size: bool) -> np.ndarray:
    """Return the sizes of an evaluation's batches, [steps * replicas]; they differ by one at most, none is 0."""
    count = evaluation_steps(examples, batch_size, replicas) * replicas
    if examples < count:
        raise TrainingError(
            f"{examples} examples for {replicas} replicas: each needs at least one. Give more data or fewer devices"
        )
    sizes = np.full(count, examples // count)
    if not same_size:
        sizes[: examples % count] += 1
    return sizes


class _InMemory:
    """All rows as one matrix, and every epoch a permutation of them."""

    cache = "memory"

    def __init__(self, files: list[str], rows: Rows):
        self.rows = rows
        self._loading: Future[tf.Tensor] = LOADER.submit(self._load, files)

    def _load(self, files: list[str]) -> tf.Tensor:
        with tf.device("/CPU:0"):
            blocks = _blocks(files, _gzipped(files), _rows_in_block(self.rows))
            parts = list(without_autotune(blocks.map(self.rows.parse, tf.data.AUTOTUNE)))
            if not parts:
                raise TrainingError(f"no examples in {', '.join(files)}")
            data = tf.concat(parts, axis=0)
        if isinstance(self.rows, IndexedRows):
            self.rows.matrix.assign(data)
        return data

    @property
    def examples(self) -> int:
        return int(self._loaded().shape[0])

    @property
    def is_loaded(self) -> bool:
        """Return whether nothing needs to be waited for."""
        return self._loading.done() and not self._loading.exception()

    def _loaded(self) -> tf.Tensor:
        try:
            return self._loading.result()
        except tf.errors.InvalidArgumentError as error:
            raise as_training_error(error) from error

    def training(self, batch_size: int, part: Part, seed: int, first_step: int = 0) -> tf.data.Dataset:
        """Return endless batches for this process, shuffled anew in every epoch by the seed and the epoch's number.

        Returns:
            Chunks of several steps' batches, for each local replica in turn, as ``rows.chunk`` says, from
            ``first_step`` of the whole training on. ``rows.unpack`` makes features, label and weights of a batch.
        """
        data = self._loaded()
        steps = steps_per_epoch(self.examples, batch_size, part.replicas)

        @tf.autograph.experimental.do_not_convert
        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            order = tf.random.experimental.stateless_shuffle(
                tf.range(self.examples), tf.stack([tf.constant(seed, tf.int64), number])
            )
            batches = tf.reshape(order[: steps * part.replicas * batch_size], [steps, part.replicas, batch_size])
            mine = batches[:, part.first : part.first + part.local]
            return tf.data.Dataset.from_tensor_slices(tf.reshape(mine, [-1, batch_size]))

        chunks = _chunks(epoch, steps, first_step, part, self.rows.chunk(batch_size).shape[0])
        if not isinstance(self.rows, IndexedRows):
            chunks = chunks.map(lambda rows: tf.gather(data, rows), tf.data.AUTOTUNE, deterministic=True)
        return without_autotune(chunks.prefetch(2))

    def evaluation(self, batch_size: int, part: Part, same_size: bool = False) -> tf.data.Dataset:
        """Return an endless repetition of all examples, each once in ``evaluation_steps`` steps.

        ``same_size`` makes all batches equally large, for devices that require static shapes; it leaves out the
        examples that do not fit, fewer than one per batch.
        """
        data = self._loaded()
        sizes = _evaluation_batch_sizes(self.examples, batch_size, part.replicas, same_size)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        mine = (np.arange(len(sizes)) % part.replicas) // part.local == part.worker
        size = int(sizes[0]) if same_size else None

        @tf.autograph.experimental.do_not_convert
        def batch(start: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            if isinstance(self.rows, IndexedRows):
                return tf.ensure_shape(tf.range(start, start + rows), [size])
            return tf.ensure_shape(data[start : start + rows], [size, None])

        ranges = tf.data.Dataset.from_tensor_slices((starts[mine].astype(np.int32), sizes[mine].astype(np.int32)))
        return without_autotune(ranges.repeat().map(batch).prefetch(2))


class _Streamed:
    """Rows that do not fit into memory."""

    def __init__(self, files: list[str], rows: Rows, part: Part, deterministic: bool, disk: str | None):
        self._files = files
        self.rows = rows
        self._deterministic = deterministic
        self._block = _rows_in_block(rows)
        counts = _examples_in(files, self._block)
        self.examples = sum(counts)
        if not self.examples:
            raise TrainingError(f"no examples in {', '.join(files)}")
        dealt = _deal_out(files, counts, part.workers)
        # Where files cannot be dealt out evenly, each worker reads all of them and feeds its part of every batch.
        self._by_file = part.workers > 1 and dealt is not None
        self._own = dealt[part.worker] if dealt else files
        if part.workers > 1:
            logger.info("This worker reads %d of %d files.", len(self._own), len(files))
        self.cache, self.is_loaded = "disk" if disk else "none", False
        self._cached: tf.data.Dataset | None = None
        if disk:
            self._folder = tempfile.TemporaryDirectory(prefix="examples-", dir=disk)  # goes with the last reference
            self._cached = self._shuffled(tf.constant(0, tf.int64)).cache(f"{self._folder.name}/blocks")

    def training(self, batch_size: int, part: Part, seed: int, first_step: int = 0) -> tf.data.Dataset:
        steps = steps_per_epoch(self.examples, batch_size, part.replicas)

        @tf.autograph.experimental.do_not_convert
        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            order = tf.constant(seed, tf.int64) * 1_000_003 + number
            if self._cached is not None:
                shuffled = _rows_at_once(8 * RECORDS_SHUFFLED, BYTES_SHUFFLED, self.rows)
                blocks = self._cached.shuffle(math.ceil(shuffled / STREAMED_BLOCK), seed=order)
            else:
                blocks = self._shuffled(order)
            if self._by_file:
                # The workers' files differ in size a little: each goes round its own until the epoch's steps are done.
                return blocks.repeat().rebatch(batch_size, drop_remainder=True).take(steps * part.local)
            return _own_batches(blocks.rebatch(batch_size, drop_remainder=True).take(steps * part.replicas), part)

        chunks = _chunks(epoch, steps, first_step, part, self.rows.chunk(batch_size).shape[0])
        return chunks.prefetch(tf.data.AUTOTUNE)

    def evaluation(self, batch_size: int, part: Part, same_size: bool = False) -> tf.data.Dataset:
        sizes = _evaluation_batch_sizes(self.examples, batch_size, part.replicas, same_size)
        blocks = _blocks(self._files, _gzipped(self._files), self._block).map(self.rows.parse, tf.data.AUTOTUNE)
        pieces = blocks.rebatch(int(sizes[0]) if same_size else sizes, drop_remainder=same_size).take(len(sizes))
        return _own_batches(pieces, part).repeat().prefetch(tf.data.AUTOTUNE)

    def _shuffled(self, seed: tf.Tensor) -> tf.data.Dataset:
        """Return packed blocks of this worker's examples in random order."""
        files = tf.data.Dataset.from_tensor_slices(self._own).shuffle(len(self._own), seed=seed)
        records = _blocks(files, _gzipped(self._own), 16, self._deterministic).unbatch()
        shuffled = records.shuffle(_rows_at_once(RECORDS_SHUFFLED, BYTES_SHUFFLED, self.rows), seed=seed)
        blocks = shuffled.batch(STREAMED_BLOCK)
        return blocks.map(self.rows.parse, tf.data.AUTOTUNE, deterministic=self._deterministic)


def _deal_out(files: Sequence[str], examples: Sequence[int], workers: int) -> list[list[str]] | None:
    """Deal files out to workers, so that each gets about as many examples; None if the shares are too uneven.

    The largest file is dealt first, and each to the worker with the fewest examples so far (Graham 1969, "Bounds on
    Multiprocessing Timing Anomalies").
    """
    shares: list[list[str]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for count, file in sorted(zip(examples, files, strict=True), key=lambda pair: -pair[0]):
        fewest = totals.index(min(totals))
        shares[fewest].append(file)
        totals[fewest] += count
    return shares if max(totals) <= UNEVEN * min(totals) else None


def _examples_in(files: list[str], block: int) -> list[int]:
    kind = "GZIP" if _gzipped(files) else ""

    @tf.autograph.experimental.do_not_convert
    def count(file: tf.Tensor) -> tf.Tensor:
        blocks = tf.data.TFRecordDataset(file, kind, buffer_size=1 << 20).batch(block)
        return blocks.reduce(0, lambda total, records: total + tf.size(records))

    counts = without_autotune(tf.data.Dataset.from_tensor_slices(files).map(count, tf.data.AUTOTUNE))
    return [int(number) for number in counts.as_numpy_iterator()]


def _rows_in_block(rows: Rows) -> int:
    return _rows_at_once(BLOCK, BYTES_IN_DECODED_BLOCK if rows.decodes else BYTES_IN_BLOCK, rows)


def _rows_at_once(most: int, most_bytes: int, rows: Rows) -> int:
    """Return how many examples to handle together: ``most`` for tables, fewer where an example is an image."""
    return max(1, min(most, most_bytes // rows.bytes))


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Disable tf.data's autotuner for a dataset; AUTOTUNE then means all cores.

    For datasets with little to tune: dropping an iterator waits for the tuner's thread, which may miss the call to end
    and then sleeps for as long as the iterator has lived, up to a minute (seen in TensorFlow 2.21).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _gzipped(files: Sequence[str]) -> bool:
    return files[0].endswith(".gz")  # the files of a split are all the same


def _blocks(
    names: Sequence[str] | tf.data.Dataset, compressed: bool, size: int, deterministic: bool = True
) -> tf.data.Dataset:
    """Return serialized records of several files, [size or fewer], read in parallel."""

    # Blocks, for handing single records from thread to thread took three times as long as reading them.
    @tf.autograph.experimental.do_not_convert
    def blocks(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, "GZIP" if compressed else "", buffer_size=1 << 20).batch(size)

    files = names if isinstance(names, tf.data.Dataset) else tf.data.Dataset.from_tensor_slices(names)
    return files.interleave(blocks, num_parallel_calls=tf.data.AUTOTUNE, deterministic=deterministic)


def _chunks(
    epoch: Callable[[tf.Tensor], tf.data.Dataset], steps: int, first_step: int, part: Part, steps_in_chunk: int
) -> tf.data.Dataset:
    """Return the batches of endless epochs from a step on, in chunks of several steps for each local replica in turn.

    ``epoch`` returns the batches of an epoch of ``steps`` steps by its number, for the local replicas in turn.
    """
    first_epoch, steps_into_it = divmod(first_step, steps)
    numbers = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
    batches = numbers.flat_map(epoch).skip(steps_into_it * part.local)
    if part.local == 1:
        return batches.batch(steps_in_chunk, drop_remainder=True)

    @tf.autograph.experimental.do_not_convert
    def by_replica(chunk: tf.Tensor) -> tf.Tensor:
        return tf.stack([chunk[replica :: part.local] for replica in range(part.local)])

    chunks = batches.batch(steps_in_chunk * part.local, drop_remainder=True)
    return chunks.map(by_replica, tf.data.AUTOTUNE).unbatch()


def _own_batches(batches: tf.data.Dataset, part: Part) -> tf.data.Dataset:
    """Return this process's part of batches for all replicas in turn."""
    if part.workers == 1:
        return batches
    mine = batches.enumerate().filter(lambda place, _: (place % part.replicas) // part.local == part.worker)
    return mine.map(lambda _, batch: batch)
