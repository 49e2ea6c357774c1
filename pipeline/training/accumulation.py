"""Gradients of a batch that does not fit into memory at once: in parts, one after the other."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from pipeline.training.sparse import Gradient, added, any_number_of_rows, divided

LossAndGradients: TypeAlias = tuple[tf.Tensor, list[Gradient | None]]


def accumulated(
    gradients_of: Callable[..., LossAndGradients], batch: Mapping[str, tf.Tensor], parts: int
) -> LossAndGradients:
    """Return the mean loss, [], and the mean gradients, [variables], of the parts of a batch.

    Args:
        gradients_of: The same of a part, which it takes as named arguments.
        batch: Tensors, or structures of them, [batch, ...].
        parts: Of equal size.
    """
    if parts == 1:
        return gradients_of(**batch)
    batch = tf.nest.map_structure(
        lambda tensor: tf.reshape(tensor, [parts, tensor.shape[0] // parts, *tensor.shape[1:]]), dict(batch)
    )

    def of_part(part: tf.Tensor | int) -> LossAndGradients:
        loss, gradients = gradients_of(**tf.nest.map_structure(lambda tensor: tensor[part], batch))
        return loss / parts, [divided(gradient, parts) for gradient in gradients]

    def tensors_of(gradients: list[Gradient]) -> list[tf.Tensor]:
        return tf.nest.flatten(gradients, expand_composites=True)

    def add(part: tf.Tensor, loss: tf.Tensor, tensors: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        more_loss, more = of_part(part)
        more_present = [gradient for gradient in more if gradient is not None]
        so_far = tf.nest.pack_sequence_as(more_present, tensors, expand_composites=True)
        both = [added(*pair) for pair in zip(so_far, more_present, strict=True)]
        return part + 1, loss + more_loss, tensors_of(both)

    loss, gradients = of_part(0)
    present = [gradient for gradient in gradients if gradient is not None]
    shapes = [shape for gradient in present for shape in any_number_of_rows(gradient)]
    # One at a time: several at once would need the memory that is missing.
    _, loss, tensors = tf.while_loop(
        lambda part, *_: part < parts,
        add,
        (1, loss, tensors_of(present)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes),
        maximum_iterations=parts,
        parallel_iterations=1,
    )
    total = iter(tf.nest.pack_sequence_as(present, tensors, expand_composites=True))
    return loss, [None if gradient is None else next(total) for gradient in gradients]
