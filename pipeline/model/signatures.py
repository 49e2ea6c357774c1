"""Load a SavedModel and call its signatures: numpy in, numpy out."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf import saved_model_pb2

from pipeline.errors import UserError, first_line
from pipeline.model.export_format import (
    EXPLAIN_SIGNATURE,
    EXPLAINING,
    INPUTS,
    ROWS_SIGNATURE,
    read_classes,
    read_inputs,
)
from pipeline.model.features import Columns, Converter, from_instances, plain_rows
from pipeline.model.inputs import ANY, EXAMPLES, IMAGE, Input, take_examples
from pipeline.model.outside_operations import check_inward
from pipeline.model.versions import changed_since_push, not_signed
from pipeline.settings.image_data import Images


@dataclass(frozen=True)
class Signature:
    """One signature of a model: inputs by raw feature name, dtypes of outputs by name, SignatureDef as JSON."""

    name: str
    inputs: dict[str, Input]
    outputs: dict[str, str]
    definition: dict[str, Any] = field(repr=False)
    function: Callable[[Columns], dict[str, np.ndarray]] = field(repr=False)

    @property
    def example(self) -> dict[str, Any]:
        """Return a row of zeros and empty texts, as JSON has it."""
        return {name: column.example for name, column in self.inputs.items()}

    def columns(self, instances: Sequence[Any], most_cells: int | None = None) -> Columns:
        """Convert rows from JSON; see ``features.from_instances``."""
        few = most_cells is None or len(instances) * len(self.inputs) <= most_cells
        columns = self._plain_rows(instances) if few else None
        return from_instances(instances, self.inputs, most_cells=most_cells) if columns is None else columns

    @functools.cached_property
    def kinds(self) -> set[str]:
        """Return the kinds of its inputs."""
        return {column.kind for column in self.inputs.values()}

    @functools.cached_property
    def _plain_rows(self) -> Converter:
        return plain_rows(self.inputs)

    def predict_example(self) -> None:
        """Call the signature with the row of zeros and empty texts."""
        self.predict(self.columns([self.example]))

    def predict(self, columns: Columns) -> dict[str, np.ndarray]:
        """Return the outputs, [rows, ...] by name, of columns [rows] or [rows, values]; may raise tf.errors.OpError."""
        return self.function({self.inputs[name].tensor or name: values for name, values in columns.items()})


@dataclass(frozen=True)
class Model:
    """A loaded version (0 for a SavedModel outside a folder of versions), with its manifest and class names, if any."""

    number: int
    signatures: dict[str, Signature]
    manifest: dict[str, Any]
    classes: tuple[str, ...]
    loaded: Any = field(repr=False)

    @property
    def rows(self) -> Signature:
        """Return the signature for rows of raw features, or for tf.Examples if the model has no other."""
        return self.signatures[ROWS_SIGNATURE]

    @property
    def explains(self) -> Signature | None:
        """Return the signature that explains answers, if there is one in our format."""
        signature = self.signatures.get(EXPLAIN_SIGNATURE)
        return signature if signature and signature.outputs.keys() >= {*EXPLAINING} else None

    def warm_up(self) -> None:
        """Predict one row, so that the first request does not wait for TensorFlow's preparations."""
        if not take_examples(self.rows.inputs):
            self.rows.predict_example()


def load(folder: str, number: int = 0, manifest: Mapping[str, Any] | None = None) -> Model:
    """Load a SavedModel, here or gs://bucket/folder; raise a UserError if it is unusable, unsafe or was changed."""
    if changed := changed_since_push(folder):
        raise UserError(f"the model in {folder} is not the one that was pushed: {changed}; push another one")
    if why := not_signed(folder):
        raise UserError(f"the model in {folder} is not served: {why}")
    check_inward(folder)
    try:
        loaded = tf.saved_model.load(folder)
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        raise UserError(
            f"the model in {folder} does not load: {first_line(error)[:300]}; push it again with python local_runner.py"
        ) from error
    described, definitions = read_inputs(folder), _definitions(folder)
    signatures = {
        name: _signature(name, function, described, definitions.get(name, {}))
        for name, function in loaded.signatures.items()
    }
    if ROWS_SIGNATURE not in signatures:
        names = ", ".join(signatures) or "none"
        raise UserError(f"the model in {folder} has the signatures {names}; expected {ROWS_SIGNATURE!r} among them")
    return Model(number, signatures, dict(manifest or {}), read_classes(folder), loaded)


def refusal(error: tf.errors.OpError) -> str:
    """Return TensorFlow's reason in one line: without the trace of its graph, and with the place of a tf.Example."""
    reason = re.split(r"\s*\[\[\{\{", error.message)[0].strip().splitlines()[-1].strip()
    place = re.fullmatch(r"Name: .*?, (?:Key|Feature): (.*?)(?:, Index: (\d+)\.| (?=\())\s*(.*)", reason)
    if not place:
        return reason[:500]
    where = f"instances[{place[2]}]: " if place[2] else "of one of the instances, "
    return f"{where}feature {place[1]!r}: {place[3]}"[:500]


def read_signatures(folder: str) -> Mapping[str, Any]:
    """Return the signatures of a SavedModel (SignatureDef by name) without loading it; none of a ``.pbtxt``."""
    path = f"{folder}/saved_model.pb"
    if not tf.io.gfile.exists(path):  # our export never writes a .pbtxt
        return {}
    with tf.io.gfile.GFile(path, "rb") as file:
        return saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0].signature_def


def _definitions(folder: str) -> dict[str, dict[str, Any]]:
    return {
        name: MessageToDict(definition, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        for name, definition in read_signatures(folder).items()
    }


def _signature(
    name: str, function: Any, described: Mapping[str, Mapping[str, Any]], definition: dict[str, Any]
) -> Signature:
    specs = function.structured_input_signature[1]
    single_text = [spec.dtype for spec in specs.values()] == [tf.string]
    inputs = {}
    for key, spec in sorted(specs.items()):
        values = (spec.shape[1] or ANY) if spec.shape.rank == 2 else None
        column, limits, notation, known = key, None, "", ()
        if key in described:
            column, kind, required = (described[key][part] for part in ("name", "type", "required"))
            notation, known = described[key].get("notation", ""), tuple(described[key].get("known", ()))
            if kind == IMAGE:
                # The model decodes it, and there is nothing to decode where it is missing.
                required, written = True, ("max_pixels", "max_bytes")
                limits = Images(column, **{part: described[key][part] for part in written if part in described[key]})
        elif single_text:
            kind, required = EXAMPLES, True
        else:
            # The model does not say which may be missing; an integer has no value for it.
            kind = "text" if spec.dtype == tf.string else "integers" if spec.dtype.is_integer else "floats"
            required = kind == "integers"
        if (kind in ("text", IMAGE, EXAMPLES)) != (spec.dtype == tf.string):
            raise UserError(
                f"{INPUTS} says that {key!r} is {kind}, and the model takes {spec.dtype.name}; push it again"
            )
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        inputs[column] = Input(column, kind, required, dtype, values, key, limits, notation, known)
    outputs = {key: spec.dtype.name for key, spec in function.structured_outputs.items()}
    return Signature(name, dict(sorted(inputs.items())), outputs, definition, packed(function))


def packed(signature: Any) -> Callable[[Columns], dict[str, np.ndarray]]:
    """Return a signature as a function that passes one tensor of each dtype: one for each column takes longer."""
    specs: dict[str, tf.TensorSpec] = signature.structured_input_signature[1]
    packs: dict[tf.DType, list[str]] = {}
    apart: list[str] = []
    for name, spec in specs.items():
        of_one_value = spec.shape.rank == 1 and spec.shape[0] is None
        (packs.setdefault(spec.dtype, []) if of_one_value else apart).append(name)
    rows = [tf.TensorSpec([len(names), None], dtype) for dtype, names in packs.items()]

    @tf.function(input_signature=[*rows, *(specs[name] for name in apart)], autograph=False)
    def unpacked(*tensors: tf.Tensor) -> Mapping[str, tf.Tensor]:
        columns = dict(zip(apart, tensors[len(packs) :], strict=True))
        for names, pack in zip(packs.values(), tensors, strict=False):
            columns.update(zip(names, tf.unstack(pack), strict=True))
        return signature(**columns)

    traced = unpacked.get_concrete_function()

    def answer(columns: Columns) -> dict[str, np.ndarray]:
        tensors = [
            tf.constant(np.array([columns[name] for name in names], dtype.as_numpy_dtype), dtype)
            for dtype, names in packs.items()
        ]
        tensors += [tf.constant(columns[name], specs[name].dtype) for name in apart]
        try:
            return {name: value.numpy() for name, value in traced(*tensors).items()}
        except UnicodeDecodeError as error:  # TensorFlow quotes the value that it refuses
            raise tf.errors.InvalidArgumentError(None, None, "it holds bytes that are not text") from error

    return answer
