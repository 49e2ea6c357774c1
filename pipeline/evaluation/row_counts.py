"""A metric of TFMA that counts rows where they have weights, and says how many rows of equal weight tell as much."""

from collections.abc import Iterable, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
from tensorflow_model_analysis import constants
from tensorflow_model_analysis.metrics import metric_types

EXAMPLE_COUNT, EFFECTIVE_COUNT = "example_count", "effective_count"
# Rows, the sum of their weights, and that of their squares.
Sums = tuple[int, float, float]


class RowCounts(metric_types.Metric):
    """Number of rows, and their effective number: (sum of w)^2 / sum of w^2 (Kish 1965, "Survey Sampling").

    TFMA's ExampleCount is the sum of the weights, where they are counted at all.
    """

    def __init__(self, name: str = EXAMPLE_COUNT):
        super().__init__(_computations, name=name)


metric_types.register_metric(RowCounts)


def _computations(
    name: str, model_names: list[str] | None = None, example_weighted: bool = False
) -> metric_types.MetricComputations:
    """Return a computation for each model; its weights are those of the rows, so equal in all."""
    computations = []
    for model in model_names or [""]:
        keys = [
            metric_types.MetricKey(name=key, model_name=model, example_weighted=example_weighted)
            for key in (name, EFFECTIVE_COUNT)
        ]
        inputs = metric_types.StandardMetricInputsPreprocessor(
            include_filter={constants.EXAMPLE_WEIGHTS_KEY: {}}, include_default_inputs=False
        )
        computations.append(
            metric_types.MetricComputation(keys=keys, preprocessors=[inputs], combiner=_Combiner(model, keys))
        )
    return computations


class _Combiner(beam.CombineFn):
    """Sum the rows and weights of a slice."""

    def __init__(self, model: str, keys: list[metric_types.MetricKey]):
        self._model, self._keys = model, keys

    def create_accumulator(self) -> Sums:
        return 0, 0.0, 0.0

    def add_input(self, sums: Sums, element: metric_types.StandardMetricInputs) -> Sums:
        weights: Any = element.example_weight
        if isinstance(weights, Mapping):
            weights = weights[self._model]
        values = np.asarray(weights, np.float64)
        return sums[0] + values.size, sums[1] + values.sum(), sums[2] + np.square(values).sum()

    def merge_accumulators(self, several: Iterable[Sums]) -> Sums:
        rows, total, squares = zip(*several, strict=True)
        return sum(rows), sum(total), sum(squares)

    def extract_output(self, sums: Sums) -> dict[metric_types.MetricKey, float]:
        rows, total, squares = sums
        return dict(zip(self._keys, (float(rows), total**2 / squares if squares else 0.0), strict=True))
