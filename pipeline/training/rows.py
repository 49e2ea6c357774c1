"""Parsed examples as one matrix: the bits of all features of an example side by side.

Moving one tensor costs a fraction of what moving one per feature does, in tf.data and between devices, and picking rows
at random touches memory once for each.
"""

import math
from collections.abc import Mapping

import tensorflow as tf

from pipeline.training.errors import TrainingError

# Bits of a word, and how many words a value takes.
WORD = tf.int32
WORDS = {tf.float32: 1, tf.int64: 2}
# Batches in a chunk: 48 microseconds to ask tf.data for an element are a twentieth of a small step. More bytes than
# this at once come from the system anew each time, and cost more than they save.
BATCHES_IN_CHUNK = 32
BYTES_IN_CHUNK = 4 << 20
# TensorFlow quotes what it passes on: no quotation marks in it.
WRONG_LABEL = "a label that is none of the classes, in column"


class Rows:
    """Parser and packer of examples.

    Args:
        spec: How to parse a record; float32 and int64 features of fixed shape.
        label: Feature returned apart.
        classes: The label must be one of 0 to classes - 1; 0 does not check it.

    Attributes:
        words: Columns of the packed matrix.
        bytes: Size of one packed example.

    Raises:
        TrainingError: a feature is text or varies in length.
    """

    def __init__(self, spec: Mapping[str, tf.io.FixedLenFeature], label: str, classes: int = 0):
        for name, feature in spec.items():
            if not isinstance(feature, tf.io.FixedLenFeature) or feature.dtype not in WORDS:
                raise TrainingError(
                    f"preprocessing_fn returns {name!r} as {type(feature).__name__} of {feature.dtype.name}; expected "
                    "float32 or int64 of a fixed shape"
                )
        self.spec = dict(spec)
        self.label = label
        self.classes = classes
        # Feature names by type, in the order of their columns.
        by_type = {dtype: sorted(name for name in spec if spec[name].dtype == dtype) for dtype in WORDS}
        self._groups = [(dtype, names) for dtype, names in by_type.items() if names]
        self.words = sum(WORDS[dtype] * sum(map(self._width, names)) for dtype, names in self._groups)
        self.bytes = self.words * WORD.size

    @tf.autograph.experimental.do_not_convert
    def parse(self, serialized: tf.Tensor) -> tf.Tensor:
        """Parse serialized tf.Examples [n] into packed rows, int32 [n, words]."""
        parsed = tf.io.parse_example(serialized, self.spec)
        if self.classes:
            label = parsed[self.label]
            tf.debugging.assert_equal(
                tf.reduce_all((label >= 0) & (label < self.classes)),
                True,
                f"{WRONG_LABEL} {self.label}: expected 0 to {self.classes - 1}",
            )
        packed = []
        for dtype, names in self._groups:
            values = tf.concat([tf.reshape(parsed[name], [-1, self._width(name)]) for name in names], axis=1)
            packed.append(tf.reshape(tf.bitcast(values, WORD), [-1, WORDS[dtype] * values.shape[1]]))
        return tf.concat(packed, axis=1)

    def pick(self, moved: tf.Tensor) -> tf.Tensor:
        """Return the packed rows, int32 [n, words], of an element of the dataset."""
        return moved

    def unpack(self, packed: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Turn packed rows, int32 [n, words], into ({feature: [n, ...]}, label [n, ...])."""
        features = {}
        start = 0
        for dtype, names in self._groups:
            widths = list(map(self._width, names))
            end = start + WORDS[dtype] * sum(widths)
            words = tf.reshape(packed[:, start:end], [-1, sum(widths), *([2] if WORDS[dtype] == 2 else [])])
            for name, value in zip(names, tf.split(tf.bitcast(words, dtype), widths, axis=1), strict=True):
                shape = self.spec[name].shape
                features[name] = value if len(shape) == 1 else tf.reshape(value, [-1, *shape])
            start = end
        return features, features.pop(self.label)

    def chunk(self, batch_size: int) -> tf.TensorSpec:
        """Return the spec of a chunk of batches, [batches, batch_size, words]."""
        batches = min(BATCHES_IN_CHUNK, max(1, BYTES_IN_CHUNK // (self.bytes * batch_size)))
        return tf.TensorSpec([batches, batch_size, self.words], WORD)

    def batch_spec(self, batch_size: int) -> tuple[dict[str, tf.TensorSpec], tf.TensorSpec]:
        """Return the spec of an unpacked batch."""
        specs = {name: tf.TensorSpec([batch_size, *item.shape], item.dtype) for name, item in self.spec.items()}
        return specs, specs.pop(self.label)

    def _width(self, name: str) -> int:
        return math.prod(self.spec[name].shape)


class IndexedRows(Rows):
    """Rows that are all at hand where the steps run: only their numbers are moved, and a step picks them itself.

    On a CPU that takes a third of the time of picking them ahead, which copies them to memory and from there again
    (benchmarks/input_pipeline.py). Other devices would wait for the copy.

    Attributes:
        matrix: All packed rows, int32 [examples, words]; empty until they are loaded.
    """

    def __init__(self, spec: Mapping[str, tf.io.FixedLenFeature], label: str, classes: int = 0):
        super().__init__(spec, label, classes)
        with tf.device("/CPU:0"):
            self.matrix = tf.Variable(tf.zeros([0, self.words], WORD), shape=[None, self.words], trainable=False)

    def pick(self, moved: tf.Tensor) -> tf.Tensor:
        """Return the packed rows, int32 [n, words], of row numbers, int32 [n]."""
        # Reading the whole variable copies nothing; a gather from the variable itself first makes a second matrix.
        return tf.gather(tf.convert_to_tensor(self.matrix), moved)

    def chunk(self, batch_size: int) -> tf.TensorSpec:
        """Return the spec of a chunk of batches: the numbers of their rows, [batches, batch_size]."""
        return tf.TensorSpec([BATCHES_IN_CHUNK, batch_size], tf.int32)
