"""TFX's Transform for a preprocessing_fn whose result is checked and includes the weight of each row."""

import importlib
import inspect
import json
import logging
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
from tfx import components as tfx_components
from tfx import types
from tfx.components.transform import executor as tfx_transform
from tfx.dsl.components.base import executor_spec
from tfx.types import artifact_utils
from tfx.utils import io_utils

from pipeline.components.artifacts import WARNING
from pipeline.components.base import Artifacts, UserCodeComponent, files_of, user_code
from pipeline.data.blocks import BLOCK
from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError
from pipeline.model.background import Picked
from pipeline.settings.names import shortened

# Rows of the train split, and labels that each of them gets, to see what preprocessing_fn makes of a label; and those
# that a message names.
ROWS, LABELS, SHOWN = 4, 256, 8
logger = logging.getLogger("pipeline")
# Key of the custom config with the name of the user's module.
MODULE = "user_module"


class TransformExecutor(tfx_transform.Executor):
    """TFX's executor, which also stores raw rows of the train split for explanations."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "transform_graph" and "transformed_examples"."""
        if "@" in (module_path := exec_properties["module_path"]):
            wheel = io_utils.ensure_local(module_path.partition("@")[2])
            self._beam_pipeline_args.append(f"--extra_package={wheel}")  # for workers on other machines
        with user_code(exec_properties) as properties:
            config = config_of(properties)
            self.transform(input_dict, output_dict, exec_properties, config)
        graph = artifact_utils.get_single_instance(output_dict["transform_graph"])
        check_label(artifact_utils.get_single_instance(input_dict["examples"]), graph, config)

    def transform(
        self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any], config: dict[str, Any]
    ) -> None:
        """Do the work of ``Do`` while the user's module is importable; ``config`` is for ``preprocessing_fn``."""
        function = f"{__name__}.{preprocessing_fn.__name__}"
        given = {"module_path": None, "preprocessing_fn": function, "custom_config": json.dumps(config)}
        super().Do(input_dict, output_dict, {**exec_properties, **given})
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        graph = artifact_utils.get_single_uri(output_dict["transform_graph"])
        with self._make_beam_pipeline() as pipeline:
            files = pipeline | beam.Create(list(enumerate(files_of(examples, "train")))) | beam.Reshuffle()
            _ = files | beam.Map(_keep_rows, graph)


def _keep_rows(numbered_file: tuple[int, str], graph: str) -> None:
    """Store raw rows of a file of the train split, for explanations."""
    position, file = numbered_file
    picked = Picked()
    for _ in picked.passing(read_records(file, BLOCK)):
        pass
    picked.write(graph, position)


def check_label(examples: types.Artifact, graph: types.Artifact, config: dict[str, Any]) -> None:
    """Compare the label that preprocessing_fn returns with the one that it gets; note where a number differs.

    Raises:
        UserError: a class gets another number, which neither the Evaluator nor a server knows; or a number gets none.
    """
    name, classes = config.get("label"), config.get("classes") or ()
    changes = changed_labels(examples, graph, name, len(classes)) if name else {}
    if not changes:
        return
    if not classes:
        before, after = min(changes.items(), key=lambda change: np.isfinite(change[1]))
        if not np.isfinite(after):
            raise UserError(
                f"preprocessing_fn changes the label {name!r}: {before:g} becomes {after:g}, which no model learns; "
                "choose another function, or leave such rows out of the data"
            )
        sentence = (
            f"preprocessing_fn changes the label {name!r}: {before:g} becomes {after:g}. Metrics compare the model's "
            "answers with the numbers of the data: undo the change in the signature that run_fn exports, or return the "
            f"label as it is, outputs[{name!r}] = inputs[{name!r}]"
        )
        logger.warning(sentence)
        graph.set_string_custom_property(WARNING, sentence)
        return
    words = shortened((f"{classes[label]} ({label}) becomes {new:g}" for label, new in changes.items()), SHOWN)
    kept = set(range(len(classes))) - set(changes)
    merges = len({*changes.values(), *kept}) < len(changes) + len(kept)
    raise UserError(
        f"preprocessing_fn {'merges' if merges else 'renumbers'} the classes of the label {name!r}: {words}. "
        "ExampleGen has already numbered them in the order of label.classes, and metrics and answers use these "
        f"numbers; return the label as it is, outputs[{name!r}] = inputs[{name!r}]"
        + ("; to learn fewer classes, merge them in the data and in label.classes" if merges else "")
    )


def changed_labels(examples: types.Artifact, graph: types.Artifact, label: str, classes: int) -> dict[float, float]:
    """Return the labels that preprocessing_fn changes, each with what becomes of it.

    Some rows of the train split get every label in turn. Without a feature of the label's name, the label is the only
    feature that depends on nothing else. Text is not compared: ExampleGen has not numbered it, so the module file must.
    """
    records = next(read_records(files_of(examples, "train")[0], LABELS), [])
    rows = [row for row in map(tf.train.Example.FromString, records) if values_of(row, label)]
    found = {values_of(row, label)[0] for row in rows}
    if not found or any(isinstance(value, bytes) for value in found):
        return {}
    labels = list(range(min(classes, LABELS))) if classes else sorted(found)
    given = []
    for row in rows[:ROWS]:
        for value in labels:
            values_of(row, label)[:] = [value]
            given.append(row.SerializeToString())
    output = tft.TFTransformOutput(graph.uri)
    features = output.transform_features_layer()(tf.io.parse_example(given, output.raw_feature_spec()))
    by_row = {
        name: values.reshape(-1, len(labels))
        for name, feature in features.items()
        if (values := numbers(feature, len(given), classes)) is not None
    }
    if label not in features:
        by_row = {name: rows for name, rows in by_row.items() if (rows == rows[0]).all() and np.ptp(rows[0])}
        label = next(iter(by_row)) if len(by_row) == 1 else label
    if label not in by_row:
        return {}
    after = by_row[label]
    same = np.isclose(after, labels, rtol=1e-6, atol=0)
    row = after[same.all(axis=1).argmin()]  # the first that differs
    return {one: new for one, new in zip(labels, row.tolist(), strict=True) if not np.isclose(one, new, 1e-6, 0)}


def values_of(row: tf.train.Example, name: str) -> Any:
    """Return the values of a feature of a row, to be changed in place; an empty list where it is missing."""
    feature = row.features.feature[name]
    kind = feature.WhichOneof("kind")
    return getattr(feature, kind).value if kind else []


def numbers(feature: Any, rows: int, classes: int) -> np.ndarray | None:
    """Return a feature with one number a row, [rows]; of classes that are one-hot, their numbers; None: another one."""
    if isinstance(feature, tf.SparseTensor):
        feature = feature.values
    elif isinstance(feature, tf.RaggedTensor):
        feature = feature.flat_values
    values = feature.numpy()
    if values.dtype.kind not in "iuf" or values.size % rows:
        return None
    values = values.reshape(rows, -1).astype(np.float64)
    if values.shape[1] == classes > 1:
        return values.argmax(axis=1)
    return values[:, 0] if values.shape[1] == 1 else None


def config_of(exec_properties: dict[str, Any]) -> dict[str, Any]:
    """Return the ``custom_config`` for ``preprocessing_fn`` below, whose module is importable by its name."""
    return {**json.loads(exec_properties.get("custom_config") or "{}"), MODULE: exec_properties["module_path"]}


def preprocessing_fn(inputs: dict[str, Any], custom_config: dict[str, Any]) -> dict[str, Any]:
    """Call the preprocessing_fn of the user's module and check what it returns.

    The user's function never sees the column of weights. The weight is returned as a feature, float32 [batch, 1],
    divided by the mean of the train split: whatever their unit, weights leave the learning rate and regularization
    unchanged, and a row with weight 2 counts like two rows.

    Args:
        inputs: Raw tensors by name.
        custom_config: Settings for the user's function, if it has a parameter ``custom_config``; and ``MODULE``.

    Raises:
        UserError: the user's function does not return tensors by name, or returns a feature named like the weight.
    """
    config = dict(custom_config)
    of_user: Callable[..., Any] = importlib.import_module(config.pop(MODULE)).preprocessing_fn
    named = {"custom_config": config} if "custom_config" in inspect.signature(of_user).parameters else {}
    weight = config.get("weight")
    features = of_user({name: value for name, value in inputs.items() if name != weight}, **named)
    if not isinstance(features, dict):
        missing = "; is a return missing?" if features is None else ""
        raise UserError(
            f"preprocessing_fn returns {type(features).__name__}, expected a dictionary of features by name{missing}"
        )
    for name, value in features.items():
        if not isinstance(value, tf.Tensor | tf.SparseTensor | tf.RaggedTensor):
            raise UserError(f"preprocessing_fn returns {type(value).__name__} as {name!r}, expected a tensor")
    if not weight:
        return features
    if weight in features:
        raise UserError(
            f"preprocessing_fn returns {weight!r}, which is the weight of the rows; give this feature another name"
        )
    values = inputs[weight]
    if isinstance(values, tf.SparseTensor):  # the schema may allow missing weights, though no row lacks one
        values = tf.sparse.to_dense(tf.SparseTensor(values.indices, values.values, [values.dense_shape[0], 1]))
    values = tf.cast(values, tf.float32)
    return {**features, weight: values / tf.cast(tft.mean(values), tf.float32)}


class Transform(UserCodeComponent, tfx_components.Transform):
    """TFX's Transform with our executor."""

    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(TransformExecutor)

    def __init__(self, kept: str = "", **kwargs: Any):
        """Create the component; ``kept`` is the folder in which the fast engine stores the analysis of each span."""
        super().__init__(**kwargs)
        if kept:
            self.exec_properties["kept"] = kept
