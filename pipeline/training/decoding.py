"""Transformed features → tensors of fixed shape that a model takes: the module file's ``decode``, images, and padding.

The same object decodes in the input pipeline and in the served model, so that the two cannot differ.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import keras
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
# Enough for the EXIF data that cameras write before the picture.
EXIF_BYTES = 1 << 16
# The tag "orientation", one 16-bit number, in both byte orders (Exif 2.3, section 4.6.4); the number stands between.
LITTLE_ENDIAN = b"\x12\x01\x03\x00\x01\x00\x00\x00"
BIG_ENDIAN = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00"


class Decoder:
    """Decodes batches of parsed examples.

    Values of varying number are cut off or filled up with 0 to ``sequence_length``; integers among them are shifted by
    one, so that 0 is padding and nothing else. Label and weight are not decoded.

    Args:
        spec: How to parse a transformed example, with the label.
        label: Name of the label.
        decode: The module file's function for one example: takes its features, tensors of one value, of fixed shape or,
            where the number of values varies, [values]; returns the model's features.
        sequence_length: Values of a feature whose number varies.
        weight: Feature that says how much each example counts; None: all count the same.

    Attributes:
        parsing: How to parse an example, label included.
        specs: Shape and type of each feature of one decoded example.
        padded: Features of varying number of values; integers among them count from 1.
        decodes: Whether the module file has a ``decode``.

    Raises:
        TrainingError: the label is missing; ``decode`` fails on such features or draws random numbers; or a feature of
            the model is text or of another type that no model takes.
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
        given = {
            name: tf.TensorSpec(getattr(feature, "shape", [None]), feature.dtype)
            for name, feature in spec.items()
            if name not in (label, weight)
        }
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
        """Decode a batch: features from parsing or Transform, dense, sparse or ragged, to ``specs``, [batch, ...]."""
        dense = {name: parsed[name] for name in self.parsing if name in parsed}
        for name, value in dense.items():
            if isinstance(value, tf.SparseTensor):
                dense[name] = tf.RaggedTensor.from_sparse(value)
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
        for name in self.padded:
            values = dense[name].with_flat_values(_shifted(dense[name].flat_values))
            dense[name] = values.to_tensor(0, shape=[None, self._length])
        return {name: dense[name] for name in self.specs}

    def _one(self, features: Tensors) -> Tensors:
        decoded = dict(self._traced(features))  # type: ignore[misc]  # called with decode only
        for name in self.padded:
            values = _shifted(decoded[name])[: self._length]
            padding = [[0, self._length - tf.size(values)]]
            decoded[name] = tf.ensure_shape(tf.pad(values, padding), [self._length])
        return decoded


def random_operations(graph: tf.Graph) -> list[str]:
    """Return the types of the operations of a graph that draw random numbers from a state of TensorFlow's."""
    operations = graph.get_operations()
    return [item.type for item in operations if item.op_def.is_stateful and "Random" in item.type]


def _shifted(values: tf.Tensor) -> tf.Tensor:
    return values + 1 if values.dtype.is_integer else values  # 0 is padding


def _traced(decode: Decode, given: Mapping[str, tf.TensorSpec]) -> Any:
    """Return the graph of ``decode`` for one example.

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


def decode_image(encoded: tf.Tensor, height: int, width: int, channels: int = 3, *, crop: bool = False) -> tf.Tensor:
    """Return the pixels of one image as people see it, uint8 [height, width, channels].

    Cameras store a picture as the sensor was held, with an EXIF orientation that is applied here.

    Args:
        encoded: The file's content, a string of one value: JPEG, PNG, BMP, WebP or GIF, of which the first frame is
            taken.
        height: In pixels.
        width: In pixels.
        channels: 3 for red, green and blue, 1 for grey.
        crop: Keep the aspect ratio and cut off what is outside of the centre, instead of distorting.
    """
    encoded = tf.reshape(encoded, [])
    # On the CPU wherever the model is: a resize on a GPU differs in the last bit.
    with tf.device("/CPU:0"):
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        image = _upright(image, _orientation(encoded))
        size = tf.stack([height, width])
        if crop:
            shape = tf.cast(tf.shape(image)[:2], tf.float32)
            scale = tf.reduce_max(tf.cast(size, tf.float32) / shape)
            size = tf.maximum(size, tf.cast(tf.round(shape * scale), tf.int32))
        image = tf.image.resize(image, size, "bilinear", antialias=True)
        image = tf.image.resize_with_crop_or_pad(image, height, width)
        image = tf.saturate_cast(tf.round(image), tf.uint8)
        if channels == 1:
            image = tf.image.rgb_to_grayscale(image)
        return tf.ensure_shape(image, [height, width, channels])


def _orientation(encoded: tf.Tensor) -> tf.Tensor:
    """Return a JPEG file's EXIF orientation, 1 to 8, and 1 where it has none; int32 []."""
    head = tf.strings.substr(encoded, 0, EXIF_BYTES)
    values = tf.cast(tf.io.decode_raw(head, tf.uint8), tf.int32)
    values = tf.pad(values, [[0, 16]])

    def after(pattern: bytes) -> tf.Tensor:
        """Return the bytes that follow the places of a pattern."""
        places = tf.size(values) - len(pattern)
        found = tf.reduce_all([values[at : at + places] == byte for at, byte in enumerate(pattern)], axis=0)
        return tf.boolean_mask(values[len(pattern) :], found)

    orientations = tf.concat([after(LITTLE_ENDIAN), after(BIG_ENDIAN), [1]], axis=0)
    is_jpeg = tf.strings.substr(encoded, 0, 2) == b"\xff\xd8"
    known = is_jpeg & (orientations[0] >= 1) & (orientations[0] <= 8)
    return tf.where(known, orientations[0], 1)


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turn and mirror an image by its EXIF orientation (Exif 2.3, section 4.6.4)."""
    turned = tf.cond(orientation >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    mirror = tf.reduce_any(orientation == [2, 3, 6, 7])
    turned = tf.cond(mirror, lambda: tf.reverse(turned, [1]), lambda: turned)
    flip = tf.reduce_any(orientation == [3, 4, 7, 8])
    return tf.cond(flip, lambda: tf.reverse(turned, [0]), lambda: turned)


# Takes and returns the features [batch, ...] and the label [batch, ...] of one replica.
Augment: TypeAlias = Callable[[Tensors, tf.Tensor], tuple[Tensors, tf.Tensor]]
# Keras' name of the state of a source of random numbers (keras.random.SeedGenerator), [2].
SEED_STATE = "seed_generator_state"


def augmented(augment: Augment, features: Tensors, label: tf.Tensor, seed: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
    """Call the module file's ``augment`` with random numbers that depend only on the ``seed``, int64 [2].

    The result is rounded and clipped to the types of its features, as when the model is served.

    Raises:
        TrainingError: see ``check``.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(random_operations(graph))
    with _Seeded(seed):
        result = augment(dict(features), label)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], dict):
        raise TrainingError(f"augment returns {type(result).__name__}; expected (features, label), as it is given")
    changed, label = result
    if changed.keys() != features.keys():
        raise TrainingError(f"augment returns the features {', '.join(changed)}; expected {', '.join(features)}")
    unseeded = random_operations(graph)[before:]
    if unseeded:
        raise TrainingError(
            f"augment uses {unseeded[0]} of TensorFlow, whose numbers are others after a restart; take keras.random or "
            "Keras' Random layers"
        )
    return {name: _as_before(name, value, features[name]) for name, value in changed.items()}, label


def check(augment: Augment, batch_spec: tuple[dict[str, tf.TensorSpec], tf.TensorSpec]) -> None:
    """Call ``augment`` on batches of such a spec, without any values.

    Raises:
        TrainingError: it fails, returns other features or other shapes, or uses TensorFlow's own random numbers.
    """

    @tf.autograph.experimental.do_not_convert
    def call(features: Tensors, label: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        return augmented(augment, features, label, tf.zeros([2], tf.int64))

    try:
        tf.function(call).get_concrete_function(*batch_spec)
    except TrainingError:
        raise
    except Exception as error:
        raise TrainingError(f"augment fails: {first_line(error)}") from error


class _Seeded(keras.StatelessScope):
    """Gives every source of Keras' random numbers a state made from a seed, and leaves the source unchanged."""

    def __init__(self, seed: tf.Tensor):
        super().__init__()
        self._seed = seed
        self._sources = 0

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Return the value of a variable in this scope; None for its own."""
        value = super().get_current_value(variable)
        if value is None and variable.name == SEED_STATE:
            self._sources += 1
            seed = tf.random.experimental.stateless_fold_in(self._seed, self._sources)
            state = tf.random.stateless_uniform([2], seed, maxval=2**31 - 1, dtype=tf.int64)
            value = tf.cast(state, variable.dtype)
            self.add_update((variable, value))
        return value


def _as_before(name: str, value: Any, before: tf.Tensor) -> tf.Tensor:
    value = tf.convert_to_tensor(value)
    if not value.shape.is_compatible_with(before.shape):
        raise TrainingError(f"augment returns {name!r} of shape {value.shape}; expected {before.shape}, as it is given")
    if value.dtype != before.dtype:
        value = tf.saturate_cast(tf.round(value) if before.dtype.is_integer else value, before.dtype)
    return tf.ensure_shape(value, before.shape)
