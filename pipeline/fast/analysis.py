"""TensorFlow Transform's analysis on one machine: in this process, block by block, without Beam.

The phases are those of tf.Transform's own loop (``analysis_graph_builder.build``): ``preprocessing_fn`` is traced, what
it analyzes is computed as far as it can be known, and it is traced again with the results, until nothing is left. Beam
would add a graph of a hundred transforms, their runner and a SavedModel for each phase (decision 35).
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform import (
    analyzer_nodes,
    annotators,
    graph_context,
    graph_tools,
    impl_helper,
    nodes,
    schema_inference,
    tf2_utils,
)
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io
from tfx_bsl.public import tfxio

from pipeline import filesystem
from pipeline.data import kept
from pipeline.data.blocks import read_blocks
from pipeline.errors import UserError
from pipeline.fast.analysis_operations import Accumulation, Accumulations, OnlyInBeam, Values

PreprocessingFn = Callable[[dict[str, Any]], dict[str, Any]]
# Folder in the transform graph for what passes between the phases of an analysis.
TEMPORARY = ".temp_path"
KIND = "analysis"  # of stored results


@dataclass
class Analysis:
    """The values that a preprocessing_fn takes from all rows to make features of one.

    Attributes:
        preprocessing_fn: The module file's.
        schema: Of the raw examples.
        folder: Of vocabularies.
        values: By the name of the tensor that each stands for.
        first: The trace in which nothing was known.
    """

    preprocessing_fn: PreprocessingFn
    schema: schema_pb2.Schema
    folder: str
    values: dict[str, tf.Tensor]
    first: "_Phase"

    def features(self, files: Iterable[str]) -> tuple[schema_pb2.Schema, Iterator[dict[str, Any]]]:
        """Return the schema of the features, and the features of each block of files.

        Raises:
            OnlyInBeam: their schema is only known from a transform graph.
            ValueError: something is not a feature to tf.Transform.
            UserError: the preprocessing_fn does not analyze the same in each call.
        """
        phase = _Phase(self.preprocessing_fn, self.schema, self.values, self.folder)
        phase.check_pending(set())
        if schema_inference._get_sparse_output_annotations(phase.traced.graph):
            raise OnlyInBeam("a sparse feature whose shape is annotated")
        schema = schema_inference.infer_feature_schema_v2(
            phase.traced.structured_outputs, dict, evaluate_schema_overrides=True
        )
        adapter = source_of(self.schema).TensorAdapter()
        return schema, (phase.traced(tensors) for tensors in _tensors(files, self.schema, adapter))

    def write(self, graph: str) -> None:
        """Write the transform graph, as ``tft_beam.WriteTransformFn`` and ``WriteMetadata`` do."""
        saved = f"{self.folder}/{tft.TFTransformOutput.TRANSFORM_FN_DIR}"
        graph_of_first = self.first.traced.graph
        fingerprint = graph_tools.get_analyzers_fingerprint(graph_of_first, self.first.inputs)
        impl_helper.trace_and_write_v2_saved_model(
            saved, self.preprocessing_fn, self.first.specs, self.folder, fingerprint, self.values, None, None
        )
        metadata = f"{graph}/{tft.TFTransformOutput.TRANSFORMED_METADATA_DIR}"
        os.rename(f"{saved}/{impl_helper.METADATA_DIR_NAME}", metadata)
        if vocabularies := annotators.get_asset_annotations(graph_of_first):
            with open(f"{metadata}/{tft.TFTransformOutput.ASSET_MAP}", "w") as file:
                json.dump(vocabularies, file)
        raw = f"{graph}/{tft.TFTransformOutput.RAW_METADATA_DIR}"
        metadata_io.write_metadata(dataset_metadata.DatasetMetadata(self.schema), raw)
        os.rename(saved, f"{graph}/{tft.TFTransformOutput.TRANSFORM_FN_DIR}")


@dataclass(frozen=True)
class Cache:
    """Results of the first phase for each file, stored for later runs on a window of spans.

    Attributes:
        root: Folder of stored results.
        made_of: What a result depends on in addition to its file: code, schema, settings.
    """

    root: str
    made_of: Sequence[object]

    def folder(self, file: str) -> str:
        """Return the folder of the result for a file."""
        return kept.folder_of(self.root, KIND, filesystem.digest(file), *self.made_of)

    def prune(self, files: Sequence[str]) -> None:
        """Delete the results for all other files."""
        kept.prune(self.root, KIND, map(self.folder, files))


def analyze(
    files: Sequence[str],
    schema: schema_pb2.Schema,
    preprocessing_fn: PreprocessingFn,
    folder: str,
    cache: Cache | None = None,
) -> Analysis:
    """Analyze files of examples.

    Args:
        files: Gzipped TFRecords.
        schema: Of the examples.
        preprocessing_fn: The module file's.
        folder: For vocabularies; a new one in each call, because tables are cached by the path of their words.
        cache: Results of earlier runs; files whose result it has are only read for later phases, such as a mean of
            values that were clipped at percentiles.

    Raises:
        OnlyInBeam: something is analyzed that is not computed here; no row has been read.
        UserError: the preprocessing_fn does not analyze the same in each call.
        Exception: what the preprocessing_fn raises.
    """
    phase = first = _Phase(preprocessing_fn, schema, {}, folder)
    if first.traced.graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES):
        raise OnlyInBeam("variables, which AnalyzeDataset refuses")
    values: dict[str, tf.Tensor] = {}
    while pending := first.pending_names - values.keys():
        if values:
            phase = _Phase(preprocessing_fn, schema, values, folder)
            phase.check_pending(pending)
        values |= phase.compute(files, cache if phase is first else None)
    if cache:
        cache.prune(files)
    return Analysis(preprocessing_fn, schema, folder, values, first)


class _Phase:
    """A trace of a preprocessing_fn: it returns what can be analyzed with what is known, or the features.

    Attributes:
        specs: Of the raw tensors by name.
        traced: The function.
        inputs: Its raw tensors by name.
        pending_names: Names of the tensors that stand for what is still to be analyzed.
    """

    def __init__(
        self, preprocessing_fn: PreprocessingFn, schema: schema_pb2.Schema, known: dict[str, tf.Tensor], folder: str
    ):
        self._preprocessing_fn = preprocessing_fn
        self._schema = schema
        self._folder = folder
        self._ready: list[Any] = []  # of tf.Transform's TensorSink
        self._accumulations: dict[str, Accumulation] = {}
        self.pending_names: set[str] = set()
        self._tracker = annotators.ObjectTracker()  # keeps what is made in the trace
        context = graph_context.TFGraphContext(tf.Module(), folder, known)
        self.specs = source_of(schema).TensorAdapter().TypeSpecs()
        with annotators.object_tracker_scope(self._tracker):
            self.traced = impl_helper.get_traced_transform_fn(self._trace, self.specs, context).get_concrete_function()
        self.inputs = tf2_utils.get_structured_inputs_from_func_graph(self.traced.graph)

    def _trace(self, inputs: dict[str, Any]) -> dict[str, Any]:
        graph = tf.compat.v1.get_default_graph()
        features = self._preprocessing_fn(dict(inputs))
        pending = graph.get_collection(analyzer_nodes.TENSOR_REPLACEMENTS)
        if not pending:
            return features
        self.pending_names = {sink.tensor.name for sink in pending}
        analyzer = graph_tools.InitializableGraphAnalyzer(graph, inputs, [(sink.tensor, False) for sink in pending])
        traverser = nodes.Traverser(Accumulations())
        needed: dict[str, tf.Tensor] = {}
        for sink in pending:
            accumulations = traverser.visit_value_node(sink.future)
            tensors = {tensor.name: tensor for found in accumulations for tensor in found.tensors}
            if all(map(analyzer.ready_to_run, tensors.values())):
                self._ready.append(sink)
                self._accumulations |= {found.label: found for found in accumulations}
                needed |= tensors
        assert self._ready, "each analysis depends on another"
        return needed

    def check_pending(self, names: set[str]) -> None:
        """Raise a UserError where something else is to be analyzed than what an earlier trace has left."""
        if self.pending_names != names:
            found, expected = (", ".join(sorted(some)) or "nothing" for some in (self.pending_names, names))
            raise UserError(
                f"preprocessing_fn does not analyze the same in each call: left are {found}, expected {expected}; "
                "let it call the analyzers in the same order, with the same names"
            )

    def compute(self, files: Sequence[str], cache: Cache | None) -> dict[str, tf.Tensor]:
        """Return the values of what can be analyzed, by the name of the tensor that each stands for."""
        accumulators = self._new_accumulators()
        if cache is None:
            self._add(accumulators, files)
            files = ()
        for file in files:
            assert cache
            folder = cache.folder(file)
            if not kept.is_whole(folder):
                of_file = self._new_accumulators()
                self._add(of_file, [file])
                kept.write_value(folder, {label: accumulator.value for label, accumulator in of_file.items()})
                kept.seal(folder)
            for label, value in kept.read_value(folder).items():
                accumulators[label].merge(value)
        accumulated = {label: accumulator.value for label, accumulator in accumulators.items()}
        traverser = nodes.Traverser(Values(accumulated, self._folder))
        return {
            sink.tensor.name: tf.constant(traverser.visit_value_node(sink.future), sink.tensor.dtype)
            for sink in self._ready
        }

    def _new_accumulators(self) -> dict[str, Any]:
        return {label: accumulation.new_accumulator() for label, accumulation in self._accumulations.items()}

    def _add(self, accumulators: dict[str, Any], files: Iterable[str]) -> None:
        """Add the rows of files to the accumulators."""
        for columns in self._sources(files):
            for label, accumulation in self._accumulations.items():
                accumulators[label].add(*(columns[tensor.name] for tensor in accumulation.tensors))

    def _sources(self, files: Iterable[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield the tensors that are analyzed, of each block of files; only the columns they are made of are read."""
        outputs = list(self.traced.structured_outputs.values())
        schema, config = projected(
            self._schema, graph_tools.get_dependent_inputs(self.traced.graph, self.inputs, outputs)
        )
        adapter = tfxio.TensorAdapter(config)
        # Nothing depends on the others, but the function takes them: one row of nothing.
        missing = self.inputs.keys() - adapter.TypeSpecs().keys()
        supply = tf.function(lambda: tf2_utils.supply_missing_inputs(self.inputs, 1, missing), autograph=False)
        others = supply.get_concrete_function()() if missing else {}
        for tensors in _tensors(files, schema, adapter):
            yield {name: value.numpy() for name, value in self.traced({**tensors, **others}).items()}


def _tensors(files: Iterable[str], schema: schema_pb2.Schema, adapter: tfxio.TensorAdapter) -> Iterator[dict[str, Any]]:
    serialized = schema.SerializeToString()
    for file in files:
        for block in read_blocks(file, serialized):
            yield adapter.ToBatchTensors(block, produce_eager_tensors=True)


def source_of(schema: schema_pb2.Schema) -> Any:
    """Return what makes tensors of tf.Examples by a schema."""
    return tfxio.TFExampleRecord(file_pattern="", schema=schema, telemetry_descriptors=["Transform"])


def projected(
    schema: schema_pb2.Schema, columns: Collection[str]
) -> tuple[schema_pb2.Schema, tfxio.TensorAdapterConfig]:
    """Return the schema and tensors of some columns; of all where columns make up others, or none is named."""
    whole = source_of(schema)
    if not columns or schema.sparse_feature or schema.tensor_representation_group:
        return schema, whole.TensorAdapterConfig()
    needed = schema_pb2.Schema()
    needed.CopyFrom(schema)
    del needed.feature[:]
    needed.feature.extend(feature for feature in schema.feature if feature.name in columns)
    part = source_of(needed).TensorAdapterConfig()
    type_specs = whole.TensorAdapter().OriginalTypeSpecs()
    return needed, tfxio.TensorAdapterConfig(part.arrow_schema, part.tensor_representations, type_specs)
