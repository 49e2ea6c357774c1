"""Embeddings of large vocabularies: a training step reads and changes only the rows that its batch names."""

import math
from typing import Any, Literal, get_args

import keras
import tensorflow as tf

from pipeline.training.errors import TrainingError

Placement = Literal["table", "hashed", "compositional"]

# An odd number near 2^64 divided by the golden ratio: the upper bits of its multiples are spread evenly (Knuth, The Art
# of Computer Programming, volume 3, 6.4).
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)


def embedding(
    size: int,
    width: int,
    placement: Placement = "table",
    *,
    megabytes: float | None = None,
    mask_zero: bool = False,
    name: str | None = None,
) -> "Embedding":
    """Return a layer that maps whole numbers from 0 to below ``size``, [...], to float32 [..., width].

    As ``keras.layers.Embedding``, with two differences: gradients stay sparse, with the rows of a batch alone, and the
    optimizer changes those rows and what it keeps of them, and no others. Optimizers that go on moving a weight whose
    gradient is 0 (Adam, momentum) therefore leave the rows alone that a batch does not name, as TensorFlow Addons'
    LazyAdam does; weight decay leaves the layer alone.

    Args:
        size: How many different numbers there are.
        width: Of the vector of a number.
        placement: "table": a row for each number. "hashed": ``megabytes`` of rows, which numbers that meet by chance
            share (Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning"). "compositional": two
            tables of together at most ``megabytes``, for the quotient and the remainder of a number; its vector is the
            product of both, and no two are the same (Shi et al. 2020, "Compositional Embeddings Using Complementary
            Partitions").
        megabytes: Of 10^6 bytes, of the weights in float32, for "hashed" and "compositional". The optimizer keeps one
            (Adagrad, momentum) or two (Adam) more of the same size while it trains.
        mask_zero: The number 0 is padding, for the layers behind.
        name: Of the layer.

    Raises:
        TrainingError: size or width is not positive, or ``megabytes`` are too few or not wanted.
    """
    if size < 1 or width < 1:
        raise TrainingError(f"training.embedding({size}, {width}): size and width are whole numbers from 1 on")
    if placement not in get_args(Placement):
        raise TrainingError(
            f"training.embedding has no placement {placement!r}; expected one of {', '.join(get_args(Placement))}"
        )
    has_all_rows = placement == "table"
    if has_all_rows != (megabytes is None):
        needs = "has a row for each number and takes no megabytes" if has_all_rows else "needs megabytes=…"
        raise TrainingError(f'training.embedding(placement="{placement}") {needs}')
    rows = size if megabytes is None else min(size, int(megabytes * 1e6) // (4 * width))
    compositional = placement == "compositional" and rows < size
    return Embedding(size, width, rows, compositional, mask_zero=mask_zero, name=name)


class Embedding(keras.layers.Layer):
    """See ``embedding``.

    Args:
        size: How many different numbers there are.
        width: Of the vector of a number.
        rows: At most, in all tables.
        compositional: Multiply rows of quotient and remainder; else numbers share rows if rows are fewer than ``size``.
        mask_zero: The number 0 is padding.
        settings: Of any layer.

    Raises:
        TrainingError: the rows are too few.
    """

    def __init__(
        self, size: int, width: int, rows: int, compositional: bool, *, mask_zero: bool = False, **settings: Any
    ):
        super().__init__(**settings)
        self.size, self.width, self.rows, self.compositional = size, width, rows, compositional
        self.mask_zero = self.supports_masking = mask_zero
        self.tables: list[keras.Variable] = []
        least = 2 * math.isqrt(size - 1) + 2 if compositional else 1
        if rows < least:
            raise TrainingError(
                f"training.embedding({size:,}, {width}): {rows:,} rows fit into its megabytes; at least {least:,} are "
                f"needed: {least * width * 4 / 1e6:.3g} megabytes"
            )

    def build(self, input_shape: Any = None) -> None:
        """Create the tables."""
        if not self.compositional:
            self.tables = [self._table("embeddings", self.rows, keras.initializers.RandomUniform(-0.05, 0.05))]
            return
        # The most remainders for which both tables fit: remainders + size / remainders <= rows.
        remainders = int(self.rows / 2 + math.sqrt(max(0.0, self.rows**2 / 4 - self.size)))
        while remainders + -(-self.size // remainders) > self.rows:
            remainders -= 1
        self.tables = [
            self._table("remainders", remainders, keras.initializers.RandomUniform(-0.05, 0.05)),
            # Factors that begin around 1: products begin as large as a table's rows.
            self._table("quotients", -(-self.size // remainders), keras.initializers.RandomUniform(0.95, 1.05)),
        ]

    def _table(self, name: str, rows: int, initializer: keras.initializers.Initializer) -> keras.Variable:
        # Not cast to float16 as a whole, only the rows that are looked up.
        table = self.add_weight(shape=(rows, self.width), initializer=initializer, name=name, autocast=False)
        table.changes_by_rows = True  # for gradients.SparseUpdates
        return table

    def call(self, numbers: Any) -> Any:
        """Return the vectors of numbers."""
        numbers = tf.cast(numbers, tf.int64)
        if self.compositional:
            remainders = self.tables[0].shape[0]
            found = self._rows(0, numbers % remainders) * self._rows(1, numbers // remainders)
        elif self.rows < self.size:
            found = self._rows(0, hashed(numbers) % self.rows)
        else:
            found = self._rows(0, numbers)
        return tf.cast(found, self.compute_dtype)

    def _rows(self, table: int, places: tf.Tensor) -> tf.Tensor:
        # Gathered from the variable itself. Keras' own operations read all of it first, which keeps gradients sparse,
        # but copies the table in every step as soon as single rows of it are written.
        return tf.nn.embedding_lookup(self.tables[table].value, places)

    def compute_mask(self, numbers: Any, mask: Any = None) -> Any:
        """Say which numbers are not padding."""
        return keras.ops.not_equal(numbers, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the vectors."""
        return (*input_shape, self.width)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("size", "width", "rows", "compositional", "mask_zero")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def hashed(numbers: tf.Tensor) -> tf.Tensor:
    """Return numbers that follow no order, not negative, for int64 numbers."""
    mixed = numbers * tf.constant(_SPREAD, tf.int64)  # overflows, as it is meant to
    return tf.abs(mixed // (1 << 20))
