"""Layers for tables, each after its paper: embeddings of numbers, and committees of networks.

    numbers = tabular.PiecewiseLinear(bins=16, width=8)(inputs["numbers"])  # [batch, numbers * 8]
    hidden = tabular.SharedDense(members, 128, "relu")(numbers)  # [batch, members, 128]
    each = tabular.MemberDense(members, 1, "sigmoid", dtype="float32")(hidden)  # [batch, members, 1]
    model = tabular.Committee(inputs, each)  # answers [batch, 1]

``preprocessing.quantile_transform`` makes such numbers in ``preprocessing_fn``. The layers say of what shape their
answers are: Keras would otherwise trace each layer, each time a model is built.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from keras import layers, ops

Shape: TypeAlias = tuple[int | None, ...]
# Of dropout: the values of a byte, and the relative error that a rate may have.
VALUES_OF_A_BYTE, MOST_OFF = 256, 0.02


class Standardize(layers.Layer):
    """Give numbers that are spread evenly over 0 to 1 the mean 0 and the spread 1; ``[batch, n] → [batch, 2 n]``.

    The second half says which are missing, NaN; they count as the mean. For a few hundred or thousand rows, on which
    embeddings of numbers learn chance.
    """

    def call(self, numbers: Any) -> Any:
        """Take numbers as ``preprocessing.quantile_transform`` makes them."""
        missing = ops.isnan(numbers)
        standard = ops.where(missing, 0.0, (numbers - 0.5) * math.sqrt(12))
        return ops.concatenate([standard, ops.cast(missing, numbers.dtype)], axis=-1)

    def compute_output_shape(self, shape: Shape) -> Shape:
        """Return [batch, 2 n]."""
        return (*shape[:-1], shape[-1] and 2 * shape[-1])


class _NumberEmbedding(layers.Layer):
    """A dense layer for each number, over ``values`` made of it and whether it is missing."""

    def __init__(self, values: int, width: int, **settings: Any):
        super().__init__(**settings)
        self._values, self.width = values, width

    def build(self, shape: Shape) -> None:
        """Create the weights of each number."""
        numbers, limit = shape[-1], math.sqrt(3 / (self._values + 1))
        initializer = keras.initializers.RandomUniform(-limit, limit)
        self.kernel = self.add_weight(shape=(numbers, self._values + 1, self.width), initializer=initializer)
        self.bias = self.add_weight(shape=(numbers, self.width), initializer="zeros")

    def call(self, numbers: Any) -> Any:
        """Take numbers, NaN where one is missing."""
        missing = ops.isnan(numbers)[..., None]
        values = ops.where(missing, 0.0, self.values_of(ops.where(missing, 0.0, numbers[..., None])))
        values = ops.concatenate([values, ops.cast(missing, values.dtype)], axis=-1)  # [batch, numbers, values + 1]
        embedded = ops.relu(_products(values, self.kernel) + self.bias)
        return ops.reshape(embedded, (-1, embedded.shape[1] * self.width))

    def compute_output_shape(self, shape: Shape) -> Shape:
        """Return [batch, numbers * width]."""
        return shape[0], shape[-1] and shape[-1] * self.width

    def values_of(self, numbers: Any) -> Any:
        """Return values, [batch, numbers, values], of numbers, [batch, numbers, 1]."""
        raise NotImplementedError


class PiecewiseLinear(_NumberEmbedding):
    """Embed each number by how far it reaches into each of some bins; ``[batch, numbers] → [batch, numbers * width]``.

    The answer of a network can bend at each bin, whereas a plain dense layer is straight at first. Bins hold about
    equally many values if the numbers come from ``preprocessing.quantile_transform``; numbers beyond 0 or 1 count as 0
    or 1. A missing number, NaN, has its own embedding. After Gorishniy et al. 2022, "On Embeddings for Numerical
    Features in Tabular Deep Learning".

    Args:
        bins: Equal parts of 0 to 1.
        width: Of a number's embedding.
    """

    def __init__(self, bins: int, width: int, **settings: Any):
        super().__init__(bins, width, **settings)
        self.bins = bins

    def values_of(self, numbers: Any) -> Any:
        """Return how far numbers reach into each bin, 0 to 1."""
        return ops.clip(numbers * self.bins - ops.arange(self.bins, dtype=numbers.dtype), 0.0, 1.0)


class Periodic(_NumberEmbedding):
    """Embed each number by waves of learnt lengths; ``[batch, numbers] → [batch, numbers * width]``.

    For answers that go up and down many times along a number. A missing number, NaN, has its own embedding. After
    Gorishniy et al. 2022, "On Embeddings for Numerical Features in Tabular Deep Learning" (PLR).

    Args:
        frequencies: Waves of each number.
        width: Of a number's embedding.
        sigma: Spread of the frequencies at first, per unit of the numbers; the paper tunes it, from 0.01 to 10.
    """

    def __init__(self, frequencies: int, width: int, sigma: float = 1.0, **settings: Any):
        super().__init__(2 * frequencies, width, **settings)
        self.frequencies, self.sigma = frequencies, sigma

    def build(self, shape: Shape) -> None:
        """Create the frequencies and weights of each number."""
        waves = keras.initializers.RandomNormal(stddev=self.sigma)
        self.frequency = self.add_weight(shape=(shape[-1], self.frequencies), initializer=waves)
        super().build(shape)

    def values_of(self, numbers: Any) -> Any:
        """Return sine and cosine of each wave."""
        angle = 2 * math.pi * self.frequency * numbers
        return ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)


class EmbeddingBag(layers.Layer):
    """The sum of the embeddings of several categories; ``[batch, places]`` each → ``[batch, width]``.

    Equals a dense layer on one-hot categories, at the price of one row of its weights for each. Categories are added
    sequentially: all their rows together, [batch, columns, width], as ``keras.layers.Embedding`` returns them, and
    their gradient exceed the cache of a processor. In training the gradient of a row of the table is summed in one
    operation, over places sorted by row.

    Args:
        sizes: Number of values of each category, in the order of the inputs.
        width: Of an embedding.
    """

    def __init__(self, sizes: Sequence[int], width: int, **settings: Any):
        super().__init__(**settings)
        self.sizes, self.width = list(sizes), width

    def build(self, shapes: Any) -> None:
        """Create the rows of all categories in one table, which the optimizer changes faster than many."""
        self.embeddings = self.add_weight(shape=(sum(self.sizes), self.width), initializer="uniform")

    def call(self, categories: Sequence[Any], training: bool | None = None) -> Any:
        """Take numbers from 0 to below the size of each category."""
        tables = ops.split(self.embeddings, list(itertools.accumulate(self.sizes[:-1])), axis=0)
        # tf.gather and not ops.take, which counts negative numbers from the end: three more operations for each place.
        rows_of = _rows_to_learn if training and not tf.config.list_logical_devices("TPU") else tf.gather
        embedded: list[Any] = []
        for table, places in zip(tables, categories, strict=True):
            for numbers in tf.unstack(places, axis=1):
                # TensorFlow would read all rows first and then add them, out of the processor's cache.
                with tf.control_dependencies(embedded):
                    rows = rows_of(table, numbers)
                embedded = [sum([*embedded, rows])]
        return embedded[0]

    def compute_output_shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return [batch, width]."""
        return shapes[0][0], self.width


class Dropout(layers.Dropout):
    """``keras.layers.Dropout`` at a third of its price on a CPU, where drawing numbers is a quarter of a step.

    Keras makes 32 random bits into a float for each value. Here 8 bits decide, by the 256th nearest to the rate, which
    also scales the kept values: 0.1 becomes 0.1016. A rate that is off by more than a 50th is left to Keras.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Take [batch, ..., width]; return 0 for a part of the values in training, else all as they are."""
        dropped = round(self.rate * VALUES_OF_A_BYTE)
        rate = dropped / VALUES_OF_A_BYTE
        if not training or self.noise_shape or rate in (0, 1) or abs(rate - self.rate) > MOST_OFF * self.rate:
            return super().call(inputs, training=training)
        shape = tf.shape(inputs)
        outer, width = shape[:-1], shape[-1]
        fours = (width + 3) // 4
        # A number of 32 bits is four bytes; without bounds all numbers are drawn.
        drawn = tf.random.stateless_uniform(
            tf.concat([outer, [fours]], 0), tf.cast(self.seed_generator.next(), tf.int32), None, None, tf.uint32
        )
        drawn = tf.reshape(tf.bitcast(drawn, tf.uint8), tf.concat([outer, [4 * fours]], 0))[..., :width]
        stays = tf.cast(drawn >= tf.constant(dropped, tf.uint8), inputs.dtype)
        return inputs * (stays / (1 - rate))


class SharedDense(layers.Layer):
    """A dense layer that several members share, each with its own factors; ``→ [batch, members, units]``.

    A member multiplies inputs and outputs by its own numbers, and adds its own bias: a fraction of the weights of as
    many layers, and members that still err differently. After Wen et al. 2020, "BatchEnsemble", and Gorishniy et al.
    2024, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling", by which factors start at 1, but
    as random signs where all members read the same.

    Args:
        members: Of the committee.
        units: Of a member.
        activation: As in ``keras.layers.Dense``.
    """

    def __init__(self, members: int, units: int, activation: str | None = None, **settings: Any):
        super().__init__(**settings)
        self.members, self.units, self.activation = members, units, keras.activations.get(activation)

    def build(self, shape: Shape) -> None:
        """Create the shared weights and the members' factors."""
        width = shape[-1]
        limit = 1 / math.sqrt(width or 1)
        self.kernel = self.add_weight(shape=(width, self.units), initializer="lecun_uniform")
        self.factor_in = self.add_weight(
            shape=(self.members, width), initializer=_random_signs if len(shape) == 2 else "ones"
        )
        self.factor_out = self.add_weight(shape=(self.members, self.units), initializer="ones")
        self.bias = self.add_weight(
            shape=(self.members, self.units), initializer=keras.initializers.RandomUniform(-limit, limit)
        )

    def call(self, values: Any) -> Any:
        """Take [batch, width], the same for all members, or [batch, members, width]."""
        if len(values.shape) == 2:
            values = values[:, None]
        return self.activation(ops.matmul(values * self.factor_in, self.kernel) * self.factor_out + self.bias)

    def compute_output_shape(self, shape: Shape) -> Shape:
        """Return [batch, members, units]."""
        return shape[0], self.members, self.units


class MemberDense(layers.EinsumDense):
    """A dense layer with weights for each member; ``[batch, members, width] → [batch, members, units]``.

    Args:
        members: Of the committee.
        units: Of a member.
        activation: As in ``keras.layers.Dense``.
    """

    def __init__(self, members: int, units: int, activation: str | None = None, **settings: Any):
        # Keras would count the members as outputs of one layer, and start with weights that much too small.
        initializer = keras.initializers.GlorotUniform(input_axes=(1,), output_axes=(2,))
        super().__init__(
            "bmi,mio->bmo",
            (members, units),
            activation=activation,
            bias_axes="mo",
            kernel_initializer=initializer,
            **settings,
        )

    def call(self, values: Any, training: bool | None = None) -> Any:
        """Take [batch, members, width]."""
        return self.activation(_products(values, self.kernel) + self.bias)


class GroupIntercept(layers.Layer):
    """An offset for each group of train rows that share what no column tells, [batch, 1] → [batch, members, 1].

    As the random intercept of a mixed model (Laird and Ware 1982, "Random-Effects Models for Longitudinal Data"), it
    keeps the network from explaining by columns the effect of a group, such as the storms of a day. A group that the
    train rows lack, the last one, has the offset 0.

    Args:
        groups: With the last one, for all unknown groups.
        members: Of the committee.
    """

    def __init__(self, groups: int, members: int, **settings: Any):
        super().__init__(**settings)
        self.groups, self.members = groups, members

    def build(self, shape: Shape) -> None:
        """Create the offsets."""
        self.offsets = self.add_weight(shape=(self.groups, self.members), initializer="zeros")

    def call(self, group: Any) -> Any:
        """Take numbers of groups."""
        known = ops.cast(group < self.groups - 1, self.offsets.dtype)  # [batch, 1]
        return (ops.take(self.offsets, group[:, 0], axis=0) * known)[..., None]

    def compute_output_shape(self, shape: Shape) -> Shape:
        """Return [batch, members, 1]."""
        return shape[0], self.members, 1


class Committee(keras.Model):
    """Answer with the mean of members, each of which learns by its own loss.

    So they stay different, and their mean errs less than members that learn together. Loss and metrics are compiled as
    for a single model. Another model around it starts from ``output``, the mean: in training, a call returns the
    answers of each member.

    Args:
        inputs: As in ``keras.Model``.
        outputs: Answers of each member, [batch, members, 1 or classes]; the model's are [batch, 1 or classes].
    """

    def __init__(self, inputs: Any, outputs: Any, **settings: Any):
        super().__init__(inputs, ops.mean(outputs, axis=1), **settings)
        self._members = keras.Model(inputs, outputs)  # the same layers

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the mean; in training the answers of each member."""
        return self._members(inputs, training=True) if training else super().call(inputs, training=False, mask=mask)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the mean of the members' losses in training, else the loss of their mean."""
        if len(y_pred.shape) == 3:
            members, width = y_pred.shape[1:]
            y = ops.repeat(y, members, axis=0)
            y_pred = ops.reshape(y_pred, (-1, width))
            if sample_weight is not None:
                sample_weight = ops.repeat(sample_weight, members, axis=0)
        return super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Measure the mean of the members."""
        if len(y_pred.shape) == 3:
            y_pred = ops.mean(y_pred, axis=1)
        return super().compute_metrics(x, y, y_pred, sample_weight)


@tf.custom_gradient
def _rows_to_learn(table: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return rows of a table; its gradient has no operation on TPUs."""

    def gradient(of_rows: tf.Tensor) -> tuple[tf.Tensor, None]:
        order = tf.argsort(numbers)
        return tf.sparse.segment_sum(of_rows, order, tf.gather(numbers, order), num_segments=table.shape[0]), None

    return tf.gather(table, numbers), gradient


def _products(values: Any, kernels: Any) -> Any:
    """Return [batch, n, units] of [batch, n, width] and n kernels, [n, width, units].

    The gradient of an einsum by the kernels takes twice as long.
    """
    return ops.transpose(ops.matmul(ops.transpose(values, (1, 0, 2)), kernels), (1, 0, 2))


def _random_signs(shape: tuple[int, ...], dtype: Any = None) -> Any:
    return 2 * ops.cast(keras.random.randint(shape, 0, 2), dtype or "float32") - 1
