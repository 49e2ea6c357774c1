"""Export the model as it is served: raw features in, its answer out, with Transform's graph inside."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform.saved.saved_transform_io_v2 import SavedModelLoader

from pipeline.errors import first_line
from pipeline.model.export_format import (
    CLASSES,
    EXAMPLES_INPUT,
    EXAMPLES_SIGNATURE,
    EXPLAIN_SIGNATURE,
    FITTED,
    INPUTS,
    ROWS_SIGNATURE,
    WEIGHTS,
)
from pipeline.settings.image_data import Images
from pipeline.settings.names import SERVING, plain_names
from pipeline.settings.notations import notation_of
from pipeline.settings.tasks import ANSWERS, task_of
from pipeline.training import warmup
from pipeline.training.answers import Answers
from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import Ensemble, answering
from pipeline.training.explanations import Explainer, affordable
from pipeline.training.tabular import Committee

logger = logging.getLogger("pipeline.training")

Answer: TypeAlias = Callable[[dict[str, Any]], dict[str, tf.Tensor]]
KINDS = {tf.string: "text", tf.int64: "integers", tf.float32: "floats"}


def export(
    model: keras.Model,
    transform_output: tft.TFTransformOutput,
    folder: str,
    *,
    label: str,
    answers: Answers,
    transform: SavedModelLoader | None = None,
    decoder: Decoder | None = None,
    ensemble: Ensemble | None = None,
    at_once: int = 64,
    images: Images | None = None,
    background: Sequence[bytes] = (),
) -> None:
    """Write a SavedModel that needs nothing but TensorFlow.

    Both signatures answer what ``Answers`` makes of the model's output. Neither takes the label.

    - ``serving_default`` takes one tensor [batch] for each raw feature, which is TensorFlow Serving's JSON row format,
      or [batch, most values] for a list, filled up with what says that a value is missing;
      a name that TensorFlow does not take as an argument's is the one of ``names.plain_names``.
      A feature that may be missing says so by NaN or, for text, by "". Its integers come as float64, to have a NaN.
    - ``predict`` takes ``examples``, serialized tf.Examples, [batch]; a missing feature is left out. The argument is
      ``examples_`` where a raw feature has that name.
    - ``explain`` takes what ``serving_default`` takes, and answers as well how much each raw feature has contributed:
      ``explanations.Explainer``. Only where there is a background, and neither images nor a ``decode``.

    ``INPUTS`` says of each feature its name in ``serving_default``, its type and whether it must be there; ``CLASSES``
    names the classes; ``FITTED`` has what was chosen on the eval split.

    Args:
        model: Maps {feature: [batch, ...]} to its answers, [batch, 1 or classes].
        transform_output: Written by the Transform that made the model's features.
        folder: Where the SavedModel goes.
        label: Raw feature that is not an input.
        answers: What is served of the model's output.
        transform: Transform's graph, loaded; None: it is loaded here.
        decoder: Makes what the model takes of the transformed features; None only fills up those of varying length.
        ensemble: Trees that answer with the model, or alone.
        at_once: Rows that are decoded and answered together, where the module file has a ``decode``.
        images: Where one of the raw features is an image.
        background: Raw rows that explanations begin from, serialized tf.Examples; they travel with the model.

    Raises:
        TrainingError: the model's output does not fit the classes.
    """
    decoder = decoder or Decoder(transform_output.transformed_feature_spec(), label)
    raw_spec = _served_spec(transform_output, label)
    server = tf.Module()
    if ensemble is None or not ensemble.alone:
        server.layers = _computing(model)
        # A later training may start from these, even where the network's answers do not count. They are the layers'
        # own objects: by those of TensorFlow in them, a model would be saved, and loaded by a server, with two copies.
        setattr(server, WEIGHTS, list(model.weights))
    server.ensemble = ensemble
    # What transform_features_layer() calls. That layer is one of Keras 2, which traces itself once more to be saved:
    # half of the time of an export, for functions that nobody calls (docs/decisions/0007).
    loader = transform or SavedModelLoader(transform_output.transform_savedmodel_dir)
    server.transform = vars(loader)  # its vocabularies travel with the model
    answer_decoded = answering(model, decoder, ensemble)

    def answer(raw: dict[str, tf.Tensor | tf.SparseTensor]) -> dict[str, tf.Tensor]:
        return answers(answer_decoded(decoder(loader.apply_transform_model(raw))))

    answers_all: Answer = _in_parts(answer, at_once) if decoder.decodes else answer
    plain, lists = plain_names(raw_spec), _lists_of(transform_output, raw_spec)
    row_inputs = {plain[name]: _row_input(plain[name], spec, name in lists) for name, spec in raw_spec.items()}

    @tf.function(input_signature=[row_inputs], autograph=False)
    def answer_rows(rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return answers_all(_as_parsed({name: rows[plain[name]] for name in raw_spec}, raw_spec))

    # TFMA gives an argument the raw feature of its name, if there is one.
    argument = EXAMPLES_INPUT
    while argument in raw_spec:
        argument += "_"

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name=argument)], autograph=False)
    def answer_examples(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return answers_all(tf.io.parse_example(examples, raw_spec))

    signatures = {ROWS_SIGNATURE: answer_rows, EXAMPLES_SIGNATURE: answer_examples}
    requests: dict[str, tf.Tensor] = {}
    if len(background) > 1 and not images and not decoder.decodes:
        read = _read_by(loader, raw_spec)
        parsed = tf.io.parse_example(affordable(background, len(read)), raw_spec)
        rows = {plain[name]: _as_row(value, row_inputs[plain[name]]) for name, value in parsed.items()}
        columns, output = {plain[name]: name for name in sorted(raw_spec)}, ANSWERS[task_of(len(answers.classes))]
        known = {plain[name] for name in read}
        server.explainer = Explainer(answer_rows, output, rows, columns, known)
        signatures[EXPLAIN_SIGNATURE] = tf.function(server.explainer, input_signature=[row_inputs], autograph=False)
        # Nothing of the training data that the explanations do not have already.
        requests = {name: value if name in known else tf.zeros_like(value) for name, value in rows.items()}
    # Here, once: while it saves, TensorFlow does not take what was traced before, and traces functions anew.
    traced = {name: function.get_concrete_function() for name, function in signatures.items()}
    tf.saved_model.save(server, folder, signatures=traced)
    if requests and _answers(answer_rows, requests):
        warmup.write(folder, ROWS_SIGNATURE, requests)
    _describe(folder, raw_spec, plain, transform_output.raw_metadata.schema, answers, images)


def _computing(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that a model computes with; one that may have more than layers, tables say, as it is.

    Of a model among what is saved, TensorFlow traces once more a function that Keras adds to it, and keeps what the
    optimizer and the metrics know: time of every export and every server that loads it (docs/decisions/0007).
    """
    if type(model) is not Committee and not type(model).__module__.startswith("keras."):
        return [model]  # a class of the module file's
    parts = [_computing(layer) if isinstance(layer, keras.Model) else [layer] for layer in model.layers]
    return [layer for several in parts for layer in several]


def not_served(schema: schema_pb2.Schema, label: str) -> set[str]:
    """Return the raw features that a request lacks: the label, and what the schema keeps out of serving."""
    return {label, *(feature.name for feature in schema.feature if SERVING in feature.not_in_environment)}


def _served_spec(transform_output: tft.TFTransformOutput, label: str) -> dict[str, Any]:
    """Return how to parse the raw features of a request."""
    absent = not_served(transform_output.raw_metadata.schema, label)
    return {name: spec for name, spec in transform_output.raw_feature_spec().items() if name not in absent}


def _lists_of(transform_output: tft.TFTransformOutput, raw_spec: Mapping[str, Any]) -> set[str]:
    """Return the raw features of several values in a row."""
    return {
        feature.name
        for feature in transform_output.raw_metadata.schema.feature
        if isinstance(raw_spec.get(feature.name), tf.io.VarLenFeature) and feature.value_count.max != 1
    }


def _answers(function: Callable[[dict[str, tf.Tensor]], Any], rows: dict[str, tf.Tensor]) -> bool:
    """Return whether rows are answered, of which some columns are made up."""
    try:
        function(rows)
    except tf.errors.OpError as error:
        logger.warning("No requests to warm TensorFlow Serving up: the model fails at one. %s", first_line(error))
        return False
    return True


def _read_by(loader: SavedModelLoader, names: Iterable[str]) -> set[str]:
    """Return the raw features among the names that transformed ones are made of, as Transform's graph says."""
    state = vars(loader)  # it finds out when it is loaded, and has no other way to ask
    inputs, sources = state["_structured_inputs"], state["_output_to_inputs_map"].values()
    parts = {name: tf.nest.flatten(inputs[name], expand_composites=True) for name in names}
    return {name for name in names if any(part in found for part in parts[name] for found in sources)}


def _describe(
    folder: str,
    raw_spec: Mapping[str, Any],
    plain: Mapping[str, str],
    schema: schema_pb2.Schema,
    answers: Answers,
    images: Images | None,
) -> None:
    """Write ``INPUTS``, ``CLASSES`` and, where something was chosen on the eval split, ``FITTED``."""
    described = {
        name: {"input": plain[name], "type": KINDS[spec.dtype], "required": isinstance(spec, tf.io.FixedLenFeature)}
        for name, spec in sorted(raw_spec.items())
    }
    for feature in schema.feature:
        found = described.get(feature.name)
        if found and found["type"] == "text" and (notation := notation_of(feature)):
            found["notation"] = notation
    if images:
        limits = {"max_pixels": images.max_pixels, "max_bytes": images.max_bytes}
        described[images.column] |= {"type": "image", **limits}
    fitted = [(FITTED, answers.fitted)] if answers.fitted else []
    for path, content in ((INPUTS, described), (CLASSES, list(answers.classes)), *fitted):
        tf.io.gfile.makedirs(f"{folder}/{path.rpartition('/')[0]}")
        with tf.io.gfile.GFile(f"{folder}/{path}", "w") as file:
            file.write(json.dumps(content, indent=2) + "\n")


def _in_parts(answer: Answer, at_once: int) -> Answer:
    """Return a function that answers some rows after the other: decoded all at once, images need gigabytes."""

    def answer_in_parts(raw: dict[str, tf.Tensor | tf.SparseTensor]) -> dict[str, tf.Tensor]:
        def part(start: tf.Tensor) -> dict[str, tf.Tensor]:
            return answer({name: _rows_from(value, start, at_once) for name, value in raw.items()})

        count = tf.shape(next(iter(raw.values())), out_type=tf.int64)[0]
        first = tf.function(part, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64)).structured_outputs
        outputs = tf.map_fn(
            part,
            tf.range(0, count, at_once),
            fn_output_signature={
                name: tf.RaggedTensorSpec([None, *spec.shape[1:]], spec.dtype, ragged_rank=0)
                for name, spec in first.items()
            },
            parallel_iterations=1,
        )
        return {name: output.values for name, output in outputs.items()}

    return answer_in_parts


def _rows_from(value: tf.Tensor | tf.SparseTensor, start: tf.Tensor, count: int) -> tf.Tensor | tf.SparseTensor:
    """Return some rows of a batch, [count or fewer, ...]."""
    if isinstance(value, tf.SparseTensor):
        size = tf.concat([[count], value.dense_shape[1:]], axis=0)
        return tf.sparse.slice(value, tf.concat([[start], tf.zeros_like(value.dense_shape[1:])], axis=0), size)
    return value[start : start + count]


def _row_input(name: str, spec: tf.io.FixedLenFeature | tf.io.VarLenFeature, is_list: bool) -> tf.TensorSpec:
    """Return the JSON signature's input for a raw feature: [batch], or [batch, n] for a feature of n or any values."""
    if isinstance(spec, tf.io.VarLenFeature):
        return tf.TensorSpec(
            [None, None] if is_list else [None], tf.float64 if spec.dtype.is_integer else spec.dtype, name=name
        )
    values = [] if list(spec.shape) in ([], [1]) else list(spec.shape)
    return tf.TensorSpec([None, *values], spec.dtype, name=name)


def _as_parsed(rows: Mapping[str, tf.Tensor], raw_spec: Mapping[str, Any]) -> dict[str, tf.Tensor | tf.SparseTensor]:
    """Return row inputs, by raw feature, in the form in which parsing tf.Examples gives the same features."""
    parsed: dict[str, tf.Tensor | tf.SparseTensor] = {}
    optional: dict[tf.DType, list[str]] = {}
    for name, spec in raw_spec.items():
        value = rows[name]
        if isinstance(spec, tf.io.FixedLenFeature):
            parsed[name] = tf.reshape(value, [-1, *spec.shape])
        elif value.shape.rank == 2:
            several = tf.ragged.boolean_mask(value, _is_present(value)).to_sparse()
            parsed[name] = tf.SparseTensor(several.indices, tf.cast(several.values, spec.dtype), several.dense_shape)
        else:
            optional.setdefault(value.dtype, []).append(name)
    for names in optional.values():
        # All columns of a type together where that is possible: each of these operations costs a request more than what
        # it computes. As each column has the same shape, nobody's Transform takes it apart more than once.
        values = tf.stack([rows[name] for name in names])[..., tf.newaxis]  # [columns, batch, 1]
        shape = tf.shape(values, out_type=tf.int64)[1:]
        columns = zip(names, tf.unstack(values), tf.unstack(_is_present(values)), strict=True)
        for name, value, present in columns:
            indices = tf.where(present)
            there = tf.cast(tf.gather_nd(value, indices), raw_spec[name].dtype)
            parsed[name] = tf.SparseTensor(indices, there, shape)
    return parsed


def _is_present(value: tf.Tensor) -> tf.Tensor:
    """Return what is not written as missing."""
    return value != "" if value.dtype == tf.string else ~tf.math.is_nan(value)


def _as_row(value: tf.Tensor | tf.SparseTensor, given: tf.TensorSpec) -> tf.Tensor:
    """Return a parsed raw feature in the form of a row input: the reverse of ``_as_parsed``."""
    if not isinstance(value, tf.SparseTensor):
        return tf.reshape(value, [-1, *given.shape[1:]])
    missing = tf.constant("" if given.dtype == tf.string else math.nan, given.dtype)
    is_list = given.shape.rank == 2
    shape = tf.maximum(value.dense_shape, [0, 0 if is_list else 1])  # of no values at all there is a column, too
    dense = tf.sparse.to_dense(tf.SparseTensor(value.indices, tf.cast(value.values, given.dtype), shape), missing)
    return dense if is_list else dense[:, 0]
