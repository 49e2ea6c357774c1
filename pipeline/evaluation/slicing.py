"""All rows of a batch that are in one slice, as one value for TFMA.

TFMA makes a Python object of every example, and each of its metrics takes the label and the prediction out of it again
for every slice it is in: half of the Evaluator's time. Most of its metrics take arrays as well, one pair of label and
prediction after the other (``flatten`` in TFMA's ``to_label_prediction_example_weight``): those get all rows of a batch
and a slice at once, and come to the same values (tests/evaluation/test_slicing.py).
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
from tensorflow_model_analysis import constants
from tensorflow_model_analysis.extractors import extractor, slice_key_extractor, unbatch_extractor
from tensorflow_model_analysis.proto import config_pb2
from tensorflow_model_analysis.slicer import slicer_lib
from tensorflow_model_analysis.utils import util

MEASURED = (constants.LABELS_KEY, constants.PREDICTIONS_KEY)


def by_slice(extractors: list[extractor.Extractor], config: config_pb2.EvalConfig) -> list[extractor.Extractor]:
    """TFMA's extractors, with one in place of the two that make examples of a batch and look for their slices.

    Args:
        extractors: As ``default_extractors`` makes them.
        config: Without confidence intervals and with metrics only that take arrays; what counts examples must count
            their weights.
    """
    both = (unbatch_extractor.UNBATCH_EXTRACTOR_STAGE_NAME, slice_key_extractor.SLICE_KEY_EXTRACTOR_STAGE_NAME)
    place = [one.stage_name for one in extractors].index(both[0])
    if tuple(one.stage_name for one in extractors[place : place + 2]) != both:
        raise AssertionError(f"TFMA's extractors have changed: {[one.stage_name for one in extractors]}")
    together = extractor.Extractor(both[1], beam.ParDo(RowsOfASlice(config)))  # evaluators come after one of that name
    return [*extractors[:place], together, *extractors[place + 2 :]]


def columns_of(config: config_pb2.EvalConfig) -> set[str]:
    """What is sliced by."""
    return {key for spec in config.slicing_specs for key in (*spec.feature_keys, *spec.feature_values)}


class RowsOfASlice(beam.DoFn):
    """A batch of extracts → for every slice that some of its rows are in, the extracts of all those rows."""

    def __init__(self, config: config_pb2.EvalConfig):
        self._specs = [slicer_lib.SingleSliceSpec(spec=spec) for spec in config.slicing_specs]
        self._columns = columns_of(config)
        self._keys_of = slice_key_extractor.ExtractSliceKeysFn(config, materialize=False)

    def process(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields extracts with labels and predictions [rows, ...], weights of 1 [rows] and one slice key."""
        rows_by_slice: dict[Any, list[int]] = defaultdict(list)
        for keys, rows in self._alike(batch):
            for key in keys:
                rows_by_slice[key] += rows
        for key, rows in rows_by_slice.items():
            yield {
                **{name: _rows_of(batch[name], rows) for name in MEASURED},
                constants.EXAMPLE_WEIGHTS_KEY: np.ones(len(rows), np.float32),
                constants.SLICE_KEY_TYPES_KEY: slicer_lib.slice_keys_to_numpy_array([key]),
            }

    def _alike(self, batch: dict[str, Any]) -> Iterable[tuple[Any, list[int]]]:
        """Rows with the same values in the columns one slices by, and the slices they are in."""
        examples = len(next(_arrays_of(batch[constants.LABELS_KEY])))
        features = {name: values for name, values in batch[constants.FEATURES_KEY].items() if name in self._columns}
        if not features:
            return [(self._slices_of({constants.FEATURES_KEY: {}}), list(range(examples)))]
        seen: dict[bytes, tuple[dict[str, Any], list[int]]] = {}
        for row, values in enumerate(util.split_extracts({constants.FEATURES_KEY: features})):
            seen.setdefault(pickle.dumps(values), (values, []))[1].append(row)
        return [(self._slices_of(values), rows) for values, rows in seen.values()]

    def _slices_of(self, values: dict[str, Any]) -> Any:
        (found,) = self._keys_of.process(values, self._specs)
        return found[constants.SLICE_KEY_TYPES_KEY]


def _rows_of(values: Any, rows: list[int]) -> Any:
    if isinstance(values, Mapping):
        return {key: _rows_of(value, rows) for key, value in values.items()}
    return values[rows]


def _arrays_of(values: Any) -> Iterator[Any]:
    if isinstance(values, Mapping):
        for value in values.values():
            yield from _arrays_of(value)
    else:
        yield values
