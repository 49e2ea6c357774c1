"""A SavedModel that answers: what its signatures take, and numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf import saved_model_pb2

from pipeline.errors import UserError
from pipeline.serving.features import EXAMPLES, Columns, Input
from pipeline.serving.inputs_file import read_classes, read_inputs

ROWS = "serving_default"


@dataclass(frozen=True)
class Signature:
    """One way to ask a model.

    Attributes:
        name: As the SavedModel has it.
        inputs: What it takes, by raw feature name.
        outputs: Their dtype by name.
        definition: TensorFlow's SignatureDef, as JSON has it.
    """

    name: str
    inputs: dict[str, Input]
    outputs: dict[str, str]
    definition: dict[str, Any] = field(repr=False)
    function: Any = field(repr=False)

    @property
    def takes_examples(self) -> bool:
        """Whether it takes serialized tf.Examples, and nothing else."""
        return len(self.inputs) == 1 and all(one.kind == EXAMPLES for one in self.inputs.values())

    def answer(self, columns: Columns) -> dict[str, np.ndarray]:
        """Asks the model.

        Args:
            columns: By raw feature, [rows] or [rows, values]; text as bytes.

        Returns:
            By output, [rows, ...].

        Raises:
            tf.errors.OpError: the model refuses them.
        """
        dtypes = self.function.structured_input_signature[1]
        names = {name: one.tensor or name for name, one in self.inputs.items()}
        tensors = {names[name]: tf.constant(values, dtypes[names[name]].dtype) for name, values in columns.items()}
        return {name: value.numpy() for name, value in self.function(**tensors).items()}


@dataclass(frozen=True)
class Model:
    """A loaded version.

    Attributes:
        number: Its version; 0 for a SavedModel that lies in no folder of versions.
        signatures: By name.
        about: Its manifest.
        classes: In words, in the order of the probabilities; empty where there are none or the model does not say.
    """

    number: int
    signatures: dict[str, Signature]
    about: dict[str, Any]
    classes: tuple[str, ...]
    loaded: Any = field(repr=False)

    @property
    def rows(self) -> Signature:
        """The signature for rows of raw features; of a model that has none, the one for tf.Examples."""
        return self.signatures[ROWS]

    def warm_up(self) -> None:
        """Answers once, for the first request not to wait for what TensorFlow does only then."""
        if not self.rows.takes_examples:
            self.rows.answer({name: one.warm_up_values() for name, one in self.rows.inputs.items()})


def load(folder: str, number: int = 0, about: Mapping[str, Any] | None = None) -> Model:
    """Loads a SavedModel, here or gs://bucket/folder.

    Raises:
        UserError: it does not load, or has no signature to ask.
    """
    try:
        loaded = tf.saved_model.load(folder)
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        raise UserError(
            f"the model in {folder} does not load: {_first_line(error)}; push it again with python local_runner.py"
        ) from error
    described, definitions = read_inputs(folder), _definitions(folder)
    signatures = {
        name: _signature(name, function, described, definitions.get(name, {}))
        for name, function in loaded.signatures.items()
    }
    if ROWS not in signatures:
        names = ", ".join(signatures) or "none"
        raise UserError(f"the model in {folder} has the signatures {names}; expected {ROWS!r} among them")
    return Model(number, signatures, dict(about or {}), read_classes(folder), loaded)


def _definitions(folder: str) -> dict[str, dict[str, Any]]:
    path = f"{folder}/saved_model.pb"
    if not tf.io.gfile.exists(path):  # a .pbtxt, which our export never writes
        return {}
    with tf.io.gfile.GFile(path, "rb") as file:
        graph = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0]
    return {
        name: MessageToDict(definition, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        for name, definition in graph.signature_def.items()
    }


def _signature(
    name: str, function: Any, described: Mapping[str, Mapping[str, Any]], definition: dict[str, Any]
) -> Signature:
    specs = function.structured_input_signature[1]
    alone = len(specs) == 1 and next(iter(specs.values())).dtype == tf.string
    inputs = {}
    for key, spec in sorted(specs.items()):
        values = spec.shape[1] if spec.shape.rank == 2 else None
        column = key
        if key in described:
            column, kind, required = (described[key][part] for part in ("name", "type", "required"))
        elif alone:
            kind, required = EXAMPLES, True
        else:
            # Nobody says whether one may be missing; an integer has nothing to say that it is.
            kind = "text" if spec.dtype == tf.string else "integers" if spec.dtype.is_integer else "floats"
            required = kind == "integers"
        inputs[column] = Input(column, kind, required, np.dtype(spec.dtype.as_numpy_dtype), values, key)
    outputs = {key: spec.dtype.name for key, spec in function.structured_outputs.items()}
    return Signature(name, dict(sorted(inputs.items())), outputs, definition, function)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
