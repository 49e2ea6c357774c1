"""Count the bytes that a graph computes, before any of it runs."""

import math

import tensorflow as tf

# Operations that move no data: they name, reshape or hold it.
FREE = {
    *("Const", "Identity", "IdentityN", "NoOp", "Placeholder", "ReadVariableOp", "VarHandleOp", "StopGradient"),
    *("Reshape", "Shape", "ShapeN", "Size", "Squeeze", "ExpandDims", "BroadcastGradientArgs", "Bitcast"),
}


def written(graph: tf.Graph) -> int:
    """Return the bytes of all that a graph computes."""
    operations = [operation for operation in graph.get_operations() if operation.type not in FREE]
    return sum(_bytes(output) for operation in operations for output in operation.outputs)


def _bytes(tensor: tf.Tensor) -> int:
    return math.prod(_shape(tensor)) * tensor.dtype.size if tensor.dtype.size else 0


def _shape(tensor: tf.Tensor) -> list[int]:
    """Return the sizes of a tensor's axes; 1 where one is not known."""
    return [size or 1 for size in tensor.shape.as_list()] if tensor.shape.rank is not None else []
