"""Export the model as it is served: raw features in, its answer out, with Transform's graph inside."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform.saved.saved_transform_io_v2 import SavedModelLoader

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
from pipeline.settings.notations import listed_values, notation_of
from pipeline.settings.tasks import ANSWERS, task_of
from pipeline.training.answers import Answers
from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import Ensemble, answering
from pipeline.training.explanations import Explainer, affordable
from pipeline.training.history import write_file
from pipeline.training.input_pipeline import find
from pipeline.training.tabular import Committee

logger = logging.getLogger("pipeline.training")

Answer: TypeAlias = Callable[[dict[str, Any]], dict[str, tf.Tensor]]
KINDS = {tf.string: "text", tf.int64: "integers", tf.float32: "floats"}
# The trained model's answers for the first ROWS rows of eval: float32 values in the order of the rows in their files.
PREDICTIONS, ROWS = "predictions_of_eval.float32", 1_000


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

    All signatures answer with ``Answers``. None takes the label.

    - ``serving_default`` takes one tensor [batch] for each raw feature, which is TensorFlow Serving's JSON row format,
      or [batch, most values] for a list, filled up with missing values; a name that TensorFlow does not take as an
      argument's becomes the one of ``names.plain_names``. A missing value is NaN or, for text, "". Integers that may be
      missing come as float64, to have a NaN.
    - ``predict`` takes ``examples``, serialized tf.Examples, [batch]; a missing feature is left out. The argument is
      ``examples_`` where a raw feature has that name.
    - ``explain`` takes the inputs of ``serving_default``, and answers as well how much each raw feature contributes:
      ``explanations.Explainer``. Only with a background, and without images and ``decode``.

    ``INPUTS`` says of each feature its name in ``serving_default``, its type and whether it is required; ``CLASSES``
    names the classes; ``FITTED`` has what was chosen on the eval split.

    Args:
        model: Maps {feature: [batch, ...]} to its answers, [batch, 1 or classes].
        transform_output: Written by the Transform that made the model's features.
        folder: Receives the SavedModel.
        label: Raw feature that is not an input.
        answers: Turns the model's output into answers.
        transform: Transform's graph, loaded; None: it is loaded here.
        decoder: Of the transformed features; None only fills up those of varying length.
        ensemble: Trees that answer with the model, or alone.
        at_once: Rows that are decoded and answered together, where the module file has a ``decode``.
        images: Settings of images, where one of the raw features is an image.
        background: Raw rows that explanations begin from, serialized tf.Examples; they are part of the model.

    Raises:
        TrainingError: the model's output does not fit the classes.
    """
    decoder = decoder or Decoder(transform_output.transformed_feature_spec(), label)
    schema = transform_output.raw_metadata.schema
    absent = not_served(schema, label)
    raw_spec = {name: spec for name, spec in transform_output.raw_feature_spec().items() if name not in absent}
    server = tf.Module()
    if ensemble is None or not ensemble.alone:
        server.layers = _computing(model)
        # For warm starts, even of a network whose answers do not count. The Keras variables that the layers hold: the
        # TensorFlow variables inside them would be saved, and loaded by a server, a second time.
        setattr(server, WEIGHTS, list(model.weights))
    server.ensemble = ensemble
    # The core of transform_features_layer(), a layer of Keras 2 that takes half of the time of an export to trace
    # functions that are never called (docs/decisions/0007).
    loader = transform or SavedModelLoader(transform_output.transform_savedmodel_dir)
    server.transform = vars(loader)  # its vocabularies travel with the model
    answer_decoded = answering(model, decoder, ensemble)

    def answer(raw: dict[str, tf.Tensor | tf.SparseTensor]) -> dict[str, tf.Tensor]:
        return answers(answer_decoded(decoder(loader.apply_transform_model(raw))))

    answers_all: Answer = _in_parts(answer, at_once) if decoder.decodes else answer
    plain, lists = plain_names(raw_spec), {item.name for item in schema.feature if item.value_count.max != 1}
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
    if len(background) > 1 and not images and not decoder.decodes:
        read = _read_by(loader, raw_spec)
        parsed = tf.io.parse_example(affordable(background, len(read)), raw_spec)
        rows = {plain[name]: _as_row(value, row_inputs[plain[name]]) for name, value in parsed.items()}
        columns, output = {plain[name]: name for name in sorted(raw_spec)}, ANSWERS[task_of(len(answers.classes))]
        server.explainer = Explainer(answer_rows, output, rows, columns, {plain[name] for name in read})
        signatures[EXPLAIN_SIGNATURE] = tf.function(server.explainer, input_signature=[row_inputs], autograph=False)
    # Traced once: to save a function that is not concrete, TensorFlow traces it again.
    traced = {name: function.get_concrete_function() for name, function in signatures.items()}
    tf.saved_model.save(server, folder, signatures=traced)
    _describe(folder, raw_spec, plain, schema, answers, images)


def record_predictions(
    answer: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
    decoder: Decoder,
    patterns: Sequence[str],
    folder: str,
    at_once: int = ROWS,
) -> None:
    """Write ``PREDICTIONS`` into a folder, to compare the exported model's answers with.

    ``patterns`` name the files of the transformed eval split, and ``answer`` takes ``at_once`` decoded rows together.
    """
    files = find(patterns)
    records = tf.data.TFRecordDataset(files, compression_type="GZIP" if files[0].endswith(".gz") else "")
    parsed = (tf.io.parse_example(rows, decoder.parsing) for rows in records.take(ROWS).batch(at_once))
    answers = [np.asarray(answer(decoder(rows)), np.float32) for rows in parsed]
    write_file(f"{folder}/{PREDICTIONS}", np.concatenate(answers).tobytes())


def _computing(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that a model computes with; a model of the module file's own class as it is.

    Of a saved model, TensorFlow traces one more function that Keras adds to it, and keeps the state of the optimizer
    and the metrics: time of every export and of every server that loads it (docs/decisions/0007).
    """
    if type(model) is not Committee and not type(model).__module__.startswith("keras."):
        return [model]  # a class of the module file's
    parts = [_computing(layer) if isinstance(layer, keras.Model) else [layer] for layer in model.layers]
    return [layer for several in parts for layer in several]


def not_served(schema: schema_pb2.Schema, label: str) -> set[str]:
    """Return the raw features that a request lacks: the label, and those that the schema keeps out of serving."""
    return {label, *(feature.name for feature in schema.feature if SERVING in feature.not_in_environment)}


def _read_by(loader: SavedModelLoader, names: Iterable[str]) -> set[str]:
    """Return the raw features among the names that Transform's graph reads."""
    state = vars(loader)
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
        elif found and (known := known_values(feature, schema)):
            found["known"] = known
    if images:
        limits = {"max_pixels": images.max_pixels, "max_bytes": images.max_bytes}
        described[images.column] |= {"type": "image", **limits}
    fitted = [(FITTED, answers.fitted)] if answers.fitted else []
    for path, content in ((INPUTS, described), (CLASSES, list(answers.classes)), *fitted):
        write_file(f"{folder}/{path}", json.dumps(content, indent=2) + "\n")


def known_values(feature: schema_pb2.Feature, schema: schema_pb2.Schema) -> list[str]:
    """Return the values of a category that the schema lists: texts, or "0" and "1" of whole numbers."""
    if feature.type == schema_pb2.INT:
        return ["0", "1"] if feature.HasField("bool_domain") else []
    return listed_values(feature, schema) if feature.type == schema_pb2.BYTES else []


def _in_parts(answer: Answer, at_once: int) -> Answer:
    """Return a function that answers a few rows at a time: decoded all together, images need gigabytes."""

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
    """Return row inputs, by raw feature, in the form that parsing tf.Examples gives."""
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
        # All columns of a type together: a request pays for the number of these operations more than for their work.
        values = tf.stack([rows[name] for name in names])[..., tf.newaxis]  # [columns, batch, 1]
        shape = tf.shape(values, out_type=tf.int64)[1:]
        columns = zip(names, tf.unstack(values), tf.unstack(_is_present(values)), strict=True)
        for name, value, present in columns:
            indices = tf.where(present)
            there = tf.cast(tf.gather_nd(value, indices), raw_spec[name].dtype)
            parsed[name] = tf.SparseTensor(indices, there, shape)
    return parsed


def _is_present(value: tf.Tensor) -> tf.Tensor:
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
