"""Give TFMA all rows of a batch that are in a slice as one value.

TFMA makes a Python object of every example, and each of its metrics takes the label and the prediction out of it again
for every slice: half of the Evaluator's time. The metrics of ``array_metrics`` get all rows of a batch and a slice at
once, and give the same values (tests/fast/test_slicing.py).
"""

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
import pandas as pd
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.extractors import Extractor, slice_key_extractor
from tensorflow_model_analysis.proto import config_pb2
from tensorflow_model_analysis.slicer import slicer_lib
from tensorflow_model_analysis.utils import util

MEASURED_KEYS = (tfma.LABELS_KEY, tfma.PREDICTIONS_KEY)


def by_slice(extractors: list[Extractor], config: config_pb2.EvalConfig) -> list[Extractor]:
    """Return TFMA's extractors, with one in place of the two that split a batch into examples and find their slices.

    Args:
        extractors: As ``default_extractors`` makes them.
        config: Without confidence intervals and with metrics only that take arrays; what counts examples must count
            their weights.

    Raises:
        AssertionError: TFMA has other extractors than expected.
    """
    replaced = (tfma.extractors.UnbatchExtractor().stage_name, tfma.extractors.SLICE_KEY_EXTRACTOR_STAGE_NAME)
    names = [extractor.stage_name for extractor in extractors]
    place = names.index(replaced[0])
    if tuple(names[place : place + 2]) != replaced:
        raise AssertionError(f"expected TFMA's extractors {replaced[0]} and then {replaced[1]}, found {names}")
    grouped = Extractor(replaced[1], beam.ParDo(GroupBySlice(config)))  # evaluators come after one of that name
    return [*extractors[:place], grouped, *extractors[place + 2 :]]


class GroupBySlice(beam.DoFn):
    """Extracts of a batch → one extract for each slice, with all rows that are in it."""

    def __init__(self, config: config_pb2.EvalConfig):
        self._specs = [tfma.slicer.SingleSliceSpec(spec=spec) for spec in config.slicing_specs]
        self._columns = {key for spec in config.slicing_specs for key in (*spec.feature_keys, *spec.feature_values)}
        self._slice_keys = slice_key_extractor.ExtractSliceKeysFn(config, materialize=False)

    def process(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield extracts with labels and predictions [rows, ...], weights or ones [rows], and one slice key."""
        rows_by_slice: dict[Any, list[int]] = defaultdict(list)
        for keys, rows in self._rows_by_value(batch):
            for key in keys:
                rows_by_slice[key] += rows
        for key, rows in rows_by_slice.items():
            yield {
                **{name: _rows_of(batch[name], rows) for name in MEASURED_KEYS},
                tfma.EXAMPLE_WEIGHTS_KEY: _weights_of(batch[tfma.EXAMPLE_WEIGHTS_KEY], rows)
                if tfma.EXAMPLE_WEIGHTS_KEY in batch
                else np.ones(len(rows), np.float32),
                tfma.SLICE_KEY_TYPES_KEY: slicer_lib.slice_keys_to_numpy_array([key]),
            }

    def _rows_by_value(self, batch: dict[str, Any]) -> Iterable[tuple[Any, list[int]]]:
        """Return slice keys, with the rows that have the same values in the slicing columns."""
        labels = batch[tfma.LABELS_KEY]
        while isinstance(labels, Mapping):  # by model, by output
            labels = next(iter(labels.values()))
        features = {name: values for name, values in batch[tfma.FEATURES_KEY].items() if name in self._columns}
        if not features:
            return [(self._slices_of({tfma.FEATURES_KEY: {}}), list(range(len(labels))))]
        if all(isinstance(values, np.ndarray) and values.shape[1:] == (1,) for values in features.values()):
            return [(self._slices_of(values), rows) for values, rows in _by_single_values(features)]
        seen: dict[bytes, tuple[dict[str, Any], list[int]]] = {}
        for row, values in enumerate(util.split_extracts({tfma.FEATURES_KEY: features})):
            seen.setdefault(pickle.dumps(values), (values, []))[1].append(row)
        return [(self._slices_of(values), rows) for values, rows in seen.values()]

    def _slices_of(self, values: dict[str, Any]) -> Any:
        (extracts,) = self._slice_keys.process(values, self._specs)
        return extracts[tfma.SLICE_KEY_TYPES_KEY]


def _by_single_values(features: Mapping[str, np.ndarray]) -> Iterable[tuple[dict[str, Any], list[int]]]:
    """Return extracts of features of one value, [rows, 1] by name, with the rows that have the same ones."""
    codes = np.stack([pd.factorize(values.ravel())[0] for values in features.values()], axis=1)
    _, first, group = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    rows = np.argsort(group.ravel(), kind="stable")
    parts = np.split(rows, np.cumsum(np.bincount(group.ravel()))[:-1])
    values_of_groups = util.split_extracts({tfma.FEATURES_KEY: {name: item[first] for name, item in features.items()}})
    return zip(values_of_groups, [part.tolist() for part in parts], strict=True)


def _weights_of(values: Any, rows: list[int]) -> Any:
    if isinstance(values, Mapping):  # by model
        return {key: _weights_of(value, rows) for key, value in values.items()}
    return np.asarray(values[rows], np.float32).ravel()


def _rows_of(values: Any, rows: list[int]) -> Any:
    if isinstance(values, Mapping):
        return {key: _rows_of(value, rows) for key, value in values.items()}
    return values[rows]
