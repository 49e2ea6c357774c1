"""Transformed features → tensors of fixed shape that a model takes: the module file's ``decode``, and padding.

The same object decodes in the input pipeline and in the served model, so that the two cannot differ.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from pipeline.errors import first_line
from pipeline.training.errors import TrainingError

Tensors: TypeAlias = dict[str, tf.Tensor]
Decode: TypeAlias = Callable[[Tensors], Tensors]
Spec: TypeAlias = Any  # tf.io.FixedLenFeature, VarLenFeature or RaggedFeature
# Examples decoded at a time: an image of 50 million pixels takes 150 MB.
AT_ONCE = 4
# Types of what a model takes.
DTYPES = (tf.uint8, tf.int32, tf.int64, tf.float32)


class Decoder:
    """Decodes batches of parsed examples.

    Values of varying number are cut off or filled up with 0 to ``sequence_length``; integers among them are shifted by
    one, so that 0 is padding and nothing else.

    Args:
        spec: How to parse a transformed example, with the label.
        label: Feature that is not decoded.
        decode: The module file's function for one example: takes its features, tensors of one value, of fixed shape or,
            where the number of values varies, [values]; returns those of the model.
        sequence_length: Values of a feature whose number varies.
        weight: Feature that is not decoded either: how much each example counts; None: all count the same.

    Attributes:
        parsing: How to parse an example, label included.
        label: Feature that is not decoded.
        weight: Feature that is not decoded either; None: there is none.
        specs: Shape and type of each feature of one decoded example, without label and weight.
        padded: Features of varying number of values; integers among them count from 1.
        decodes: Whether the module file has a ``decode``.

    Raises:
        TrainingError: the label is missing; ``decode`` fails on such features or gives random numbers; or a feature
            that a model would get is text or of a type that no model takes.
    """

    def __init__(
        self,
        spec: Mapping[str, Spec],
        label: str,
        decode: Decode | None = None,
        sequence_length: int = 128,
        weight: str | None = None,
    ):
        self.parsing, self.label, self.weight = dict(spec), label, weight
        self.decodes = decode is not None
        if label not in spec:
            raise TrainingError(
                f"preprocessing_fn returns no {label!r}, the label, but {', '.join(sorted(spec)) or 'nothing'}; return "
                f"it as it comes: outputs[{label!r}] = inputs[{label!r}]"
            )
        self._length = sequence_length
        given = {name: _spec_of(feature) for name, feature in spec.items() if name not in (label, weight)}
        self._traced = _traced(decode, given) if decode else None
        found = self._traced.structured_outputs if self._traced else given
        self.padded = frozenset(name for name, item in found.items() if item.shape.rank == 1 and item.shape[0] is None)
        self.specs = {
            name: tf.TensorSpec([sequence_length] if name in self.padded else item.shape, item.dtype)
            for name, item in found.items()
        }
        who = "decode" if decode else "preprocessing_fn"
        for name, item in self.specs.items():
            if item.dtype not in DTYPES or not item.shape.is_fully_defined():
                hint = "; turn it into numbers in decode(features)" if item.dtype == tf.string else ""
                raise TrainingError(
                    f"{who} returns {name!r} as {item.dtype.name} of shape {item.shape}; expected uint8, int32, int64 "
                    f"or float32 of a fixed shape, or [values]{hint}"
                )

    def __call__(self, parsed: Mapping[str, Any]) -> Tensors:
        """Decode a batch.

        Args:
            parsed: Features as parsing or Transform gives them: tensors [batch, ...], sparse or ragged ones.

        Returns:
            ``specs`` of each example, [batch, ...].
        """
        dense = {name: _ragged(parsed[name]) for name in self.parsing if name in parsed}
        if self._traced is not None:
            given = self._traced.structured_input_signature[0][0]
            # On the CPU wherever the model is: there the input pipeline does it too.
            with tf.device("/CPU:0"):
                return tf.map_fn(
                    self._one,
                    {name: dense[name] for name in given},
                    fn_output_signature=self.specs,
                    parallel_iterations=AT_ONCE,
                )
        return {name: self._of_fixed_length(name, dense[name]) for name in self.specs}

    def _one(self, features: Tensors) -> Tensors:
        """Decode one example."""
        return {
            name: self._filled_up(name, value) if name in self.padded else value
            for name, value in self._traced(features).items()  # type: ignore[misc]  # called with decode only
        }

    def _filled_up(self, name: str, values: tf.Tensor) -> tf.Tensor:
        """Return one example's values as [sequence_length]."""
        values = self._shifted(values)[: self._length]
        return tf.ensure_shape(tf.pad(values, [[0, self._length - tf.size(values)]]), [self._length])

    def _of_fixed_length(self, name: str, values: Any) -> tf.Tensor:
        """Return a batch's values as [batch, ...]."""
        if name not in self.padded:
            return values
        return values.with_flat_values(self._shifted(values.flat_values)).to_tensor(0, shape=[None, self._length])

    @staticmethod
    def _shifted(values: tf.Tensor) -> tf.Tensor:
        return values + 1 if values.dtype.is_integer else values


def random_operations(graph: tf.Graph) -> list[str]:
    """Return the types of the operations of a graph that draw random numbers from a state of TensorFlow's."""
    operations = graph.get_operations()
    return [item.type for item in operations if item.op_def.is_stateful and "Random" in item.type]


def _spec_of(feature: Spec) -> tf.TensorSpec:
    """Return the shape and type of a feature of one example."""
    shape = feature.shape if isinstance(feature, tf.io.FixedLenFeature) else [None]
    return tf.TensorSpec(shape, feature.dtype)


def _ragged(value: Any) -> Any:
    return tf.RaggedTensor.from_sparse(value) if isinstance(value, tf.SparseTensor) else value


def _traced(decode: Decode, given: Mapping[str, tf.TensorSpec]) -> Any:
    """Return the function's graph for one example.

    Raises:
        TrainingError: see ``Decoder``.
    """
    try:
        with tf.device("/CPU:0"):
            traced = tf.function(decode).get_concrete_function(dict(given))
        outputs = traced.structured_outputs
        if not isinstance(outputs, dict) or not outputs:
            raise TypeError(f"it returns {type(outputs).__name__}, expected a dictionary of tensors")
    except Exception as error:
        shapes = ", ".join(f"{name} {spec.dtype.name} {spec.shape}" for name, spec in given.items())
        raise TrainingError(f"decode fails for the features {shapes}: {first_line(error)}") from error
    random = random_operations(traced.graph)
    if random:
        raise TrainingError(
            f"decode uses random numbers ({random[0]}), and what it returns is kept for all epochs and served; do that "
            "in augment(features, label)"
        )
    return traced
