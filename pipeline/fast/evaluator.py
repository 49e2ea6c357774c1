"""Evaluator: replaces TFMA's row-by-row extraction and metrics in ``pipeline.components.evaluator``.

TFMA takes each batch of predictions apart into rows. Here all rows of a slice stay in one array (``slicing``), and the
metrics take arrays (``array_metrics``).

Gain: see docs/decisions/0035-the-fast-engine.md. Equality with TFMA's own metrics: tests/fast/test_slicing.py.
"""

from typing import Any

import apache_beam as beam
import tensorflow_model_analysis as tfma
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_model_analysis.extractors import Extractor
from tensorflow_model_analysis.proto import config_pb2

from pipeline.components.evaluator import EvaluatorExecutor
from pipeline.fast.array_metrics import of_arrays
from pipeline.fast.blocks import ReadBlocks
from pipeline.fast.slicing import by_slice


class FastEvaluatorExecutor(EvaluatorExecutor):
    """Evaluate all rows of a slice as one array."""

    def read(self, source: Any, files: list[str], schema: schema_pb2.Schema) -> beam.PTransform:
        """Return the transform that reads examples in blocks of a fixed size."""
        return ReadBlocks(files, schema, tfma.ARROW_INPUT_COLUMN)

    def extractors(
        self, config: config_pb2.EvalConfig, *arguments: Any, **named: Any
    ) -> tuple[config_pb2.EvalConfig, list[Extractor]]:
        """Return the config with metrics of arrays, and extractors that keep the rows of a slice together."""
        config, extractors = super().extractors(config, *arguments, **named)
        return of_arrays(config), by_slice(extractors, config)
