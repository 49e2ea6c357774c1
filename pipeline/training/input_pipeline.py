"""Transformed examples → batches, fast enough that the model does not wait.

A split that fits into memory is loaded once, in the background while the model is built, and every epoch is then a
permutation of all its rows. A larger one is streamed: files in random order, read in parallel, records shuffled in a
buffer, parsed in blocks, from a cache on disk after the first epoch if there is room.

What a training sees depends on the seed alone: step s gets the same examples on one device, on several, on several
workers, and after a restart in the middle of an epoch.
"""

from __future__ import annotations

import logging
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from pipeline.training.cache import estimate, gzipped, room_for
from pipeline.training.errors import TrainingError

logger = logging.getLogger("pipeline.training")

# A parse of a whole block is ten times as fast as a parse per record.
BLOCK = 1024
# Of a streamed split; in blocks of this many rows the shuffling stays fine.
STREAMED_BLOCK = 128
RECORDS_SHUFFLED = 50_000
# One split after the other: the train split is needed first.
LOADER = ThreadPoolExecutor(1, thread_name_prefix="examples")
# Batches fetched at once from memory.
FETCHED = 16
# TensorFlow quotes what it passes on: no quotation marks in it.
WRONG_LABEL = "a label that is none of the classes, in column"


@dataclass(frozen=True)
class Part:
    """The part of every global batch that this process feeds.

    Attributes:
        replicas: Copies of the model in all processes; each gets a batch of its own in every step.
        worker: Number of this process.
        workers: Number of processes.
    """

    replicas: int = 1
    worker: int = 0
    workers: int = 1

    @property
    def local(self) -> int:
        """Copies of the model in this process."""
        return self.replicas // self.workers

    @property
    def first(self) -> int:
        """Place of this process's first replica among all."""
        return self.worker * self.local


class Split(Protocol):
    """The examples of one split."""

    @property
    def examples(self) -> int:
        """How many there are; waits for those that are still being loaded."""

    @property
    def rows(self) -> Rows:
        """How batches are packed."""

    def training(self, batch_size: int, part: Part, seed: int, first_step: int = 0) -> tf.data.Dataset:
        """Endless batches, shuffled anew in every epoch of ``examples // (batch_size * replicas)`` steps.

        Args:
            batch_size: Examples per replica and step.
            part: What this process feeds; its replicas' batches follow one another.
            seed: Decides the order, with the number of the epoch.
            first_step: Step of the whole training to start at.

        Returns:
            Packed batches; ``rows.unpack`` gives ({feature: [batch_size, ...]}, label [batch_size, ...]).
        """

    def evaluation(self, batch_size: int, part: Part, same_size: bool = False) -> tf.data.Dataset:
        """Endless repetition of all examples, packed, each once in ``evaluation_steps`` steps.

        Args:
            batch_size: Most examples per replica and step.
            part: What this process feeds.
            same_size: Make all batches equally large, for devices that want static shapes; leaves out the examples that
                do not fit, fewer than one per batch.
        """


def read(
    patterns: Sequence[str],
    spec: Mapping[str, tf.io.FixedLenFeature],
    label: str,
    *,
    classes: int = 0,
    cache: str = "auto",
    part: Part | None = None,
    deterministic: bool = True,
    scratch: str | None = None,
) -> Split:
    """Opens a split, loading it in the background if it is kept in memory.

    Args:
        patterns: File patterns of TFRecords, gzipped when they end in ".gz", as in ``fn_args.train_files``.
        spec: How to parse a record, as in ``transform_output.transformed_feature_spec()``.
        label: The feature that is returned apart from the others.
        classes: Number of classes that the label counts from 0; 0 does not check it.
        cache: "memory", "disk", "none", or "auto": the first of these that there is room for.
        part: What this process feeds; a streamed split is read by files when every process can have some.
        deterministic: Whether a streamed split must come in the same order every time.
        scratch: Folder for a cache on disk.

    Raises:
        TrainingError: there are no files or, on the first use of a split in memory, no examples in them or a label that
            is none of the classes.
    """
    files = sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))
    if not files:
        raise TrainingError(f"no examples: nothing matches {', '.join(patterns)}")
    rows = Rows.of(spec, label, classes)
    examples = estimate(files)
    scratch = scratch or tempfile.gettempdir()
    if cache == "auto":
        cache, reason = room_for(examples * rows.bytes, scratch)
    else:
        reason = "asked for"
    logger.info(
        "About %d examples of %d bytes from %d files, cache: %s (%s).", examples, rows.bytes, len(files), cache, reason
    )
    if cache == "memory":
        return _InMemory(files, rows)
    return _Streamed(files, rows, part or Part(), deterministic, scratch if cache == "disk" else None)


def explained(error: tf.errors.InvalidArgumentError) -> Exception:
    """The error of a dataset as one for people, if it is about the data."""
    found = re.search(f"{WRONG_LABEL}.*?to \\d+", str(error))
    return TrainingError(f"{found[0]}; correct the data or label.classes") if found else error


def steps_per_epoch(examples: int, batch_size: int, replicas: int) -> int:
    """Steps of one training epoch; what does not fill a last batch waits for another epoch's order."""
    return examples // (batch_size * replicas)


def evaluation_steps(examples: int, batch_size: int, replicas: int) -> int:
    """Steps of one evaluation."""
    return math.ceil(examples / (batch_size * replicas))


def _pieces(examples: int, batch_size: int, replicas: int, same_size: bool) -> np.ndarray:
    """Sizes of an evaluation's batches, [steps * replicas]; they differ by one at most and none is empty."""
    count = evaluation_steps(examples, batch_size, replicas) * replicas
    if examples < count:
        raise TrainingError(
            f"{examples} examples for {replicas} replicas: each needs at least one. Give more data or fewer devices"
        )
    sizes = np.full(count, examples // count)
    if not same_size:
        sizes[: examples % count] += 1
    return sizes


@dataclass(frozen=True)
class Rows:
    """Parsed examples packed by type, a matrix each: moving few large tensors costs less than many small ones.

    Attributes:
        spec: How to parse.
        label: Feature returned apart.
        classes: The label must be one of 0 to classes - 1; 0 does not check it.
        groups: Feature names by type, each in the order of its columns.
    """

    spec: dict[str, tf.io.FixedLenFeature]
    label: str
    classes: int
    groups: dict[tf.DType, list[str]]

    @classmethod
    def of(cls, spec: Mapping[str, tf.io.FixedLenFeature], label: str, classes: int) -> Rows:
        """Groups the features of a spec."""
        groups: dict[tf.DType, list[str]] = {}
        for name, feature in sorted(spec.items()):
            groups.setdefault(feature.dtype, []).append(name)
        return cls(dict(spec), label, classes, groups)

    @property
    def bytes(self) -> int:
        """Size of one parsed example."""
        return sum(max(dtype.size, 1) * self._width(name) for dtype, names in self.groups.items() for name in names)

    def parse(self, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Serialized tf.Examples [n] → one [n, columns] for each group."""
        parsed = tf.io.parse_example(serialized, self.spec)
        if self.classes:
            label = parsed[self.label]
            tf.debugging.assert_equal(
                tf.reduce_all((label >= 0) & (label < self.classes)),
                True,
                f"{WRONG_LABEL} {self.label}: expected 0 to {self.classes - 1}",
            )
        return tuple(
            tf.concat([tf.reshape(parsed[name], [-1, self._width(name)]) for name in names], axis=1)
            for names in self.groups.values()
        )

    def unpack(self, *packed: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """The features of packed rows, and the label."""
        features = {}
        for names, columns in zip(self.groups.values(), packed, strict=True):
            for name, value in zip(
                names, tf.split(columns, [self._width(name) for name in names], axis=1), strict=True
            ):
                shape = self.spec[name].shape
                features[name] = value if len(shape) == 1 else tf.reshape(value, [-1, *shape])
        return features, features.pop(self.label)

    def packed_spec(self, batch_size: int) -> tuple[tf.TensorSpec, ...]:
        """Spec of a packed batch, known before any example is."""
        return tuple(
            tf.TensorSpec([batch_size, sum(map(self._width, names))], dtype) for dtype, names in self.groups.items()
        )

    def batch_spec(self, batch_size: int) -> tuple[dict[str, tf.TensorSpec], tf.TensorSpec]:
        """Spec of an unpacked batch."""
        specs = {name: tf.TensorSpec([batch_size, *item.shape], item.dtype) for name, item in self.spec.items()}
        return specs, specs.pop(self.label)

    def _width(self, name: str) -> int:
        return math.prod(self.spec[name].shape)


class _InMemory:
    """All rows as tensors, and every epoch a permutation of them."""

    def __init__(self, files: list[str], rows: Rows):
        self.rows = rows
        self._loading: Future[tuple[tf.Tensor, ...]] = LOADER.submit(self._load, files)

    def _load(self, files: list[str]) -> tuple[tf.Tensor, ...]:
        with tf.device("/CPU:0"):
            blocks = _records(files, deterministic=True).batch(BLOCK).map(self.rows.parse, tf.data.AUTOTUNE)
            parts = list(blocks.prefetch(tf.data.AUTOTUNE))
            if not parts:
                raise TrainingError(f"no examples in {', '.join(files)}")
            return tuple(tf.concat(columns, axis=0) for columns in zip(*parts, strict=True))

    @property
    def examples(self) -> int:
        return int(self._loaded()[0].shape[0])

    def _loaded(self) -> tuple[tf.Tensor, ...]:
        try:
            return self._loading.result()
        except tf.errors.InvalidArgumentError as error:
            raise explained(error) from error

    def training(self, batch_size: int, part: Part, seed: int, first_step: int = 0) -> tf.data.Dataset:
        examples = self.examples
        steps = steps_per_epoch(examples, batch_size, part.replicas)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            order = tf.random.experimental.stateless_shuffle(
                tf.range(examples, dtype=tf.int64), tf.stack([tf.constant(seed, tf.int64), number])
            )
            batches = tf.reshape(order[: steps * part.replicas * batch_size], [steps, part.replicas, batch_size])
            mine = batches[:, part.first : part.first + part.local]
            return tf.data.Dataset.from_tensor_slices(tf.reshape(mine, [-1, batch_size]))

        def fetch(indices: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return tuple(tf.gather(columns, indices) for columns in data)

        data = self._loaded()
        first_epoch, steps_into_it = divmod(first_step, steps)
        numbers = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
        indices = numbers.flat_map(epoch).skip(steps_into_it * part.local).batch(FETCHED, drop_remainder=True)
        return indices.map(fetch, tf.data.AUTOTUNE, deterministic=True).unbatch().prefetch(tf.data.AUTOTUNE)

    def evaluation(self, batch_size: int, part: Part, same_size: bool = False) -> tf.data.Dataset:
        sizes = _pieces(self.examples, batch_size, part.replicas, same_size)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        mine = (np.arange(len(sizes)) % part.replicas) // part.local == part.worker
        size = [int(sizes[0]) if same_size else None, None]

        def fetch(start: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return tuple(tf.ensure_shape(columns[start : start + rows], size) for columns in data)

        data = self._loaded()
        ranges = tf.data.Dataset.from_tensor_slices((starts[mine], sizes[mine])).repeat()
        return ranges.map(fetch, tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


class _Streamed:
    """Rows that do not fit into memory."""

    def __init__(self, files: list[str], rows: Rows, part: Part, deterministic: bool, disk: str | None):
        self._files = files
        self.rows = rows
        self._deterministic = deterministic
        # With fewer files than workers, each worker reads all of them and feeds its part of every batch.
        self._by_file = part.workers > 1 and len(files) >= part.workers
        self._own = files[part.worker :: part.workers] if self._by_file else files
        self._examples = int(_records(files, False).batch(BLOCK).reduce(0, lambda count, block: count + tf.size(block)))
        if not self._examples:
            raise TrainingError(f"no examples in {', '.join(files)}")
        self._cached: tf.data.Dataset | None = None
        if disk:
            self._folder = tempfile.TemporaryDirectory(prefix="examples-", dir=disk)  # goes with the last reference
            blocks = self._parse(self._shuffled_records(tf.constant(0, tf.int64)), STREAMED_BLOCK)
            self._cached = blocks.cache(f"{self._folder.name}/blocks")

    @property
    def examples(self) -> int:
        return self._examples

    def training(self, batch_size: int, part: Part, seed: int, first_step: int = 0) -> tf.data.Dataset:
        steps = steps_per_epoch(self.examples, batch_size, part.replicas)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            order = tf.constant(seed, tf.int64) * 1_000_003 + number
            if self._cached is not None:
                blocks = self._cached.shuffle(RECORDS_SHUFFLED // STREAMED_BLOCK * 8, seed=order)
            else:
                blocks = self._parse(self._shuffled_records(order), STREAMED_BLOCK)
            if self._by_file:
                # The workers' files differ in size: each goes round its own until the epoch's steps are done.
                return blocks.repeat().rebatch(batch_size, drop_remainder=True).take(steps * part.local)
            return _part_of(blocks.rebatch(batch_size, drop_remainder=True).take(steps * part.replicas), part)

        first_epoch, steps_into_it = divmod(first_step, steps)
        numbers = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
        return numbers.flat_map(epoch).skip(steps_into_it * part.local).prefetch(tf.data.AUTOTUNE)

    def evaluation(self, batch_size: int, part: Part, same_size: bool = False) -> tf.data.Dataset:
        sizes = _pieces(self.examples, batch_size, part.replicas, same_size)
        blocks = self._parse(_records(self._files, deterministic=True), BLOCK)
        pieces = blocks.rebatch(int(sizes[0]) if same_size else sizes, drop_remainder=same_size).take(len(sizes))
        return _part_of(pieces, part).repeat().prefetch(tf.data.AUTOTUNE)

    def _shuffled_records(self, seed: tf.Tensor) -> tf.data.Dataset:
        files = tf.data.Dataset.from_tensor_slices(self._own).shuffle(len(self._own), seed=seed)
        return _records(files, self._deterministic, compressed=gzipped(self._own)).shuffle(RECORDS_SHUFFLED, seed=seed)

    def _parse(self, records: tf.data.Dataset, block: int) -> tf.data.Dataset:
        return records.batch(block).map(self.rows.parse, tf.data.AUTOTUNE, deterministic=self._deterministic)


def _records(
    files: list[str] | tf.data.Dataset, deterministic: bool, compressed: bool | None = None
) -> tf.data.Dataset:
    """Serialized records of several files, read in parallel."""
    if compressed is None:
        compressed = gzipped(files)
    names = files if isinstance(files, tf.data.Dataset) else tf.data.Dataset.from_tensor_slices(files)
    return names.interleave(
        lambda file: tf.data.TFRecordDataset(file, "GZIP" if compressed else "", buffer_size=8 << 20),
        num_parallel_calls=tf.data.AUTOTUNE,
        block_length=16,
        deterministic=deterministic,
    )


def _part_of(batches: tf.data.Dataset, part: Part) -> tf.data.Dataset:
    """Of batches for all replicas in turn, those of this process."""
    if part.workers == 1:
        return batches
    mine = batches.enumerate().filter(lambda place, _: (place % part.replicas) // part.local == part.worker)
    return mine.map(lambda _, batch: batch)
