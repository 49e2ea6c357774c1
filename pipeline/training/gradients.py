"""Gradients of a step: computed in parts, summed over replicas, and of embedding tables only the rows of a batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import keras
import tensorflow as tf

from pipeline.training.errors import TrainingError

# Optimizers that change each number by its own gradient and state alone. Others read a table as a whole.
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
# Options by which these change all weights. training.accumulate replaces the second.
OF_ALL_ROWS = ("use_ema", "gradient_accumulation_steps")

Gradient = Any  # tf.Tensor, or tf.IndexedSlices of a table
LossAndGradients: TypeAlias = tuple[tf.Tensor, list[Gradient | None]]


def accumulated(
    gradients_of: Callable[..., LossAndGradients], batch: Mapping[str, tf.Tensor], parts: int
) -> LossAndGradients:
    """Return the mean loss, [], and mean gradients, [variables], of equal parts of a batch, computed sequentially."""
    if parts == 1:
        return gradients_of(**batch)
    batch = tf.nest.map_structure(
        lambda tensor: tf.reshape(tensor, [parts, tensor.shape[0] // parts, *tensor.shape[1:]]), dict(batch)
    )

    def divided(tensor: tf.Tensor) -> tf.Tensor:
        return tensor / parts if tensor.dtype.is_floating else tensor  # not the places of rows

    def of_part(part: tf.Tensor | int) -> LossAndGradients:
        loss, gradients = gradients_of(**tf.nest.map_structure(lambda tensor: tensor[part], batch))
        return loss / parts, [
            None if gradient is None else tf.nest.map_structure(divided, gradient, expand_composites=True)
            for gradient in gradients
        ]

    def added(one: Gradient, other: Gradient) -> Gradient:
        if isinstance(one, tf.IndexedSlices):
            values = tf.concat([one.values, other.values], 0)
            return tf.IndexedSlices(values, tf.concat([one.indices, other.indices], 0), one.dense_shape)
        return one + other

    def shapes_of(gradient: Gradient) -> list[tf.TensorShape]:
        if isinstance(gradient, tf.IndexedSlices):
            rows = tf.TensorShape([None])
            return [rows + gradient.values.shape[1:], rows, gradient.dense_shape.shape]
        return [gradient.shape]

    def add(part: tf.Tensor, loss: tf.Tensor, tensors: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        more_loss, more = of_part(part)
        more = [gradient for gradient in more if gradient is not None]
        so_far = tf.nest.pack_sequence_as(more, tensors, expand_composites=True)
        both = list(map(added, so_far, more))
        return part + 1, loss + more_loss, tf.nest.flatten(both, expand_composites=True)

    loss, gradients = of_part(0)
    present = [gradient for gradient in gradients if gradient is not None]
    shapes = [shape for gradient in present for shape in shapes_of(gradient)]
    # Without parallel iterations, which would need the memory that is missing.
    _, loss, tensors = tf.while_loop(
        lambda part, *_: part < parts,
        add,
        (1, loss, tf.nest.flatten(present, expand_composites=True)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), shapes),
        maximum_iterations=parts,
        parallel_iterations=1,
    )
    total = iter(tf.nest.pack_sequence_as(present, tensors, expand_composites=True))
    return loss, [None if gradient is None else next(total) for gradient in gradients]


def summed_over_replicas(values: Sequence[Any], waited: tf.Variable | None) -> list[Any]:
    """Return the sums of tensors or rows over all replicas; call it in a replica.

    Args:
        values: Of this replica.
        waited: Float64 [], to which the seconds of the exchange and of waiting for slower workers are added; None: they
            are not measured.
    """
    reduce = tf.distribute.get_replica_context().all_reduce
    if waited is None:
        return reduce(tf.distribute.ReduceOp.SUM, list(values))
    with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
        ready = tf.timestamp()
    sums = reduce(tf.distribute.ReduceOp.SUM, list(values))
    with tf.control_dependencies(tf.nest.flatten(sums, expand_composites=True)):
        waited.assign_add(tf.timestamp() - ready)
    return sums


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return the numbers of a gradient: all, or only its rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def norm_of(gradient: Gradient) -> tf.Tensor:
    """Return the norm of a gradient, computed on the gradient's device."""
    values = values_of(gradient)
    with tf.device(values.device):
        return tf.norm(values)


def summed(gradient: Gradient) -> Gradient:
    """Return a gradient in which each row occurs once, so that the norm of its rows is its norm."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    places, which = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, which, tf.size(places))
    return tf.IndexedSlices(values, places, gradient.dense_shape)


class SparseUpdates:
    """Make the optimizer of a built model change only rows of the tables of ``training.embedding``.

    To the optimizer, the rows of a batch are the whole table: it clips, scales and checks their gradients, [rows,
    width], and its own update step gets the rows and their state in place of the variables.

    Raises:
        TrainingError: the optimizer cannot change rows alone.
    """

    def __init__(self, model: keras.Model):
        self._tables = {id(table) for table in model.trainable_variables if getattr(table, "changes_by_rows", False)}
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
        key, decays = optimizer._var_key, optimizer._use_weight_decay
        tables = {key(variable) for variable in model.trainable_variables if id(variable) in self._tables}
        optimizer._use_weight_decay = lambda variable: key(variable) not in tables and decays(variable)

    def kept(self, variable: keras.Variable, gradient: Gradient) -> Gradient:
        """Return the gradient of a variable: of a table as it is, else dense."""
        return gradient if id(variable) in self._tables else tf.convert_to_tensor(gradient)

    def read(self, variables: list[keras.Variable], gradients: list[Gradient | None]) -> list[list[tf.Tensor]]:
        """Return the rows that each gradient will change: of its table, and of the table's state in the optimizer."""
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
        """Return the gradients for ``optimizer.apply``, and keep the places of the rows for it."""
        for variable, gradient, rows in zip(variables, gradients, read, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                index = self._optimizer._get_variable_index(variable)
                self._places[index], self._read[index] = gradient.indices, rows
        return [None if gradient is None else values_of(gradient) for gradient in gradients]

    def _states(self, index: int, variable: Any) -> dict[str, tf.Variable]:
        """Return the optimizer's state of a variable, by attribute of the optimizer."""

        def is_state(states: Any) -> bool:
            if not isinstance(states, list) or index >= len(states):
                return False
            state = states[index]
            return isinstance(state, keras.Variable) and not state.trainable and state.shape == tuple(variable.shape)

        attributes = vars(self._optimizer).items()
        return {name: states[index].value for name, states in attributes if is_state(states)}

    def _update(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any) -> None:
        """Change a variable as ``Optimizer.update_step`` does; of a table the rows alone."""
        index = self._optimizer._get_variable_index(variable)
        if index not in self._places:
            self._update_whole(gradient, variable, learning_rate)
            return
        places, key = self._places[index], self._optimizer._var_key(variable)
        of_variable, *of_states = self._read[index]
        # A copy of the optimizer, below Keras' own way of copying and of tracking attributes.
        on_rows = object.__new__(type(self._optimizer))
        vars(on_rows).update(vars(self._optimizer))
        with tf.device(variable.device):  # where a table that is split has this part
            rows = [_Rows(variable, places, key, of_variable)]
            for (name, state), of_state in zip(self._states(index, variable).items(), of_states, strict=True):
                rows.append(_Rows(state, places, key, of_state))
                vars(on_rows)[name] = {index: rows[-1]}
            type(on_rows).update_step(on_rows, gradient, rows[0], learning_rate)
            for changed in rows:
                changed.write()


class _Rows:
    """Rows of a variable, which an optimizer reads and assigns as if they were the whole variable."""

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
        self._variable.scatter_update(tf.IndexedSlices(self._rows, self._places))


Placement = Literal["table", "hashed"]

# An odd number near 2^64 divided by the golden ratio: the upper bits of its multiples are spread evenly (Knuth, The Art
# of Computer Programming, volume 3, 6.4).
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)


class Embedding(keras.layers.Layer):
    """Map whole numbers from 0 to below ``size``, [...], to float32 [..., width].

    As ``keras.layers.Embedding``, with two differences: gradients stay sparse, with the rows of a batch alone, and the
    optimizer changes those rows and what it keeps of them, and no others. Optimizers that go on moving a weight whose
    gradient is 0 (Adam, momentum) therefore leave the rows alone that a batch does not name, as TensorFlow Addons'
    LazyAdam does; weight decay leaves the layer alone.

    Args:
        size: How many different numbers there are.
        width: Of the vector of a number.
        placement: "table": a row for each number. "hashed": ``megabytes`` of rows, which numbers that meet by chance
            share (Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning").
        megabytes: Of 10^6 bytes, of the weights in float32, for "hashed". The optimizer keeps one (Adagrad, momentum)
            or two (Adam) more of the same size while it trains.
        mask_zero: The number 0 is padding, for the layers behind.
        settings: Of any layer.

    Raises:
        TrainingError: size or width is not positive, or ``megabytes`` are too few or not wanted.
    """

    def __init__(
        self,
        size: int,
        width: int,
        placement: Placement = "table",
        *,
        megabytes: float | None = None,
        mask_zero: bool = False,
        **settings: Any,
    ):
        super().__init__(**settings)
        if size < 1 or width < 1:
            raise TrainingError(f"training.embedding({size}, {width}): size and width are whole numbers from 1 on")
        if placement not in get_args(Placement):
            raise TrainingError(
                f"training.embedding has no placement {placement!r}; expected one of {', '.join(get_args(Placement))}"
            )
        has_all_rows = placement == "table"
        if has_all_rows != (megabytes is None):
            needs = "has a row for each number and takes no megabytes" if has_all_rows else "needs megabytes=…"
            raise TrainingError(f'training.embedding(placement="{placement}") {needs}')
        self.size, self.width, self.placement, self.megabytes = size, width, placement, megabytes
        self.rows = size if megabytes is None else min(size, int(megabytes * 1e6) // (4 * width))
        self.mask_zero = self.supports_masking = mask_zero
        if not self.rows:
            raise TrainingError(
                f"training.embedding({size:,}, {width}): no row fits into {megabytes:g} megabytes; at least "
                f"{4 * width / 1e6:.3g} are needed"
            )

    def build(self, input_shape: Any = None) -> None:
        """Create the table."""
        # Not cast to float16 as a whole, only the rows that are looked up.
        begin = keras.initializers.RandomUniform(-0.05, 0.05)
        self.table = self.add_weight((self.rows, self.width), begin, name="embeddings", autocast=False)
        self.table.changes_by_rows = True  # for SparseUpdates

    def call(self, numbers: Any) -> Any:
        """Return the vectors of numbers."""
        numbers = tf.cast(numbers, tf.int64)
        places = hashed(numbers) % self.rows if self.rows < self.size else numbers
        # Gathered from the variable itself. Keras' own operations read all of it first, which keeps gradients sparse,
        # but copies the table in every step as soon as single rows of it are written.
        return tf.cast(tf.nn.embedding_lookup(self.table.value, places), self.compute_dtype)

    def compute_mask(self, numbers: Any, mask: Any = None) -> Any:
        """Say which numbers are not padding."""
        return keras.ops.not_equal(numbers, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the vectors."""
        return (*input_shape, self.width)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("size", "width", "placement", "megabytes", "mask_zero")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def hashed(numbers: tf.Tensor) -> tf.Tensor:
    """Return numbers that follow no order, not negative, for int64 numbers."""
    mixed = numbers * tf.constant(_SPREAD, tf.int64)  # overflows, as it is meant to
    return tf.abs(mixed // (1 << 20))
