"""What the Evaluator leaves out before it takes batches apart."""

from __future__ import annotations

import numpy as np
from tensorflow_model_analysis.api.model_eval_lib import default_extractors
from tensorflow_model_analysis.proto import config_pb2

from pipeline.components.evaluator import _keep, custom_extractors

SLICES = [
    config_pb2.SlicingSpec(),
    config_pb2.SlicingSpec(feature_keys=["origin"]),
    config_pb2.SlicingSpec(feature_values={"carrier": "UA"}),
]


def config(**more: object) -> config_pb2.EvalConfig:
    return config_pb2.EvalConfig(
        model_specs=[config_pb2.ModelSpec(label_key="late", prediction_key="probability")], slicing_specs=SLICES, **more
    )


def names(eval_config: config_pb2.EvalConfig) -> list[str]:
    return [one.stage_name for one in custom_extractors(None, eval_config, None)]


def test_one_more_step_stands_before_the_one_that_takes_batches_apart():
    usual = [one.stage_name for one in default_extractors(eval_config=config())]
    place = usual.index("ExtractUnbatchedInputs")
    assert names(config()) == [*usual[:place], "KeepSlicedFeatures", *usual[place:]]


def test_a_slice_by_a_query_keeps_everything():
    sql = config_pb2.EvalConfig(
        model_specs=[config_pb2.ModelSpec(label_key="late")],
        slicing_specs=[config_pb2.SlicingSpec(slice_keys_sql="SELECT STRUCT(origin) FROM example.feature")],
    )
    assert "KeepSlicedFeatures" not in names(sql)


def test_labels_predictions_and_sliced_features_stay():
    batch = {
        "input": np.array([b"..."]),
        "features": {"origin": np.array([["EWR"]]), "temp": np.array([[7.0]])},
        "labels": np.array([1]),
        "predictions": {"probability": np.array([0.5])},
    }
    kept = _keep(batch, {"origin"})
    assert set(kept) == {"features", "labels", "predictions"}
    assert set(kept["features"]) == {"origin"}
    assert set(batch["features"]) == {"origin", "temp"}
