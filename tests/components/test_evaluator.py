"""Columns that the Evaluator leaves out before it takes batches apart, and baselines that it compares with."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_model_analysis.api.model_eval_lib import default_extractors
from tensorflow_model_analysis.proto import config_pb2
from tfx.types import standard_artifacts

from pipeline.components.artifacts import read_gate_result
from pipeline.components.evaluator import _keep_features, bless, create_extractors, examine_baseline
from pipeline.evaluation.verdict import GateResult
from pipeline.settings.config import Data
from tests.components.example_gen import run

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
    return [one.stage_name for one in create_extractors(eval_config)]


def test_two_more_steps_stand_before_the_one_that_takes_batches_apart():
    by_example = config(metrics_specs=[{"metrics": [{"class_name": "SparseCategoricalAccuracy"}]}])
    usual = [one.stage_name for one in default_extractors(eval_config=by_example)]
    place = usual.index("ExtractUnbatchedInputs")
    assert names(by_example) == [*usual[:place], "Predictions", "KeepSlicedFeatures", *usual[place:]]


def test_labels_predictions_and_sliced_features_stay():
    batch = {
        "input": np.array([b"..."]),
        "features": {"origin": np.array([["EWR"]]), "temp": np.array([[7.0]])},
        "labels": np.array([1]),
        "predictions": {"probability": np.array([0.5])},
    }
    kept = _keep_features(batch, {"origin"})
    assert set(kept) == {"features", "labels", "predictions"}
    assert set(kept["features"]) == {"origin"}
    assert set(batch["features"]) == {"origin", "temp"}


class Baseline(tf.Module):
    """A model of its own time."""

    def __init__(self, columns: list[str]):
        super().__init__()
        self.columns = columns

    def save(self, folder: Path) -> None:
        spec = {name: tf.io.FixedLenFeature([], tf.int64) for name in self.columns}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def predict(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            parsed = tf.io.parse_example(examples, spec)
            return {"probability": tf.cast(sum(parsed.values()), tf.float32) * 0.0}

        @tf.function(input_signature=[{name: tf.TensorSpec([None], tf.int64, name=name) for name in self.columns}])
        def rows(columns: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return {"probability": tf.cast(sum(columns.values()), tf.float32) * 0.0}

        tf.saved_model.save(
            self, str(folder / "Format-Serving"), signatures={"predict": predict, "serving_default": rows}
        )


@pytest.fixture(scope="module")
def inputs(few_flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict]:
    folder = tmp_path_factory.mktemp("baseline")
    splits = {split: f"{split}/*.parquet" for split in ("train", "eval", "test")}
    examples = run(Data(str(few_flights), splits=splits), folder / "examples")

    def inputs(baseline: list[str], candidate: list[str]) -> dict:
        found = {"examples": [examples]}
        for key, columns in (("baseline_model", baseline), ("model", candidate)):
            model = standard_artifacts.Model()
            model.uri = str(folder / "-".join([key, *columns]))
            if columns:
                Baseline(columns).save(Path(model.uri))
            found[key] = [model]
        return found

    return inputs


def test_a_baseline_that_no_longer_loads_is_reported(inputs):
    problem, _ = examine_baseline(inputs([], ["day"]))
    assert "no longer loads: " in problem


def test_a_baseline_that_needs_a_column_of_the_past_is_reported(inputs):
    problem, _ = examine_baseline(inputs(["day", "tail"], ["day"]))
    assert "does not answer the rows of today, its schema differs: " in problem
    assert "tail" in problem


def test_a_baseline_with_other_columns_that_still_answers_is_compared_with_and_reported(inputs):
    assert examine_baseline(inputs(["day"], ["day"])) == (None, None)
    problem, differs = examine_baseline(inputs(["day", "month"], ["day", "year"]))
    assert problem is None
    assert differs.endswith("takes other columns: month are gone since, year are new")


@pytest.mark.parametrize(("answers", "good", "blessed"), [(1, True, 1), (1, False, 0), (0, True, 0)])
def test_a_model_that_the_model_check_refused_is_not_blessed_however_good(tmp_path, answers, good, blessed):
    model, check = standard_artifacts.Model(), standard_artifacts.InfraBlessing()
    blessing = standard_artifacts.ModelBlessing()
    check.set_int_custom_property("blessed", answers)
    check.set_string_custom_property("reasons", "" if answers else "signature predict fails")
    blessing.uri = str(tmp_path)
    result = GateResult(good, () if good else ("auc on all rows is 0.5",))
    bless(blessing, {"model": [model], "infra_blessing": [check]}, result)
    assert blessing.get_int_custom_property("blessed") == blessed
    assert (tmp_path / ("BLESSED" if blessed else "NOT_BLESSED")).is_file()
    assert bool(blessing.get_string_custom_property("reasons")) == (not blessed)
    assert read_gate_result(str(tmp_path)) == result
