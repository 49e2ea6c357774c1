"""Transform: replaces ``tfx.components.transform.executor.Executor``.

TFX reads and writes one record at a time in Python, in batches whose sizes depend on the clock, and in an order that
varies: the same examples give other sums, another order and so another model. Here the examples of a file are read,
transformed and written in blocks of a fixed size: one output file per input file, in its order. The analysis runs in
this process (``analysis``) where nothing needs Beam; for a window of spans, the analysis of each file is stored.

Gain: see docs/decisions/0035-the-fast-engine.md. Equality with TFX's executor: tests/fast/test_transform.py.
"""

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
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
from tfx import types
from tfx.components.transform import executor_utils
from tfx.components.util import examples_utils
from tfx.dsl.io import fileio
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils
from tfx_bsl.public import tfxio

from pipeline import filesystem
from pipeline.components.base import Artifacts, files_of, read_schema
from pipeline.components.transform import TransformExecutor, config_of, preprocessing_fn
from pipeline.data.blocks import BLOCK, read_blocks
from pipeline.data.examples import serialize
from pipeline.data.shard_files import write_records
from pipeline.data.table import is_list
from pipeline.fast import analysis, beam_options
from pipeline.fast.analysis import TEMPORARY, PreprocessingFn, projected, source_of
from pipeline.fast.analysis_operations import OnlyInBeam
from pipeline.fast.blocks import ReadBlocks, Spread
from pipeline.model.background import Picked

# Blocks that are transformed together: the fixed cost of a call is a third of the time of one block.
TOGETHER = 4


class FastTransformExecutor(TransformExecutor):
    """Analyze some splits, then transform some."""

    def transform(
        self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any], config: dict[str, Any]
    ) -> None:
        """Write "transform_graph" and, unless the component is configured without it, "transformed_examples"."""
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        graph = artifact_utils.get_single_uri(output_dict["transform_graph"])
        transformed = output_dict.get("transformed_examples")
        splits = executor_utils.ResolveSplitsConfig(exec_properties.get("splits_config"), [examples])
        schema = read_schema(input_dict["schema"])
        analyzed = [file for split in splits.analyze for file in files_of(examples, split)]
        preprocess = functools.partial(preprocessing_fn, custom_config=config)
        with self._beam_folder(graph) as folder:
            self._analyze(analyzed, schema, preprocess, folder, _cache_of(exec_properties, schema))
            if transformed is not None:
                output = artifact_utils.get_single_instance(transformed)
                output.split_names = artifact_utils.encode_split_names(list(splits.transform))
                examples_utils.set_payload_format(output, example_gen_pb2.FORMAT_TF_EXAMPLE)
                self._transform(examples, output, folder)

    def _analyze(
        self,
        files: list[str],
        schema: schema_pb2.Schema,
        preprocess: PreprocessingFn,
        graph: str,
        cache: analysis.Cache | None,
    ) -> None:
        """Write the transform graph: in this process if it can be computed here, else with Beam."""
        if beam_options.in_process(self._beam_pipeline_args):
            with contextlib.suppress(OnlyInBeam):
                analysis.analyze(files, schema, preprocess, f"{graph}/{TEMPORARY}", cache).write(graph)
                return
        with self._make_beam_pipeline() as pipeline:
            analyze(pipeline, files, schema, preprocess, graph)

    def write_features(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write the features of the train split and their schema, as ``Do`` does, if possible without a graph.

        The module is importable by its "module_path"; each call needs a new output folder.
        """
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        graph = artifact_utils.get_single_uri(output_dict["transform_graph"])
        transformed = artifact_utils.get_single_uri(output_dict["transformed_examples"])
        splits = executor_utils.ResolveSplitsConfig(exec_properties.get("splits_config"), [examples])
        files = [file for split in splits.analyze for file in files_of(examples, split)]
        preprocess = functools.partial(preprocessing_fn, custom_config=config_of(exec_properties))
        try:
            found = analysis.analyze(files, read_schema(input_dict["schema"]), preprocess, f"{graph}/{TEMPORARY}")
            schema, blocks = found.features(files_of(examples, "train"))
        except OnlyInBeam:
            self.Do(input_dict, output_dict, exec_properties)
            return
        metadata = dataset_metadata.DatasetMetadata(schema)
        metadata_io.write_metadata(metadata, f"{graph}/{tft.TFTransformOutput.TRANSFORMED_METADATA_DIR}")
        records = itertools.chain.from_iterable(map(Encoder(schema).encode, blocks))
        write_records(records, f"{transformed}/Split-train/transformed_examples.gz", transformed)

    @contextlib.contextmanager
    def _beam_folder(self, graph: str) -> Iterator[str]:
        """Yield the folder to which Beam's workers write the transform graph; it is at ``graph`` after the block.

        TensorFlow Transform writes every file under two or three names before the last one, and lists each folder.
        In a bucket that was 1,600 requests for 12 files, so workers on this machine write to a local folder first.
        """
        if not filesystem.is_remote(graph) or not beam_options.runs_here(self._beam_pipeline_args):
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


def _cache_of(exec_properties: dict[str, Any], schema: schema_pb2.Schema) -> analysis.Cache | None:
    """Return where the analysis of each file of a window of spans is stored; None for other data."""
    if not exec_properties.get("kept"):
        return None
    made_of = [exec_properties.get(name) for name in ("code", "custom_config")]
    made_of += [os.path.basename(exec_properties["module_path"]), schema.SerializeToString(deterministic=True)]
    return analysis.Cache(exec_properties["kept"], [*made_of, tft.__version__])


def analyze(
    pipeline: beam.Pipeline, files: list[str], schema: schema_pb2.Schema, preprocess: PreprocessingFn, graph: str
) -> None:
    """Add the analysis of files to a Beam pipeline; it writes the metadata of the raw data and the transform graph."""
    type_specs = source_of(schema).TensorAdapter().OriginalTypeSpecs()
    needed, config = projected(schema, tft.get_analyze_input_columns(preprocess, type_specs))
    metadata = dataset_metadata.DatasetMetadata(schema)
    with tft_beam.Context(temp_dir=os.path.join(graph, TEMPORARY), use_deep_copy_optimization=True):
        _ = metadata | "WriteMetadata" >> tft_beam.WriteMetadata(
            os.path.join(graph, tft.TFTransformOutput.RAW_METADATA_DIR), pipeline
        )
        batches = pipeline | "Examples" >> ReadBlocks(files, needed)
        transform_fn = (batches, config) | "Analyze" >> tft_beam.AnalyzeDataset(preprocess, pipeline=pipeline)
        _ = transform_fn | "WriteTransformFn" >> tft_beam.WriteTransformFn(graph)


class _TransformFile(beam.DoFn):
    """Transform the examples of a file, block by block; pick raw rows of the train split for explanations."""

    def __init__(self, graph: str, uri: str):
        self._graph = graph
        self._uri = uri

    def setup(self) -> None:
        output = tft.TFTransformOutput(self._graph)
        raw = output.raw_metadata.schema
        self._raw_schema = raw.SerializeToString()
        self._adapter = source_of(raw).TensorAdapter()
        specs = [self._adapter.TypeSpecs()]
        self._layer = tf.function(output.transform_features_layer(), input_signature=specs, autograph=False)
        self._encoder = Encoder(output.transformed_metadata.schema)

    def process(self, source_and_target: tuple[str, str, int, bool]) -> Iterator[None]:
        source, target, place, in_train = source_and_target
        picked = Picked(lambda rows: serialize(pa.table(rows).select(sorted(rows.schema.names))))
        blocks = _joined(read_blocks(source, self._raw_schema))
        write_records(self._transformed(picked.passing(blocks) if in_train else blocks), target, self._uri)
        if in_train:
            picked.write(self._graph, place)
        yield None

    def _transformed(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for block in blocks:
            yield from self._encoder.encode(
                self._layer(self._adapter.ToBatchTensors(block, produce_eager_tensors=True))
            )


class Encoder:
    """Encode features as tf.Examples by the schema that tf.Transform infers for them."""

    def __init__(self, schema: schema_pb2.Schema):
        self._converter = impl_helper.make_tensor_to_arrow_converter(schema)
        self._encoder = tfxio.RecordBatchToExamplesEncoder(schema)

    def encode(self, features: dict[str, Any]) -> list[bytes]:
        """Return a tf.Example for each row of tensors by name."""
        batch = self._converter.convert(features)
        if any(is_list(column.type.value_type) for column in batch.schema):
            return self._encoder.encode(batch)  # ragged features; the order of features in a record varies
        return serialize(pa.table(batch).select(sorted(batch.schema.names)))


def _joined(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join ``TOGETHER`` blocks each, or fewer up to a block with fewer than ``BLOCK`` rows."""
    joined: list[pa.RecordBatch] = []
    for block in blocks:
        joined.append(block)
        if len(joined) == TOGETHER or len(block) < BLOCK:
            yield from pa.Table.from_batches(joined).combine_chunks().to_batches()
            joined = []
    if joined:
        yield from pa.Table.from_batches(joined).combine_chunks().to_batches()
