"""Deep parts of a model: split over devices where one is too small, and with activations computed a second time."""

import contextlib
import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.training import work
from pipeline.training.decoding import random_operations
from pipeline.training.embedding import Embedding
from pipeline.training.errors import TrainingError
from pipeline.training.settings import Settings
from pipeline.training.strategy import HOST, Distribution

logger = logging.getLogger("pipeline.training")


class Blocks(keras.layers.Layer):
    """Layers that are applied one after the other, [batch, ...] to [batch, ...], such as those of a transformer.

    Each is a block: ``training.strategy="split"`` puts it on a device as a whole, and ``training.recompute`` keeps
    nothing of it but what goes in. For a block of several layers take a ``keras.Sequential`` or a layer of your own.
    Random numbers come from Keras' layers, or from a ``keras.random.SeedGenerator`` that is an attribute of a layer:
    others would not be the same the second time.

    Args:
        layers: Of a tensor to a tensor, without masks.
        settings: Of any layer.

    Attributes:
        devices: Of each layer; empty: where all else is.
        recompute: Compute a layer once more for its gradients, instead of keeping what they need.
    """

    def __init__(self, layers: Sequence[keras.Layer], **settings: Any):
        super().__init__(**{"autocast": False, **settings})  # each layer casts for itself
        self.layers = list(layers)
        self.inputs_of_layers: tuple[keras.KerasTensor, ...] = ()
        self.devices: tuple[str, ...] = ()
        self.recompute = False

    def build(self, input_shape: Any) -> None:
        """Create the weights; where no strategy decides it on the host, from where they are moved."""
        tensor = keras.KerasTensor(input_shape, self.compute_dtype)
        with tf.device(HOST):
            for layer in self.layers:
                self.inputs_of_layers += (tensor,)
                tensor = layer(tensor)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return what the last layer makes of the inputs."""
        if mask is not None:
            raise TrainingError(
                f"the input of {self.name} has a mask, which training.blocks does not pass on; take mask_zero=False, "
                "or call these layers without training.blocks"
            )
        for layer, device in itertools.zip_longest(self.layers, self.devices):
            with on(device):
                if training and (device or self.recompute):
                    inputs = _with_own_gradient(layer, device, self.recompute, inputs)
                else:
                    inputs = layer(inputs)
        return inputs

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "layers": [keras.saving.serialize_keras_object(each) for each in self.layers]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Blocks":
        """Return a layer of these arguments."""
        layers = [keras.saving.deserialize_keras_object(each) for each in config["layers"]]
        return cls(**{**config, "layers": layers})


def on(device: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return the scope of a device; None: of none."""
    return tf.device(device) if device else contextlib.nullcontext()


def _with_own_gradient(layer: keras.Layer, device: str | None, recompute: bool, inputs: tf.Tensor) -> tf.Tensor:
    """Return what a layer makes of inputs; the gradients are computed on its device, where TensorFlow puts none."""

    @tf.custom_gradient
    def block(inputs: tf.Tensor) -> Any:
        states = [(state, tf.identity(state.value)) for state in layer.non_trainable_variables] if recompute else []
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)

        def gradient(of_outputs: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
            with on(device):
                used, source, target = (
                    _once_more(layer, inputs, states, of_outputs) if recompute else (tape, inputs, outputs)
                )
                of_inputs, *of_variables = used.gradient(target, [source, *variables], of_outputs)
            return (of_inputs, of_variables) if variables else of_inputs

        return outputs, gradient

    return block(inputs)


def _once_more(
    layer: keras.Layer, inputs: tf.Tensor, states: Any, of_outputs: tf.Tensor
) -> tuple[tf.GradientTape, tf.Tensor, tf.Tensor]:
    """Apply a layer a second time, with the random numbers of the first; it changes no state, such as moving means.

    Not before its gradients are asked for, or all activations would be there at once: TensorFlow runs what it can run,
    and computes the same only once.
    """
    with tf.control_dependencies([of_outputs]), keras.StatelessScope(states), tf.GradientTape() as tape:
        inputs = tf.identity(inputs)
        tape.watch(inputs)
        return tape, inputs, layer(inputs, training=True)


def blocks_of(model: keras.Model) -> list[Blocks]:
    """Return the blocks in a model."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, Blocks)]


def tables_of(model: keras.Model) -> list[Embedding]:
    """Return the tables in a model whose rows are divided."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, Embedding) and layer.parts > 1]


def prepare(model: keras.Model, settings: Settings, distribution: Distribution) -> None:
    """Let the blocks of a model be computed as a training has it; call it before the optimizer is built.

    Raises:
        TrainingError: a setting is about blocks and the model has none, or not with weights; or a table is to be split
            and the model is not.
    """
    found = blocks_of(model)
    tables = tables_of(model)
    if tables and not distribution.split:
        raise TrainingError(
            'training.embedding(placement="split") has a part of its rows on each device of training.strategy="split", '
            f'and training.strategy is "{settings.strategy}"; take "split", or a placement that fits on one device'
        )
    setting = "recompute=True" if settings.recompute else 'strategy="split"' if distribution.split else ""
    if setting and not found and (settings.recompute or not tables):
        raise TrainingError(
            f"training.{setting} is about the layers in training.blocks([...]), and build_model has none; put those of "
            "its deep part there"
        )
    if setting and not all(blocks.built for blocks in found):
        raise TrainingError(
            f"training.{setting} needs a model that has its weights when build_model returns it: keras.Model(inputs, "
            "outputs)"
        )
    for blocks in found:
        blocks.recompute = settings.recompute
        if settings.recompute:
            _check_random_numbers(blocks, settings)
    if (
        distribution.split
        and not any(blocks.devices for blocks in found)
        and not any(table.devices for table in tables)
    ):
        _split(model, found, tables, settings, distribution.split)
        _update_in_place(getattr(model.optimizer, "inner_optimizer", model.optimizer))


@contextlib.contextmanager
def on_any_device(model: keras.Model) -> Iterator[None]:
    """Let what is traced inside name no devices: a served model runs on a machine that may have one."""
    found = blocks_of(model)
    devices = [blocks.devices for blocks in found]
    for blocks in found:
        blocks.devices = ()
    try:
        yield
    finally:
        for blocks, before in zip(found, devices, strict=True):
            blocks.devices = before


def _split(
    model: keras.Model, found: Sequence[Blocks], tables: Sequence[Embedding], settings: Settings, devices: Sequence[str]
) -> None:
    """Move the layers of blocks and parts of tables to devices, so that the fullest has as little as possible."""
    layers = [layer for blocks in found for layer in blocks.layers]
    inputs = [tensor for blocks in found for tensor in blocks.inputs_of_layers]
    copies = 2 + _states_of_a_weight(model.optimizer)  # the weight and its gradient
    sizes = [
        copies * _bytes(layer.variables) + _activations(layer, tensor, settings)
        for layer, tensor in zip(layers, inputs, strict=True)
    ]
    # Of tables every device has about as much, whatever else it has. Their gradients are those of single rows.
    parts = [[table.tables[number] for table in tables if number < table.parts] for number in range(len(devices))]
    of_parts = [(copies - 1) * _bytes(several) for several in parts]
    elsewhere = [*itertools.chain(*parts), *(variable for layer in layers for variable in layer.variables)]
    others = copies * (_bytes(model.variables) - _bytes(elsewhere))
    places = divide(sizes, len(devices), others)
    for layer, place in zip(layers, places, strict=True):
        _move(layer.variables, devices[place])
    for several, device in zip(parts, devices, strict=True):
        _move(several, device)
    for table in tables:
        table.devices = tuple(devices)
    of_layers = iter(devices[place] for place in places)
    for blocks in found:
        blocks.devices = tuple(itertools.islice(of_layers, len(blocks.layers)))
    for number, device in enumerate(devices):
        total = of_parts[number] + sum(size for size, place in zip(sizes, places, strict=True) if place == number)
        logger.info(
            "%s has %d of %d blocks%s, about %.3g MB with gradients, the optimizer's states and activations.",
            device,
            places.count(number),
            len(layers),
            "".join(f", rows of {table.name}" for table in tables if number < table.parts),
            (total + (0 if number else others)) / 1e6,
        )


def _move(variables: Iterable[keras.Variable], device: str) -> None:
    """Put variables on a device, from where they are."""
    for variable in variables:
        with tf.device(device):
            variable._initialize(variable.numpy())


def divide(sizes: Sequence[int], parts: int, others: int = 0) -> list[int]:
    """Divide sizes in their order into parts, so that the largest part is as small as possible.

    Args:
        sizes: Of things that follow one another.
        parts: How many at most.
        others: What is in the first part already.

    Returns:
        The number of its part for each size.
    """
    sums = list(itertools.accumulate(sizes, initial=0))
    possible = {end - begin for begin, end in itertools.combinations(sums, 2)} | {others + end for end in sums}
    for most in sorted(possible):
        places, full = [0] * len(sizes), [others]
        for index, size in enumerate(sizes):
            if full[-1] + size > most:
                full.append(0)
            full[-1] += size
            places[index] = len(full) - 1
        if len(full) <= parts and max(full) <= most:
            return places
    raise AssertionError("one part takes all")


def _states_of_a_weight(optimizer: keras.Optimizer) -> int:
    """Return how many numbers an optimizer keeps for each weight."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    trial = type(inner).from_config(inner.get_config())
    weight = keras.Variable(tf.zeros([2, 3]))
    trial.build([weight])
    return sum(tuple(variable.shape) == (2, 3) for variable in trial.variables)


def _check_random_numbers(blocks: Blocks, settings: Settings) -> None:
    """Refuse layers that would not be the same a second time."""
    for layer, tensor in zip(blocks.layers, blocks.inputs_of_layers, strict=True):
        states = [(state, state.value) for state in layer.non_trainable_variables]
        with keras.StatelessScope(states) as scope:
            graph = _traced(layer, tensor, settings)
        if random_operations(graph) or scope.state_mapping.keys() - {id(state) for state, _ in states}:
            raise TrainingError(
                f"training.recompute cannot compute {layer.name!r} twice alike: it draws random numbers from, or "
                "changes, a state that is not its own; use Keras' layers, or a keras.random.SeedGenerator that is its "
                "attribute"
            )


def _activations(layer: keras.Layer, tensor: keras.KerasTensor, settings: Settings) -> int:
    """Return about how many bytes are kept of a layer for its gradients."""
    inputs = _bytes([tf.TensorSpec([settings.batch_size, *tensor.shape[1:]], tensor.dtype)])
    return inputs if settings.recompute else inputs + work.written(_traced(layer, tensor, settings))


def _traced(layer: keras.Layer, tensor: keras.KerasTensor, settings: Settings) -> tf.Graph:
    """Return the graph of a layer in training."""
    inputs = tf.TensorSpec([settings.batch_size, *tensor.shape[1:]], tensor.dtype)
    forward = tf.function(lambda inputs: layer(inputs, training=True), autograph=False)
    return forward.get_concrete_function(inputs).graph


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(math.prod(size or 1 for size in each.shape) * tf.as_dtype(each.dtype).size for each in tensors)


def _update_in_place(optimizer: keras.Optimizer) -> None:
    """Let an optimizer compute on the device of each variable, instead of on the first and copy."""
    update_step = optimizer.update_step

    def update(gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any) -> None:
        with tf.device(variable.device):
            update_step(gradient, variable, learning_rate)

    optimizer.update_step = update
