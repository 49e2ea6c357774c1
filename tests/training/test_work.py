"""The work of a graph is counted: what TensorFlow's profiler counts, and what it passes over."""

from collections.abc import Callable

import keras
import pytest
import tensorflow as tf

from pipeline.training import work

BATCH = 8


def graph(function: Callable, *shapes: tuple[int, ...]) -> tf.Graph:
    return tf.function(function).get_concrete_function(*map(tf.TensorSpec, shapes)).graph


def test_a_matrix_product_is_a_multiplication_and_an_addition_for_each_pair():
    found = work.count(graph(tf.matmul, (BATCH, 100), (100, 50)), BATCH)
    assert found.flops == 2 * BATCH * 100 * 50
    assert found.bytes == 4 * (BATCH * 100 + 100 * 50 + BATCH * 50)
    assert found.operations == 1


@pytest.mark.parametrize(
    ("equation", "shapes", "products"),
    [
        ("bmi,mio->bmo", ((BATCH, 3, 16), (3, 16, 4)), BATCH * 3 * 16 * 4),
        ("...i,io->...o", ((BATCH, 5, 16), (16, 4)), BATCH * 5 * 16 * 4),
        ("ij,jk->ik", ((BATCH, 16), (16, 4)), BATCH * 16 * 4),
    ],
)
def test_einsum_is_counted(equation, shapes, products):
    assert work.count(graph(lambda x, y: tf.einsum(equation, x, y), *shapes), BATCH).flops == 2 * products


def test_the_backward_pass_of_a_layer_is_twice_the_forward_pass():
    layer = keras.layers.Dense(50, use_bias=False)
    layer.build((BATCH, 100))

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x)
        return tape.gradient(outputs, [x, layer.kernel.value])

    assert work.count(graph(step, (BATCH, 100)), BATCH).flops == 3 * 2 * BATCH * 100 * 50


@pytest.mark.parametrize("kind", ["plain", "depthwise"])
def test_convolutions_are_counted_forwards_and_backwards(kind):
    filters = 4 if kind == "plain" else 1
    layer = {
        "plain": keras.layers.Conv2D(filters, 3, padding="same", use_bias=False),
        "depthwise": keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False),
    }[kind]
    layer.build((BATCH, 12, 12, 6))

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x)
        return tape.gradient(outputs, [x, *(each.value for each in layer.trainable_variables)])

    found = work.count(graph(step, (BATCH, 12, 12, 6)), BATCH)
    assert found.flops == pytest.approx(3 * 2 * BATCH * 12 * 12 * 9 * 6 * filters, rel=0.01)


def test_a_row_of_a_table_is_read_and_not_the_table():
    table = tf.Variable(tf.zeros([100_000, 4]))
    found = work.count(graph(lambda x: tf.gather(table, tf.cast(x, tf.int32)), (BATCH,)), BATCH)
    assert found.bytes < 1_000


def test_a_loop_is_seen_for_its_work_is_not_counted():
    layer = keras.layers.LSTM(3)
    layer.build((BATCH, 5, 2))
    assert work.has_loops(graph(layer, (BATCH, 5, 2)))
    assert not work.has_loops(graph(tf.matmul, (BATCH, 2), (2, 3)))
