"""Compute the operations of a TensorFlow Transform analysis in this process.

tf.Transform describes an analysis as a graph of operations (``tensorflow_transform.nodes``), which Beam's transforms
compute (``tensorflow_transform.beam.analyzer_impls``). The same is computed here by the same classes, where these need
no Beam, such as the combiners: first accumulators over the rows, block by block, then what follows from them.
"""

import collections
import hashlib
import heapq
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_transform import analyzer_nodes, analyzers, nodes
from tensorflow_transform.beam import analyzer_impls

# Words behind their counts or weights.
Counted = list[tuple[Any, Any]]


class OnlyInBeam(Exception):
    """Something that is not computed here, such as a PTransform, or words in the order of what they tell of a label."""


class _CombinerAccumulator:
    """Apply a combiner to all rows."""

    def __init__(self, operation: Any):
        self._combiner = operation.combiner
        self.value = self._combiner.create_accumulator()

    def add(self, *columns: np.ndarray) -> None:
        self.value = self._combiner.add_input(self.value, columns)

    def merge(self, value: Any) -> None:
        self.value = self._combiner.merge_accumulators([self.value, value])


class _PerKeyAccumulator:
    """Apply a combiner to the rows of each key."""

    def __init__(self, operation: Any):
        self._combiner = operation.combiner
        self.value: dict[Any, Any] = {}

    def add(self, *columns: np.ndarray) -> None:
        for key, row in analyzer_impls._split_inputs_by_key(columns):
            of_key = self.value[key] if key in self.value else self._combiner.create_accumulator()
            self.value[key] = self._combiner.add_input(of_key, row)

    def merge(self, value: dict[Any, Any]) -> None:
        for key, other in value.items():
            known = [self.value[key]] if key in self.value else []
            self.value[key] = self._combiner.merge_accumulators([*known, other])


class _WordAccumulator:
    """Count words, or sum the weights of their rows."""

    def __init__(self, operation: Any):
        ordering = analyzers._VocabOrderingType
        if operation.vocab_ordering_type not in (ordering.FREQUENCY, ordering.WEIGHTED_FREQUENCY):
            raise OnlyInBeam(operation.label)
        self.value: collections.Counter[Any] = collections.Counter()

    def add(self, words: np.ndarray, weights: np.ndarray | None = None) -> None:
        if weights is None:
            self.value.update(words.tolist())
            return
        for word, weight in zip(words.tolist(), weights.tolist(), strict=True):
            self.value[word] += weight

    def merge(self, value: collections.Counter[Any]) -> None:
        self.value.update(value)


_ACCUMULATORS: dict[type, type[Any]] = {
    analyzer_nodes.CacheableCombineAccumulate: _CombinerAccumulator,
    analyzer_nodes.CacheableCombinePerKeyAccumulate: _PerKeyAccumulator,
    analyzer_nodes.VocabularyAccumulate: _WordAccumulator,
}


@dataclass(frozen=True)
class Accumulation:
    """An operation over rows.

    Attributes:
        label: Of the operation, unique in its graph.
        tensors: Whose values it reads.
        new_accumulator: Returns an accumulator. Its ``add`` takes the values of the tensors in a block of rows, its
            ``merge`` the ``value`` of another accumulator.
    """

    label: str
    tensors: tuple[tf.Tensor, ...]
    new_accumulator: Callable[[], Any]


class Accumulations(nodes.Visitor):
    """Find the accumulations that an operation depends on.

    Raises:
        OnlyInBeam: an operation is not computed here.
    """

    def visit(self, operation_def: Any, input_values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return them as a list, once for each output."""
        kind = type(operation_def)
        if kind is analyzer_nodes.TensorSource:
            return (tuple(operation_def.tensors),)
        if kind in _ACCUMULATORS:
            (tensors,) = input_values
            create = _ACCUMULATORS[kind]
            create(operation_def)  # raises OnlyInBeam before any row is read
            return ([Accumulation(operation_def.label, tensors, lambda: create(operation_def))],)
        if kind not in _COMPUTED:
            raise OnlyInBeam(operation_def.label)
        return ([found for several in input_values for found in several],) * operation_def.num_outputs

    def validate_value(self, value: Any) -> None:
        """Take any."""


class Values(nodes.Visitor):
    """Compute the values of operations, of which vocabularies are written to files.

    Args:
        accumulated: Values of accumulators by the label of their operation.
        folder: For vocabularies.
    """

    def __init__(self, accumulated: Mapping[str, Any], folder: str):
        self._accumulated = accumulated
        self._folder = folder

    def visit(self, operation_def: Any, input_values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the value of each output."""
        kind = type(operation_def)
        if kind is analyzer_nodes.TensorSource:
            return (None,)
        if kind in _ACCUMULATORS:
            return (self._accumulated[operation_def.label],)
        if kind is analyzer_nodes.VocabularyOrderAndWrite:
            (counted,) = input_values
            return (_write(operation_def, counted, self._folder),)
        value = _COMPUTED[kind](operation_def, *input_values)
        return tuple(value) if kind in _OF_SEVERAL_OUTPUTS else (value,)

    def validate_value(self, value: Any) -> None:
        """Take any."""


def _extract(operation: Any, accumulator: Any) -> Any:
    return operation.combiner.extract_output(operation.combiner.merge_accumulators([accumulator]))


def _extract_per_key(operation: Any, accumulators: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return [(key, _extract(operation, accumulator)) for key, accumulator in accumulators.items()]


def _format_keys(operation: Any, outputs: list[tuple[Any, Any]]) -> list[Any]:
    types = [info.dtype for info in operation.combiner.output_tensor_infos()]
    return [tagged.value for tagged in analyzer_impls._merge_outputs_by_key(outputs, types)]


def _format_large(_: Any, outputs: list[tuple[Any, Any]]) -> Counted:
    return [(",".join(map(tf.compat.as_str_any, values)), key) for key, values in outputs]


def _prune(operation: Any, counted: Counted) -> Counted:
    kept = _frequent(counted, operation.input_dtype, operation.frequency_threshold)
    if operation.top_k is not None:
        kept = heapq.nlargest(operation.top_k, kept)
    if operation.key_fn:
        of_keys: dict[Any, Counted] = collections.defaultdict(list)
        for count, word in _frequent(counted, operation.input_dtype, operation.coverage_frequency_threshold):
            of_keys[operation.key_fn(word)].append((count, word))
        for of_key in of_keys.values():
            kept += heapq.nlargest(operation.coverage_top_k, of_key)
    return list(dict.fromkeys(kept))


def _frequent(counted: Counted, dtype: str, threshold: float) -> Counted:
    kept = [(count, word) for count, word in counted if count >= threshold]
    if dtype == tf.string.name:
        return kept
    return [(count, tf.compat.as_bytes(tf.compat.as_str_any(word))) for count, word in kept]


def _write(operation: Any, counted: Counted, folder: str) -> np.ndarray:
    """Write a vocabulary, largest counts first, or in an order by chance; return its path."""
    order = {"key": _digest} if operation.fingerprint_shuffle else {"reverse": True}
    ordering = analyzer_impls._OrderElementsFn(operation.store_frequency, order, operation.input_dtype)
    words = ordering.process(None, [counted])
    path = os.path.join(folder, operation.vocab_filename)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if operation.file_format == "text":
        with open(path, "wb") as file:
            file.writelines(word + b"\n" for word in words)
        return np.array(path)
    with tf.io.TFRecordWriter(f"{path}.tfrecord.gz", "GZIP") as writer:
        for word in words:
            writer.write(word)
    return np.array(f"{path}.tfrecord.gz")


def _digest(counted: tuple[Any, bytes]) -> bytes:
    return hashlib.sha1(counted[1], usedforsecurity=False).digest()


_COMPUTED: dict[type, Callable[..., Any]] = {
    analyzer_nodes.CacheableCombineMerge: _extract,
    analyzer_nodes.ExtractCombineMergeOutputs: lambda _, outputs: outputs,
    analyzer_nodes.CacheableCombinePerKeyMerge: _extract_per_key,
    analyzer_nodes.CacheableCombinePerKeyFormatKeys: _format_keys,
    analyzer_nodes.CacheableCombinePerKeyFormatLarge: _format_large,
    analyzer_nodes.ScaleAndFlattenPerKeyBucketBouandaries: lambda _, rows: analyzer_impls._join_boundary_rows(rows),
    analyzer_nodes.VocabularyMerge: lambda _, counts: [(count, word) for word, count in counts.items()],
    analyzer_nodes.VocabularyPrune: _prune,
    analyzer_nodes.VocabularyCount: lambda _, counted: np.int64(max(len(counted), 1)),  # one stands for no word at all
    analyzer_nodes.VocabularyOrderAndWrite: _write,
}
_OF_SEVERAL_OUTPUTS = (
    analyzer_nodes.ExtractCombineMergeOutputs,
    analyzer_nodes.CacheableCombinePerKeyFormatKeys,
    analyzer_nodes.ScaleAndFlattenPerKeyBucketBouandaries,
)
