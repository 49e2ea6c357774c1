"""Gradients of embedding tables that hold the rows of a batch alone, and optimizers that change those rows alone."""

from typing import Any

import keras
import tensorflow as tf

from pipeline.training.embedding import Embedding
from pipeline.training.errors import TrainingError

# Each number of these changes by its own gradient and state alone. Others look at a table as a whole.
ROW_WISE = (
    keras.optimizers.SGD,
    keras.optimizers.Adagrad,
    keras.optimizers.Adam,
    keras.optimizers.Adamax,
    keras.optimizers.Ftrl,
    keras.optimizers.Lion,
    keras.optimizers.Nadam,
    keras.optimizers.RMSprop,
)
# What any of them may do besides, to all weights. Instead of the second there is training.accumulate.
OF_ALL_ROWS = ("use_ema", "gradient_accumulation_steps")

Gradient = Any  # tf.Tensor, or tf.IndexedSlices of a table


class SparseUpdates:
    """Lets an optimizer change rows of the tables of ``training.embedding``.

    To the optimizer, the rows of a batch are the whole table: it clips, scales and checks their gradients, [rows,
    width], and its own update step gets the rows and what it keeps of them in place of the variables.

    Args:
        model: Built, with its optimizer.

    Raises:
        TrainingError: the optimizer cannot change rows alone.
    """

    def __init__(self, model: keras.Model):
        layers = [layer for layer in model._flatten_layers() if isinstance(layer, Embedding)]
        self._tables = {id(table) for layer in layers for table in layer.tables if table.trainable}
        if not self._tables:
            return
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        rows_alone = isinstance(optimizer, ROW_WISE)
        of_all = [name for name in OF_ALL_ROWS if getattr(optimizer, name)] if rows_alone else []
        if not rows_alone or of_all:
            named = " with ".join([type(optimizer).__name__, *of_all[:1]])
            kinds, options = ", ".join(kind.__name__ for kind in ROW_WISE), " or ".join(OF_ALL_ROWS)
            raise TrainingError(
                f"training.embedding changes single rows, and {named} changes a table as a whole; compile the model "
                f"with one of {kinds}, without {options}, or take keras.layers.Embedding"
            )
        self._optimizer, self._update_whole = optimizer, optimizer.update_step
        # Of the step that is being compiled, by index of the variable: places of rows, and the rows.
        self._places: dict[int, tf.Tensor] = {}
        self._read: dict[int, list[tf.Tensor]] = {}
        optimizer.update_step = self._update
        optimizer._use_weight_decay = self._without_tables(optimizer._use_weight_decay)

    def kept(self, variable: keras.Variable, gradient: Gradient) -> Gradient:
        """Return the gradient of a variable as it is for a table, else dense."""
        return gradient if id(variable) in self._tables else tf.convert_to_tensor(gradient)

    def read(self, variables: list[keras.Variable], gradients: list[Gradient | None]) -> list[list[tf.Tensor]]:
        """Return the rows that each gradient will change: of its table, and of what the optimizer keeps of that."""
        found: list[list[tf.Tensor]] = []
        for variable, gradient in zip(variables, gradients, strict=True):
            rows = []
            if isinstance(gradient, tf.IndexedSlices):
                states = self._states(self._optimizer._get_variable_index(variable), variable)
                with tf.device(variable.value.device):  # where a table that is split has this part
                    rows = [tf.gather(each, gradient.indices) for each in (variable.value, *states.values())]
            found.append(rows)
        return found

    def rows_for_optimizer(
        self, variables: list[keras.Variable], gradients: list[Gradient | None], read: list[list[tf.Tensor]]
    ) -> list[tf.Tensor | None]:
        """Return the gradients as ``optimizer.apply`` is to get them, and keep the places of the rows for it."""
        for variable, gradient, rows in zip(variables, gradients, read, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                index = self._optimizer._get_variable_index(variable)
                self._places[index], self._read[index] = gradient.indices, rows
        return [None if gradient is None else values_of(gradient) for gradient in gradients]

    def _states(self, index: int, variable: Any) -> dict[str, tf.Variable]:
        """Return what the optimizer keeps of a variable, by its attribute."""
        attributes = vars(self._optimizer).items()
        return {name: states[index].value for name, states in attributes if _is_state(states, index, variable)}

    def _update(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any) -> None:
        """Change a variable as ``Optimizer.update_step`` does; of a table the rows alone."""
        index = self._optimizer._get_variable_index(variable)
        if index not in self._places:
            self._update_whole(gradient, variable, learning_rate)
            return
        with tf.device(variable.device):  # where a table that is split has this part
            self._update_rows(gradient, variable, learning_rate, index)

    def _update_rows(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any, index: int) -> None:
        places, key = self._places[index], self._optimizer._var_key(variable)
        of_variable, *of_states = self._read[index]
        rows = [_Rows(variable, places, key, of_variable)]
        # Its copy, below Keras' own way of copying and of following attributes.
        on_rows = object.__new__(type(self._optimizer))
        vars(on_rows).update(vars(self._optimizer))
        for (name, state), of_state in zip(self._states(index, variable).items(), of_states, strict=True):
            rows.append(_Rows(state, places, key, of_state))
            vars(on_rows)[name] = {index: rows[-1]}
        type(on_rows).update_step(on_rows, gradient, rows[0], learning_rate)
        for changed in rows:
            changed.write()

    def _without_tables(self, decays: Any) -> Any:
        key = self._optimizer._var_key
        tables = {key(variable) for variable in self._optimizer._trainable_variables if id(variable) in self._tables}
        return lambda variable: key(variable) not in tables and decays(variable)


class _Rows:
    """Rows of a variable, which an optimizer reads and assigns as if they were all of it."""

    def __init__(self, variable: Any, places: tf.Tensor, key: Any, rows: tf.Tensor):
        self._variable, self._places = variable, places
        self._unique_id = key  # by which an optimizer knows the variable
        self._rows = rows
        self.dtype, self.shape = rows.dtype, rows.shape

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return self._rows if dtype is None else tf.cast(self._rows, dtype)

    def assign(self, value: tf.Tensor) -> None:
        self._rows = value

    def assign_add(self, value: tf.Tensor) -> None:
        self._rows = self._rows + value

    def assign_sub(self, value: tf.Tensor) -> None:
        self._rows = self._rows - value

    def write(self) -> None:
        """Put the rows back."""
        self._variable.scatter_update(tf.IndexedSlices(self._rows, self._places))


def _is_state(states: Any, index: int, variable: tf.Variable) -> bool:
    """Say whether an attribute of an optimizer holds what it keeps of each variable, and so of this one."""
    if not isinstance(states, list) or index >= len(states):
        return False
    state = states[index]
    return isinstance(state, keras.Variable) and not state.trainable and state.shape == tuple(variable.shape)


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return the numbers of a gradient: all, or those of its rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def norm_of(gradient: Gradient) -> tf.Tensor:
    """Return the norm of a gradient, computed where the gradient is."""
    values = values_of(gradient)
    with tf.device(values.device):
        return tf.norm(values)


def summed(gradient: Gradient | None) -> Gradient | None:
    """Return a gradient whose rows occur once: the sum of each place's, after which their norm is the gradient's."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    places, which = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, which, tf.size(places))
    return tf.IndexedSlices(values, places, gradient.dense_shape)


def divided(gradient: Gradient | None, by: float) -> Gradient | None:
    """Return a gradient divided by a number."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / by, gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / by


def added(one: Gradient, other: Gradient) -> Gradient:
    """Return the sum of two gradients of a variable; rows of both occur twice in it."""
    if isinstance(one, tf.IndexedSlices):
        values = tf.concat([one.values, other.values], 0)
        return tf.IndexedSlices(values, tf.concat([one.indices, other.indices], 0), one.dense_shape)
    return one + other


def any_number_of_rows(gradient: Gradient) -> list[tf.TensorShape]:
    """Return the shapes of a gradient's tensors in a loop that adds rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return [tf.TensorShape([None, *gradient.values.shape[1:]]), tf.TensorShape([None]), gradient.dense_shape.shape]
    return [gradient.shape]
