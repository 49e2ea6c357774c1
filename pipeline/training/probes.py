"""Time by themselves the parts of a step that cannot be timed inside it: few calls, after the training."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.training.rows import Rows

# The same on every worker, for some calls wait for all of them.
TIMES = 5
PASSES = 32


def all_reduce_seconds(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> float:
    """Return the seconds of one sum of all gradients over the replicas; every worker must call it.

    In a step it also waits for the slowest replica, which is no part of this.

    Args:
        strategy: Of the training.
        variables: Keras variables that are trained; their values stand for their gradients.
    """

    @tf.autograph.experimental.do_not_convert
    def in_replica() -> tf.Tensor:
        # As operations of their own, for those have a device, which a variable that is read may lack.
        values = [tf.identity(variable.value) for variable in variables]
        context = tf.distribute.get_replica_context()
        reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, values)
        return tf.add_n([tf.cast(tf.reshape(value, [-1])[0], tf.float32) for value in reduced])

    reduce = tf.function(lambda: strategy.run(in_replica))
    return seconds_of(lambda: [value.numpy() for value in strategy.experimental_local_results(reduce())])


def moving_seconds(device: str, spec: tf.TensorSpec) -> float:
    """Return the seconds of one copy of a tensor from this machine's memory to a device."""
    with tf.device("/CPU:0"):
        data = tf.zeros(spec.shape, spec.dtype)

    def move() -> None:
        with tf.device(device):
            # The answer to Python comes when the copy is there.
            tf.reshape(tf.identity(data), [-1])[0].numpy()

    return seconds_of(move)


def growth_of_a_step(model: keras.Model, rows: Rows, batch_size: int, factor: int) -> float:
    """Return how many times as long a forward pass over a batch takes that is so many times as large: 1 to ``factor``.

    The passes run in a loop in one call, for a call alone may take longer than a small step.
    """
    seconds = []
    for size in (batch_size, factor * batch_size):
        features = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), rows.batch_spec(size)[0])
        forward = tf.function(functools.partial(_forward_passes, model))
        seconds.append(seconds_of(functools.partial(_number_of, forward, features)))
    return min(max(seconds[1] / seconds[0], 1.0), float(factor))


def _forward_passes(model: keras.Model, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
    total = tf.constant(0.0)
    for number in tf.range(PASSES):
        # Other rows each time, or TensorFlow may compute the same once.
        answers = model({name: tf.roll(value, number, 0) for name, value in features.items()}, training=False)
        total += tf.reduce_sum(tf.cast(answers, tf.float32))
    return total


def _number_of(function: Callable[..., tf.Tensor], features: Mapping[str, tf.Tensor]) -> float:
    """Return what a function answers as a number, which is there when it has run."""
    return float(function(features))


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of the shortest of some calls, which other load has disturbed least; one before compiles."""
    call()
    seconds = []
    for _ in range(TIMES):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
