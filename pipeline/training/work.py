"""Count the work of a graph: floating-point operations, bytes and operations to launch, before any of it runs.

TensorFlow's own profiler counts most operations. What it passes over and matters is added here: einsum, and the
backward pass of depthwise convolutions (seen in TensorFlow 2.21). Of a loop it counts nothing, as its repetitions are
not known.
"""

import math
import re

import tensorflow as tf

from pipeline.costs.measured import StepWork

# Operations that move no data: they name, reshape or hold it.
FREE = {
    *("Const", "Identity", "IdentityN", "NoOp", "Placeholder", "ReadVariableOp", "VarHandleOp", "StopGradient"),
    *("Reshape", "Shape", "ShapeN", "Size", "Squeeze", "ExpandDims", "BroadcastGradientArgs", "Bitcast"),
}
# They read a few rows of a table, which is one of their inputs.
GATHERS = {"GatherV2", "ResourceGather", "Gather"}
LOOPS = {"While", "StatelessWhile"}


def count(graph: tf.Graph, examples: int) -> StepWork:
    """Return the work of a graph with static shapes.

    Args:
        graph: Of one training step.
        examples: In the step.
    """
    operations = [operation for operation in graph.get_operations() if operation.type not in FREE]
    return StepWork(
        examples=examples,
        flops=float(_profiled(graph) + sum(map(_passed_over, operations))),
        bytes=float(sum(map(_moved, operations))),
        operations=len(operations),
    )


def written(graph: tf.Graph) -> int:
    """Return the bytes of all that a graph computes."""
    operations = [operation for operation in graph.get_operations() if operation.type not in FREE]
    return sum(_bytes(output) for operation in operations for output in operation.outputs)


def has_loops(graph: tf.Graph) -> bool:
    """Return whether a graph has loops, whose work is not counted."""
    return any(operation.type in LOOPS for operation in graph.get_operations())


def _profiled(graph: tf.Graph) -> int:
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
    counted = profiler.profile(graph, options=options.with_empty_output().build())
    return counted.total_float_ops if counted else 0


def _passed_over(operation: tf.Operation) -> int:
    """Return multiplications and additions of an operation that the profiler does not count."""
    if operation.type == "Einsum":
        inputs, _, _ = operation.get_attr("equation").decode().partition("->")
        sizes: dict[str, int] = {}
        for letters, tensor in zip(inputs.split(","), operation.inputs, strict=True):
            # "..." stands for the axes in front that have no letter.
            shape = _shape(tensor)
            named = re.sub(r"\.+", "", letters)
            sizes |= dict(zip(named, shape[len(shape) - len(named) :], strict=True))
            sizes["..."] = max(sizes.get("...", 1), math.prod(shape[: len(shape) - len(named)]))
        return 2 * math.prod(sizes.values())
    if operation.type == "DepthwiseConv2dNativeBackpropFilter":
        height, width = _shape(operation.outputs[0])[:2]
        return 2 * height * width * math.prod(_shape(operation.inputs[2]))
    if operation.type == "DepthwiseConv2dNativeBackpropInput":
        height, width = _shape(operation.inputs[1])[:2]
        return 2 * height * width * math.prod(_shape(operation.inputs[2]))
    return 0


def _moved(operation: tf.Operation) -> int:
    """Return the bytes that an operation reads and writes."""
    written = sum(map(_bytes, operation.outputs))
    return 2 * written if operation.type in GATHERS else written + sum(map(_bytes, operation.inputs))


def _bytes(tensor: tf.Tensor) -> int:
    return math.prod(_shape(tensor)) * tensor.dtype.size if tensor.dtype.size else 0


def _shape(tensor: tf.Tensor) -> list[int]:
    """Return the sizes of a tensor's axes; 1 where one is not known."""
    return [size or 1 for size in tensor.shape.as_list()] if tensor.shape.rank is not None else []
