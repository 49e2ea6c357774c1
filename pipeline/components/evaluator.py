"""What TFX's Evaluator takes from the examples: predictions, labels, and only the features that it slices by.

TensorFlow Model Analysis turns every feature of every batch into one Python object per example before it slices, which
takes longer than all the metrics. What no metric or slice reads is left out before that.
"""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from tensorflow_model_analysis import constants
from tensorflow_model_analysis.api.model_eval_lib import default_extractors
from tensorflow_model_analysis.extractors import extractor, unbatch_extractor
from tensorflow_model_analysis.proto import config_pb2


def custom_extractors(
    eval_shared_model: Any, eval_config: config_pb2.EvalConfig, tensor_adapter_config: Any
) -> list[extractor.Extractor]:
    """TFMA's extractors, with one more before the step that takes batches apart; TFX's Evaluator calls this."""
    extractors = default_extractors(
        eval_shared_model=eval_shared_model, eval_config=eval_config, tensor_adapter_config=tensor_adapter_config
    )
    if any(spec.slice_keys_sql for spec in eval_config.slicing_specs):
        return extractors  # a query may read any feature
    needed = {key for spec in eval_config.slicing_specs for key in (*spec.feature_keys, *spec.feature_values)}
    for spec in eval_config.cross_slicing_specs:
        for one in (spec.baseline_spec, *spec.slicing_specs):
            needed |= {*one.feature_keys, *one.feature_values}
    unbatch = unbatch_extractor.UNBATCH_EXTRACTOR_STAGE_NAME
    place = [one.stage_name for one in extractors].index(unbatch)
    extractors.insert(place, extractor.Extractor("KeepSlicedFeatures", beam.Map(_keep, needed)))
    return extractors


def _keep(batch: dict[str, Any], needed: set[str]) -> dict[str, Any]:
    """The batch with the features that are needed, and without the serialized examples."""
    kept = {key: value for key, value in batch.items() if key != constants.INPUT_KEY}
    for key in (constants.FEATURES_KEY, constants.TRANSFORMED_FEATURES_KEY):
        if isinstance(kept.get(key), dict):
            kept[key] = {name: value for name, value in kept[key].items() if name in needed}
    return kept
