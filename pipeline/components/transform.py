"""Transform without a record-by-record step: an executor for TFX's component, for tf.Examples and without statistics.

TFX reads and writes each record in Python, in batches whose sizes depend on the clock and in an order that depends on
chance: the same examples give other sums, another order and so another model. Here the examples of a file are read,
decoded, transformed and written in blocks of a fixed size, one file for each file of the input, in its order. The
analysis itself is TensorFlow Transform's own: on one machine in this process (``direct_analysis``), else on any Beam
runner. Of a window of spans, what it gathers of each span is kept (``analysis_cache``).
"""

import contextlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform import impl_helper
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io
from tfx import components as tfx_components
from tfx import types
from tfx.components.transform import executor as tfx_transform
from tfx.components.transform import executor_utils, labels
from tfx.components.util import examples_utils, udf_utils
from tfx.dsl.components.base import executor_spec
from tfx.dsl.io import fileio
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils
from tfx.utils import io_utils
from tfx_bsl.public import tfxio

from pipeline import filesystem
from pipeline.components import direct_analysis
from pipeline.components.analysis_cache import AnalysisCache
from pipeline.components.analysis_operations import OnlyInBeam
from pipeline.components.base import Artifacts, UserCodeComponent, read_schema, user_code
from pipeline.components.beam_pipeline import BeamExecutor
from pipeline.components.blocks import ReadBlocks, Spread, files_of
from pipeline.components.direct_analysis import TEMPORARY
from pipeline.components.raw_tensors import projected, source_of
from pipeline.data import decoded_blocks
from pipeline.data.decoded_blocks import BLOCK
from pipeline.data.examples import serialize
from pipeline.data.shard_files import write_records
from pipeline.data.table import is_list
from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError
from pipeline.model.background import Picked

# Blocks that are transformed together: what a call costs whatever the rows is a third of the time of one block.
TOGETHER = 4


class TransformExecutor(BeamExecutor, tfx_transform.Executor):
    """Analyze some splits, then transform some."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "transform_graph" and, unless the component is told not to, "transformed_examples"."""
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        graph = artifact_utils.get_single_uri(output_dict["transform_graph"])
        transformed = output_dict.get("transformed_examples")
        splits = executor_utils.ResolveSplitsConfig(exec_properties.get("splits_config"), [examples])
        schema = read_schema(input_dict["schema"])

        _, wheels = udf_utils.decode_user_module_key(exec_properties["module_path"])
        self._beam_pipeline_args += [f"--extra_package={io_utils.ensure_local(wheel)}" for wheel in wheels]
        with self._beam_folder(graph) as folder:
            with user_code(exec_properties) as properties:
                preprocessing_fn = self.preprocessing_fn(properties["module_path"], exec_properties)
                analyzed = [file for split in splits.analyze for file in files_of(examples, split)]
                cache = None
                if exec_properties.get("kept"):
                    made_of = [exec_properties.get(name) for name in ("code", "custom_config")]
                    made_of += [wheels and os.path.basename(wheels[0]), schema.SerializeToString(deterministic=True)]
                    cache = AnalysisCache(exec_properties["kept"], analyzed, made_of)
                self._analyze(analyzed, schema, preprocessing_fn, folder, cache)
            if transformed is not None:
                output = artifact_utils.get_single_instance(transformed)
                output.split_names = artifact_utils.encode_split_names(list(splits.transform))
                examples_utils.set_payload_format(output, example_gen_pb2.FORMAT_TF_EXAMPLE)
                self._transform(examples, output, folder)
            if cache:
                splits_of_window = artifact_utils.decode_split_names(examples.split_names)
                files = [file for split in splits_of_window for file in files_of(examples, split)]
                decoded_blocks.prune(files, BLOCK)

    def _analyze(
        self,
        files: list[str],
        schema: schema_pb2.Schema,
        preprocessing_fn: Callable[..., Any],
        graph: str,
        cache: AnalysisCache | None,
    ) -> None:
        """Write the transform graph; by Beam with workers or elsewhere, for spans, and where nothing else can."""
        if self._is_in_process and cache is None:
            with contextlib.suppress(OnlyInBeam):
                direct_analysis.analyze(files, schema, preprocessing_fn, f"{graph}/{TEMPORARY}").write(graph)
                return
        with self._make_beam_pipeline() as pipeline:
            analyze(pipeline, files, schema, preprocessing_fn, graph, cache)
        if cache:
            cache.seal()

    def preprocessing_fn(self, module: str, exec_properties: dict[str, Any]) -> Callable[..., Any]:
        """Return the preprocessing_fn of an importable module; what it returns is checked, and has the rows' weight."""
        custom_config = exec_properties.get("custom_config")
        given = {labels.MODULE_PATH: module, labels.CUSTOM_CONFIG: custom_config}
        preprocessing_fn = of_features(self._GetPreprocessingFn(given, {}))
        weight = json.loads(custom_config or "{}").get("weight")
        return with_weight(preprocessing_fn, weight) if weight else preprocessing_fn

    def write_features(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write the features of the train split and their schema, as ``Do`` would, without a transform graph.

        The module is importable by its "module_path", and the folder of the outputs never the same twice.

        Raises:
            OnlyInBeam: ``Do`` is needed; nothing was written.
            Exception: what the preprocessing_fn raises, and what tf.Transform says of values that are no features.
        """
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        graph = artifact_utils.get_single_uri(output_dict["transform_graph"])
        transformed = artifact_utils.get_single_uri(output_dict["transformed_examples"])
        splits = executor_utils.ResolveSplitsConfig(exec_properties.get("splits_config"), [examples])
        files = [file for split in splits.analyze for file in files_of(examples, split)]
        preprocessing_fn = self.preprocessing_fn(exec_properties["module_path"], exec_properties)
        schema = read_schema(input_dict["schema"])
        analysis = direct_analysis.analyze(files, schema, preprocessing_fn, f"{graph}/{TEMPORARY}")
        schema, blocks = analysis.features(files_of(examples, "train"))
        metadata = dataset_metadata.DatasetMetadata(schema)
        metadata_io.write_metadata(metadata, f"{graph}/{tft.TFTransformOutput.TRANSFORMED_METADATA_DIR}")
        records = itertools.chain.from_iterable(map(Encoder(schema).encode, blocks))
        write_records(records, f"{transformed}/Split-train/transformed_examples.gz", transformed)

    @contextlib.contextmanager
    def _beam_folder(self, graph: str) -> Iterator[str]:
        """Yield the folder to which Beam's workers write the transform graph; it is at ``graph`` after the block.

        TensorFlow Transform writes every file under two or three names before the last one, and looks each folder up.
        In a bucket that was 1,600 requests for 12 files, so workers on this machine write here first.
        """
        if not filesystem.is_remote(graph) or not self._runs_here:
            yield graph
            if fileio.exists(os.path.join(graph, TEMPORARY)):
                fileio.rmtree(os.path.join(graph, TEMPORARY))
            return
        with tempfile.TemporaryDirectory() as folder:
            yield folder
            for path in filesystem.find_files(folder, "**/*"):
                name = Path(path).relative_to(folder).as_posix()
                if not name.startswith(TEMPORARY):
                    filesystem.write(f"{graph}/{name}", Path(path).read_bytes())

    def _transform(self, examples: types.Artifact, output: types.Artifact, graph: str) -> None:
        """Write the transformed examples of the splits of ``output``."""
        sources_and_targets = []
        for split in artifact_utils.decode_split_names(output.split_names):
            folder, files = artifact_utils.get_split_uri([output], split), files_of(examples, split)
            sources_and_targets += [
                (file, f"{folder}/transformed_examples-{number:05d}-of-{len(files):05d}.gz", number, split == "train")
                for number, file in enumerate(files)
            ]
        with self._make_beam_pipeline() as pipeline:
            transform_file = beam.ParDo(_TransformFile(graph, output.uri))
            _ = pipeline | "Files" >> Spread(sources_and_targets) | "Transform" >> transform_file


def of_features(preprocessing_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a preprocessing_fn that raises a UserError where the module file's does not return tensors by name."""

    def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = preprocessing_fn(inputs)
        if not isinstance(outputs, dict):
            missing = "; is a return missing?" if outputs is None else ""
            raise UserError(
                f"preprocessing_fn returns {type(outputs).__name__}, expected a dictionary of features by name{missing}"
            )
        for name, value in outputs.items():
            if not isinstance(value, tf.Tensor | tf.SparseTensor | tf.RaggedTensor):
                raise UserError(f"preprocessing_fn returns {type(value).__name__} as {name!r}, expected a tensor")
        return outputs

    return preprocess


def with_weight(preprocessing_fn: Callable[..., Any], weight: str) -> Callable[..., Any]:
    """Return a preprocessing_fn that never sees the weight, and returns it beside what the module file's makes.

    It comes out float32 [batch, 1], over the mean of the train split: whatever their unit, weights leave the learning
    rate and regularization what they were, and a row that weighs 2 counts as if it was there twice.

    Args:
        preprocessing_fn: The module file's.
        weight: The column.

    Raises:
        UserError: when it is called, and the module file's returns a feature of that name.
    """

    def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = preprocessing_fn({name: value for name, value in inputs.items() if name != weight})
        if weight in outputs:
            raise UserError(
                f"preprocessing_fn returns {weight!r}, which is the weight of the rows; give this feature another name"
            )
        values = inputs[weight]
        if isinstance(values, tf.SparseTensor):  # as a schema may say, though no row lacks its weight
            values = tf.sparse.to_dense(tf.SparseTensor(values.indices, values.values, [values.dense_shape[0], 1]))
        values = tf.cast(values, tf.float32)
        return {**outputs, weight: values / tf.cast(tft.mean(values), tf.float32)}

    return preprocess


def analyze(
    pipeline: beam.Pipeline,
    files: list[str],
    schema: schema_pb2.Schema,
    preprocessing_fn: Callable[..., Any],
    graph: str,
    cache: AnalysisCache | None = None,
) -> None:
    """Add the analysis of files to a Beam pipeline; it writes the metadata of the raw data and the transform graph.

    With a cache, files whose analysis it has are read only where the preprocessing_fn analyzes what depends on an
    earlier analysis, as a mean of values that were clipped at percentiles.
    """
    type_specs = source_of(schema).TensorAdapter().OriginalTypeSpecs()
    needed, config = projected(schema, tft.get_analyze_input_columns(preprocessing_fn, type_specs))
    metadata = dataset_metadata.DatasetMetadata(schema)
    with tft_beam.Context(temp_dir=os.path.join(graph, TEMPORARY), use_deep_copy_optimization=True):
        _ = metadata | "WriteMetadata" >> tft_beam.WriteMetadata(
            os.path.join(graph, tft.TFTransformOutput.RAW_METADATA_DIR), pipeline
        )
        if cache:
            transform_fn = cache.analyze(pipeline, needed, config, preprocessing_fn)
        else:
            batches = pipeline | "Examples" >> ReadBlocks(files, needed)
            transform_fn = (batches, config) | "Analyze" >> tft_beam.AnalyzeDataset(preprocessing_fn, pipeline=pipeline)
        _ = transform_fn | "WriteTransformFn" >> tft_beam.WriteTransformFn(graph)


class _TransformFile(beam.DoFn):
    """Transform the examples of a file, block by block; of the train split, keep some raw rows for explanations."""

    def __init__(self, graph: str, uri: str):
        self._graph = graph
        self._uri = uri

    def setup(self) -> None:
        output = tft.TFTransformOutput(self._graph)
        spec, layer = output.raw_feature_spec(), output.transform_features_layer()

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)  # a graph already
        def transform(records: tf.Tensor) -> dict[str, Any]:
            return dict(layer(tf.io.parse_example(records, spec)))

        raw = output.raw_metadata.schema
        self._transform = transform
        self._raw_schema = raw.SerializeToString()
        self._adapter = source_of(raw).TensorAdapter()
        self._transform_decoded = tf.function(layer, input_signature=[self._adapter.TypeSpecs()], autograph=False)
        self._encoder = Encoder(output.transformed_metadata.schema)

    def process(self, source_and_target: tuple[str, str, int, bool]) -> Iterator[None]:
        source, target, place, in_train = source_and_target
        if decoded_blocks.are_kept(source, BLOCK):
            # Tensors of what is decoded take a fifth of the time of reading and parsing it.
            picked = Picked(lambda rows: serialize(pa.table(rows).select(sorted(rows.schema.names))))
            blocks: Iterator[Any] = decoded_blocks.read_blocks(source, BLOCK, self._raw_schema)
        else:
            picked, blocks = Picked(), read_records(source, BLOCK)
        blocks = _joined(blocks)
        write_records(self._transformed(picked.passing(blocks) if in_train else blocks), target, self._uri)
        if in_train:
            picked.write(self._graph, place)
        yield None

    def _transformed(self, blocks: Iterable[list[bytes] | pa.RecordBatch]) -> Iterator[bytes]:
        for block in blocks:
            if isinstance(block, pa.RecordBatch):
                features = self._transform_decoded(self._adapter.ToBatchTensors(block, produce_eager_tensors=True))
            else:
                features = self._transform(tf.constant(block))
            yield from self._encoder.encode(features)


class Encoder:
    """Encode features as tf.Examples by the schema that tf.Transform infers for them."""

    def __init__(self, schema: schema_pb2.Schema):
        self._converter = impl_helper.make_tensor_to_arrow_converter(schema)
        self._encoder = tfxio.RecordBatchToExamplesEncoder(schema)

    def encode(self, features: dict[str, Any]) -> list[bytes]:
        """Return a tf.Example for each row of tensors by name."""
        batch = self._converter.convert(features)
        if any(is_list(column.type.value_type) for column in batch.schema):
            return self._encoder.encode(batch)  # ragged features; rare enough for an order by chance
        return serialize(pa.table(batch).select(sorted(batch.schema.names)))


def _joined(blocks: Iterable[Any]) -> Iterator[Any]:
    """Join ``TOGETHER`` blocks each, or fewer up to one of less than ``BLOCK`` rows, as there are of large rows."""
    joined: list[Any] = []
    for block in blocks:
        joined.append(block)
        if len(joined) == TOGETHER or len(block) < BLOCK:
            yield _as_one(joined)
            joined = []
    if joined:
        yield _as_one(joined)


def _as_one(blocks: list[Any]) -> Any:
    if not isinstance(blocks[0], pa.RecordBatch):
        return list(itertools.chain.from_iterable(blocks))
    (batch,) = pa.Table.from_batches(blocks).combine_chunks().to_batches()
    return batch


class Transform(UserCodeComponent, tfx_components.Transform):
    """TFX's Transform with our executor."""

    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(TransformExecutor)

    def __init__(self, kept: str = "", **kwargs: Any):
        """Create the component; ``kept`` is a folder for the analysis of each span, of a window of spans, or ""."""
        super().__init__(**kwargs)
        if kept:
            self.exec_properties["kept"] = kept
