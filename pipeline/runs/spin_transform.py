"""Make the features of a few rows as Transform makes them, at once: without Beam, SavedModels and files between.

Beam's graph, its runner and three SavedModels take more than ten seconds, whatever the rows. What tf.Transform hands to
Beam is a graph of small operations (``tensorflow_transform.nodes``), and what they compute is written in classes that
need no Beam, such as the combiners. Here these are called on the rows, in the phases of tf.Transform's own loop
(``analysis_graph_builder.build``): ``preprocessing_fn`` is traced, what it analyzes is computed as far as it can be
known, and it is traced again with the results, until nothing is left.
"""

import collections
import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform import (
    analyzer_nodes,
    analyzers,
    annotators,
    graph_context,
    graph_tools,
    impl_helper,
    nodes,
    schema_inference,
)
from tensorflow_transform.beam import analyzer_impls
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io
from tfx.components.transform import executor_utils
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder
from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

from pipeline.components.base import Artifacts, read_schema
from pipeline.components.blocks import files_of
from pipeline.components.transform import Encoder, TransformExecutor, source_of
from pipeline.data.decoded_blocks import BLOCK
from pipeline.data.shard_files import write_records
from pipeline.data.tfrecord_files import read_records

PreprocessingFn = Callable[[dict[str, Any]], dict[str, Any]]
# Values of an analysis in each block of rows, and words behind their counts or weights.
Batches = list[tuple[np.ndarray, ...]]
Counted = list[tuple[Any, Any]]

_WITH_SEVERAL_OUTPUTS = (
    analyzer_nodes.ExtractCombineMergeOutputs,
    analyzer_nodes.CacheableCombinePerKeyFormatKeys,
    analyzer_nodes.ScaleAndFlattenPerKeyBucketBouandaries,
)


class OnlyInBeam(Exception):
    """Something that is not computed here, such as a PTransform, or words in the order of what they tell of a label."""


def run(executor: TransformExecutor, inputs: Artifacts, outputs: Artifacts, properties: dict[str, Any]) -> None:
    """Write the features of the rows that are analyzed, and their schema, as the executor would.

    Args:
        executor: Of Transform; it finds the preprocessing_fn.
        inputs: "examples", few enough to be in memory, and "schema".
        outputs: "transformed_examples" and "transform_graph", in a folder that is never the same twice.
        properties: Of the step; the module file is importable by its "module_path".

    Raises:
        OnlyInBeam: something is analyzed that is not computed here; nothing is written.
        Exception: what the preprocessing_fn raises, and what tf.Transform says of values that are no features.
    """
    (examples,), (graph,), (transformed,) = (
        inputs["examples"],
        outputs["transform_graph"],
        outputs["transformed_examples"],
    )
    raw = read_schema(inputs["schema"])
    splits = executor_utils.ResolveSplitsConfig(properties.get("splits_config"), [examples]).analyze
    decoder = ExamplesToRecordBatchDecoder(raw.SerializeToString())
    rows = {
        split: [
            decoder.DecodeBatch(records) for file in files_of(examples, split) for records in read_records(file, BLOCK)
        ]
        for split in splits
    }
    preprocessing_fn = executor.preprocessing_fn(properties["module_path"], properties)
    blocks = [block for split in splits for block in rows[split]]
    schema, features_of_blocks = features(preprocessing_fn, source_of(raw).TensorAdapter(), blocks, Path(graph.uri))
    metadata = dataset_metadata.DatasetMetadata(schema)
    metadata_io.write_metadata(metadata, f"{graph.uri}/{tft.TFTransformOutput.TRANSFORMED_METADATA_DIR}")
    encoder, of_blocks = Encoder(schema), iter(features_of_blocks)
    for split in splits:
        records = [record for _ in rows[split] for record in encoder.encode(next(of_blocks))]
        write_records(records, f"{transformed.uri}/Split-{split}/features.gz", transformed.uri)


def features(
    preprocessing_fn: PreprocessingFn, adapter: TensorAdapter, rows: Iterable[pa.RecordBatch], folder: Path
) -> tuple[schema_pb2.Schema, list[dict[str, Any]]]:
    """Analyze rows; return the schema of their features, and the features of each block of rows.

    Args:
        preprocessing_fn: The module file's.
        adapter: Makes tensors of rows.
        rows: Blocks of them.
        folder: For vocabularies; never the same twice, for tables are cached by the path of their words.

    Raises:
        OnlyInBeam: something is analyzed that is not computed here.
        Exception: what the preprocessing_fn raises, and what tf.Transform says of values that are no features.
    """
    blocks = [adapter.ToBatchTensors(block, produce_eager_tensors=True) for block in rows]
    known: dict[str, tf.Tensor] = {}
    while True:
        phase = _Phase(preprocessing_fn)
        context = graph_context.TFGraphContext(tf.Module(), str(folder), known)
        with annotators.object_tracker_scope(annotators.ObjectTracker()):
            traced = impl_helper.get_traced_transform_fn(phase, adapter.TypeSpecs(), context).get_concrete_function()
            if not phase.pending:
                if schema_inference._get_sparse_output_annotations(traced.graph):
                    raise OnlyInBeam("a sparse feature whose shape is annotated")
                schema = schema_inference.infer_feature_schema_v2(
                    traced.structured_outputs, dict, evaluate_schema_overrides=True
                )
                return schema, [traced(block) for block in blocks]
            sources = [{name: value.numpy() for name, value in traced(block).items()} for block in blocks]
        known |= phase.compute(sources, folder)


class _Phase:
    """A preprocessing_fn of which the trace returns what can be analyzed next; the features when that is nothing.

    Attributes:
        pending: What is still to be analyzed (``analyzer_nodes.TensorSink``), after a trace.
    """

    def __init__(self, preprocessing_fn: PreprocessingFn):
        self._preprocessing_fn = preprocessing_fn
        self.pending: list[Any] = []
        self._ready: list[Any] = []

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        graph = tf.compat.v1.get_default_graph()
        outputs = self._preprocessing_fn(dict(inputs))
        self.pending = graph.get_collection(analyzer_nodes.TENSOR_REPLACEMENTS)
        if not self.pending:
            return outputs
        analyzer = graph_tools.InitializableGraphAnalyzer(
            graph, inputs, [(sink.tensor, False) for sink in self.pending]
        )
        sources = nodes.Traverser(_Sources())
        tensors: dict[str, tf.Tensor] = {}
        for sink in self.pending:
            needed = sources.visit_value_node(sink.future)
            if all(map(analyzer.ready_to_run, needed)):
                self._ready.append(sink)
                tensors |= {tensor.name: tensor for tensor in needed}
        assert self._ready, "no analysis can go first"
        return tensors

    def compute(self, sources: Sequence[Mapping[str, np.ndarray]], folder: Path) -> dict[str, tf.Tensor]:
        """Return the values of what is ready, by the name of the tensor that they stand for.

        Args:
            sources: The tensors that the trace has returned, of each block of rows.
            folder: For vocabularies.
        """
        values = nodes.Traverser(_Operations(sources, folder))
        return {
            sink.tensor.name: tf.constant(values.visit_value_node(sink.future), sink.tensor.dtype)
            for sink in self._ready
        }


class _Sources(nodes.Visitor):
    """The tensors that an analysis is made of."""

    def visit(self, operation_def: Any, input_values: tuple[Any, ...]) -> tuple[Any, ...]:
        if isinstance(operation_def, analyzer_nodes.TensorSource):
            tensors = list(operation_def.tensors)
        else:
            tensors = [tensor for tensors in input_values for tensor in tensors]
        return (tensors,) * operation_def.num_outputs

    def validate_value(self, value: Any) -> None:
        pass


class _Operations(nodes.Visitor):
    """Compute what the operations of an analysis are defined to compute (``analyzer_impls``)."""

    def __init__(self, sources: Sequence[Mapping[str, np.ndarray]], folder: Path):
        self._compute: dict[type, Callable[..., Any]] = {
            analyzer_nodes.TensorSource: lambda op: [
                tuple(block[tensor.name] for tensor in op.tensors) for block in sources
            ],
            analyzer_nodes.CacheableCombineAccumulate: lambda op, batches: _accumulate(op.combiner, batches),
            analyzer_nodes.CacheableCombineMerge: lambda op, accumulator: _extract(op.combiner, accumulator),
            analyzer_nodes.ExtractCombineMergeOutputs: lambda op, outputs: outputs,
            analyzer_nodes.CacheableCombinePerKeyAccumulate: _accumulate_per_key,
            analyzer_nodes.CacheableCombinePerKeyMerge: lambda op, accumulators: [
                (key, _extract(op.combiner, accumulator)) for key, accumulator in accumulators
            ],
            analyzer_nodes.CacheableCombinePerKeyFormatKeys: _format_keys,
            analyzer_nodes.CacheableCombinePerKeyFormatLarge: lambda op, outputs: [
                (",".join(map(tf.compat.as_str_any, values)), key) for key, values in outputs
            ],
            analyzer_nodes.ScaleAndFlattenPerKeyBucketBouandaries: lambda op, rows: analyzer_impls._join_boundary_rows(
                rows
            ),
            analyzer_nodes.VocabularyAccumulate: _count_words,
            analyzer_nodes.VocabularyMerge: lambda op, counts: [(count, word) for word, count in counts.items()],
            analyzer_nodes.VocabularyPrune: _prune,
            analyzer_nodes.VocabularyCount: lambda op, counted: np.int64(max(len(counted), 1)),
            analyzer_nodes.VocabularyOrderAndWrite: lambda op, *counted: _write(op, folder, *counted),
        }

    def visit(self, operation_def: Any, input_values: tuple[Any, ...]) -> tuple[Any, ...]:
        compute = self._compute.get(type(operation_def))
        if compute is None:
            raise OnlyInBeam(operation_def.label)
        outputs = compute(operation_def, *input_values)
        return tuple(outputs) if isinstance(operation_def, _WITH_SEVERAL_OUTPUTS) else (outputs,)

    def validate_value(self, value: Any) -> None:
        pass


def _accumulate(combiner: analyzer_nodes.Combiner, batches: Batches) -> Any:
    accumulator = combiner.create_accumulator()
    for batch in batches:
        accumulator = combiner.add_input(accumulator, batch)
    return accumulator


def _extract(combiner: analyzer_nodes.Combiner, accumulator: Any) -> Any:
    return combiner.extract_output(combiner.merge_accumulators([accumulator]))


def _accumulate_per_key(op: Any, batches: Batches) -> list[tuple[Any, Any]]:
    accumulators: dict[Any, Any] = {}
    for batch in batches:
        for key, values in analyzer_impls._split_inputs_by_key(batch):
            if key not in accumulators:
                accumulators[key] = op.combiner.create_accumulator()
            accumulators[key] = op.combiner.add_input(accumulators[key], values)
    return list(accumulators.items())


def _format_keys(op: Any, outputs: list[tuple[Any, Any]]) -> list[Any]:
    types = [info.dtype for info in op.combiner.output_tensor_infos()]
    return [tagged.value for tagged in analyzer_impls._merge_outputs_by_key(outputs, types)]


def _count_words(op: Any, batches: Batches) -> Mapping[Any, Any]:
    ordering = analyzers._VocabOrderingType
    if op.vocab_ordering_type == ordering.FREQUENCY:
        return collections.Counter(word for (words,) in batches for word in words.tolist())
    if op.vocab_ordering_type != ordering.WEIGHTED_FREQUENCY:
        raise OnlyInBeam(op.label)
    weights: dict[Any, float] = collections.defaultdict(float)
    for words, of_words in batches:
        for word, weight in zip(words.tolist(), of_words.tolist(), strict=True):
            weights[word] += weight
    return weights


def _prune(op: Any, counted: Counted) -> Counted:
    kept = _most_frequent(counted, op.input_dtype, op.frequency_threshold)
    if op.top_k is not None:
        kept = heapq.nlargest(op.top_k, kept)
    if op.key_fn:
        of_keys: dict[Any, Counted] = collections.defaultdict(list)
        for count, word in _most_frequent(counted, op.input_dtype, op.coverage_frequency_threshold):
            of_keys[op.key_fn(word)].append((count, word))
        kept = [*kept, *(pair for pairs in of_keys.values() for pair in heapq.nlargest(op.coverage_top_k, pairs))]
    return list(dict.fromkeys(kept))


def _most_frequent(counted: Counted, dtype: str, threshold: float) -> Counted:
    kept = [(count, word) for count, word in counted if count >= threshold]
    if dtype == tf.string.name:
        return kept
    return [(count, tf.compat.as_bytes(tf.compat.as_str_any(word))) for count, word in kept]


def _write(op: Any, folder: Path, counted: Counted, *reserved: Any) -> np.ndarray:
    if reserved:
        raise OnlyInBeam(op.label)
    order = {"key": _fingerprint} if op.fingerprint_shuffle else {"reverse": True}
    ordered = analyzer_impls._OrderElementsFn(op.store_frequency, order, op.input_dtype).process(None, [counted])
    path = folder / op.vocab_filename
    path.parent.mkdir(parents=True, exist_ok=True)
    if op.file_format == "text":
        path.write_bytes(b"".join(word + b"\n" for word in ordered))
        return np.array(str(path))
    path = path.with_name(f"{path.name}.tfrecord.gz")
    with tf.io.TFRecordWriter(str(path), "GZIP") as file:
        for word in ordered:
            file.write(word)
    return np.array(str(path))


def _fingerprint(counted: tuple[Any, Any]) -> bytes:
    return hashlib.sha1(counted[1], usedforsecurity=False).digest()
