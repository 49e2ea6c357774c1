"""TFX's Transform for a preprocessing_fn whose result is checked and includes the weight of each row."""

import importlib
import inspect
import json
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import tensorflow as tf
import tensorflow_transform as tft
from tfx import components as tfx_components
from tfx.components.transform import executor as tfx_transform
from tfx.dsl.components.base import executor_spec
from tfx.types import artifact_utils
from tfx.utils import io_utils

from pipeline.components.base import Artifacts, UserCodeComponent, files_of, user_code
from pipeline.data.blocks import BLOCK
from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError
from pipeline.model.background import Picked

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
            self.transform(input_dict, output_dict, exec_properties, config_of(properties))

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
