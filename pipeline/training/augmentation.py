"""Random changes of training batches, the same ones in the same step of every execution."""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from pipeline.errors import first_line
from pipeline.training.decoding import Tensors, random_operations
from pipeline.training.errors import TrainingError

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
