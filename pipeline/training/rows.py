"""Parsed examples as one matrix: the bits of all features of an example side by side.

Moving one tensor costs a fraction of what moving one per feature does, in tf.data and between devices, and picking rows
at random touches memory once for each.
"""

import math
from typing import Any

import tensorflow as tf

from pipeline.training.decoding import Decoder
from pipeline.training.errors import TrainingError

WORD = tf.int32
# Of the types that are packed.
BYTES = {tf.float32: 4, tf.int64: 8, tf.int32: 4, tf.uint8: 1}
# Batches in a chunk: asking tf.data for an element takes 48 microseconds, a twentieth of a small step. A chunk of more
# bytes is allocated by the system each time, and costs more than it saves.
BATCHES_IN_CHUNK = 32
BYTES_IN_CHUNK = 4 << 20
# TensorFlow quotes what it passes on: no quotation marks in it.
WRONG_LABEL = "a label that is not one of the classes, in column"


class Rows:
    """Parser, decoder and packer of examples.

    Args:
        decoder: Of records; the label, float32 or int64 of fixed shape, and any weight, float32, are returned apart.
        classes: The label must be one of 0 to classes - 1; 0 does not check it.

    Attributes:
        spec: Shape and type of each feature of a decoded example, of the label, and of any weight.
        words: Columns of the packed matrix.
        bytes: Size of one packed example.

    Raises:
        TrainingError: the label is text, or varies in length.
    """

    def __init__(self, decoder: Decoder, classes: int = 0):
        label, spec = decoder.label, decoder.parsing[decoder.label]
        if not isinstance(spec, tf.io.FixedLenFeature) or spec.dtype not in (tf.float32, tf.int64):
            raise TrainingError(
                f"preprocessing_fn returns the label {label!r} as {type(spec).__name__} of {spec.dtype.name}; expected "
                "float32 or int64 of a fixed shape"
            )
        self._decoder = decoder
        self.spec = {**decoder.specs, label: tf.TensorSpec(spec.shape, spec.dtype)}
        self.label, self.weight = label, decoder.weight
        if self.weight:
            self.spec[self.weight] = tf.TensorSpec([1], tf.float32)
        self.classes = classes
        self.decodes = decoder.decodes
        # Feature names by type, in the order of their columns.
        by_type = {dtype: sorted(name for name in self.spec if self.spec[name].dtype == dtype) for dtype in BYTES}
        self._groups = [(dtype, names) for dtype, names in by_type.items() if names]
        self.words = sum(self._words(name) for _, names in self._groups for name in names)
        self.bytes = self.words * WORD.size

    @tf.autograph.experimental.do_not_convert
    def parse(self, serialized: tf.Tensor) -> tf.Tensor:
        """Parse serialized tf.Examples [n] into packed rows, int32 [n, words]."""
        parsed = tf.io.parse_example(serialized, self._decoder.parsing)
        label = parsed[self.label]
        if self.classes:
            tf.debugging.assert_equal(
                tf.reduce_all((label >= 0) & (label < self.classes)),
                True,
                f"{WRONG_LABEL} {self.label}: expected 0 to {self.classes - 1}",
            )
        decoded = {**self._decoder(parsed), self.label: label}
        if self.weight:
            decoded[self.weight] = parsed[self.weight]
        packed = []
        for dtype, names in self._groups:
            values = tf.concat([self._filled_up(name, decoded[name]) for name in names], axis=1)
            per_word = max(1, WORD.size // BYTES[dtype])
            if per_word > 1:
                values = tf.reshape(values, [-1, values.shape[1] // per_word, per_word])
            packed.append(tf.reshape(tf.bitcast(values, WORD), [-1, sum(map(self._words, names))]))
        return tf.concat(packed, axis=1)

    def pick(self, moved: tf.Tensor) -> tf.Tensor:
        """Return the packed rows, int32 [n, words], of an element of the dataset."""
        return moved

    def unpack(self, packed: tf.Tensor) -> tuple[Any, ...]:
        """Turn packed rows, int32 [n, words], into ({feature: [n, ...]}, label [n, ...]), and weights [n] if any."""
        features = {}
        start = 0
        for dtype, names in self._groups:
            widths = [self._words(name) * WORD.size // BYTES[dtype] for name in names]
            end = start + sum(map(self._words, names))
            words = packed[:, start:end]
            if BYTES[dtype] > WORD.size:
                words = tf.reshape(words, [-1, sum(widths), BYTES[dtype] // WORD.size])
            values = tf.reshape(tf.bitcast(words, dtype), [-1, sum(widths)])
            for name, value in zip(names, tf.split(values, widths, axis=1), strict=True):
                shape = self.spec[name].shape
                if value.shape[1] != self._width(name):
                    value = value[:, : self._width(name)]
                features[name] = value if len(shape) == 1 else tf.reshape(value, [-1, *shape])
            start = end
        label = features.pop(self.label)
        return (features, label, features.pop(self.weight)[:, 0]) if self.weight else (features, label)

    def chunk(self, batch_size: int) -> tf.TensorSpec:
        """Return the spec of a chunk of batches, [batches, batch_size, words]."""
        batches = min(BATCHES_IN_CHUNK, max(1, BYTES_IN_CHUNK // (self.bytes * batch_size)))
        return tf.TensorSpec([batches, batch_size, self.words], WORD)

    def batch_spec(self, batch_size: int) -> tuple[Any, ...]:
        """Return the spec of an unpacked batch."""
        specs = {name: tf.TensorSpec([batch_size, *item.shape], item.dtype) for name, item in self.spec.items()}
        label = specs.pop(self.label)
        return (
            (specs, label, tf.TensorSpec([batch_size], specs.pop(self.weight).dtype)) if self.weight else (specs, label)
        )

    def _width(self, name: str) -> int:
        return math.prod(self.spec[name].shape)

    def _words(self, name: str) -> int:
        return math.ceil(self._width(name) * BYTES[self.spec[name].dtype] / WORD.size)

    def _filled_up(self, name: str, values: tf.Tensor) -> tf.Tensor:
        """Return values [n, ...] as whole words, [n, values]."""
        width = self._width(name)
        spare = self._words(name) * WORD.size // BYTES[self.spec[name].dtype] - width
        return (
            tf.pad(tf.reshape(values, [-1, width]), [[0, 0], [0, spare]])
            if spare > 0
            else tf.reshape(values, [-1, width])
        )


class IndexedRows(Rows):
    """Rows that are in memory where the steps run: only their numbers are moved, and a step picks them itself.

    On a CPU that takes a third of the time of copying them ahead (benchmarks/input_pipeline.py).

    Attributes:
        matrix: All packed rows, int32 [examples, words]; empty until they are loaded.
    """

    def __init__(self, decoder: Decoder, classes: int = 0):
        super().__init__(decoder, classes)
        with tf.device("/CPU:0"):
            self.matrix = tf.Variable(tf.zeros([0, self.words], WORD), shape=[None, self.words], trainable=False)

    def pick(self, moved: tf.Tensor) -> tf.Tensor:
        """Return the packed rows, int32 [n, words], of row numbers, int32 [n]."""
        # Reading the whole variable copies nothing; a gather from the variable itself first makes a second matrix.
        return tf.gather(tf.convert_to_tensor(self.matrix), moved)

    def chunk(self, batch_size: int) -> tf.TensorSpec:
        """Return the spec of a chunk of batches: the numbers of their rows, [batches, batch_size]."""
        return tf.TensorSpec([BATCHES_IN_CHUNK, batch_size], tf.int32)
