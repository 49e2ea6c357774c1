"""Columns that the Evaluator leaves out before it takes batches apart, and baselines that it compares with."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_model_analysis.api.model_eval_lib import default_extractors
from tensorflow_model_analysis.proto import config_pb2
from tfx.orchestration import metadata
from tfx.types import standard_artifacts
from tfx.utils import io_utils

from pipeline import filesystem
from pipeline.components.artifacts import read_gate_result
from pipeline.components.base import files_of
from pipeline.components.earlier_model import examine_baseline
from pipeline.components.evaluator import EvaluatorExecutor, _with_predictions, bless
from pipeline.components.written_files import list_files
from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError
from pipeline.fast.evaluator import FastEvaluatorExecutor
from pipeline.quality.tfma_config import eval_config, read_metrics
from pipeline.quality.verdict import GateResult
from pipeline.settings import checks
from pipeline.settings.config import Data, Label, load_config
from pipeline.settings.gates import Evaluation, Gate
from tests.components.example_gen import run

ROOT = Path(__file__).resolve().parents[2]
SLICES = [
    config_pb2.SlicingSpec(),
    config_pb2.SlicingSpec(feature_keys=["origin"]),
    config_pb2.SlicingSpec(feature_values={"carrier": "UA"}),
]
CONFIG = config_pb2.EvalConfig(
    model_specs=[config_pb2.ModelSpec(label_key="late", prediction_key="probability")],
    slicing_specs=SLICES,
    metrics_specs=[{"metrics": [{"class_name": "SparseCategoricalAccuracy"}]}],
)


def names(executor: EvaluatorExecutor) -> list[str]:
    return [extractor.stage_name for extractor in executor.extractors(CONFIG)[1]]


def test_predictions_come_before_tfma_takes_batches_apart_and_the_fast_engine_keeps_the_rows_of_a_slice():
    usual = [extractor.stage_name for extractor in default_extractors(eval_config=CONFIG)]
    place = usual.index("ExtractUnbatchedInputs")
    assert names(EvaluatorExecutor()) == [*usual[:place], "Predictions", *usual[place:]]
    assert names(FastEvaluatorExecutor()) == [*usual[:place], "Predictions", *usual[place + 1 :]]


class Baseline(tf.Module):
    """A baseline model that takes the given columns."""

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


def test_a_baseline_that_reaches_out_is_not_loaded(inputs, tmp_path):
    found = inputs(["day"], ["day"])
    (baseline,) = found["baseline_model"]
    copy = tmp_path / "baseline"
    shutil.copytree(baseline.uri, copy)
    baseline.uri = str(copy)
    file = copy / "Format-Serving/saved_model.pb"
    graph = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    graph.meta_graphs[0].graph_def.node.add(name="hidden", op="WriteFile")
    file.write_bytes(graph.SerializeToString())
    problem, _ = examine_baseline(found)
    expected = (
        f"the baseline {copy}/Format-Serving is not loaded: it reads or writes files (WriteFile), which no model may"
    )
    assert problem == expected


def test_a_baseline_whose_files_changed_since_its_run_is_reported_though_it_loads(inputs, tmp_path):
    found = inputs(["day", "tail", "year"], ["day"])
    (baseline,) = found["baseline_model"]
    with metadata.Metadata(metadata.sqlite_metadata_connection_config(str(tmp_path / "metadata.sqlite"))) as handle:
        baseline.type_id = handle.store.put_artifact_type(baseline.artifact_type)
        list_files([baseline], handle.store)
    graph = Path(baseline.uri) / "Format-Serving/fingerprint.pb"
    graph.write_bytes(graph.read_bytes()[::-1])
    problem, _ = examine_baseline(found)
    assert "is not as its run has written it, Format-Serving/fingerprint.pb is changed in " in problem


def test_a_baseline_that_is_no_use_ends_the_run_if_asked(inputs):
    evaluation = Evaluation((Gate("auc", floor=0.5),), broken_baseline="fail")
    settings = {"gates": checks.to_json(evaluation), "label": checks.to_json(Label("late"))}
    with pytest.raises(UserError, match=r"no longer loads: .*; name another with Evaluation\(baseline=...\), or set"):
        EvaluatorExecutor().Do(inputs([], ["day"]), {}, {"settings": json.dumps(settings)})


def test_a_baseline_that_needs_a_column_of_the_past_is_reported(inputs):
    problem, _ = examine_baseline(inputs(["day", "tail"], ["day"]))
    assert "does not answer the rows of today, its schema differs: " in problem
    assert "tail" in problem


def test_a_baseline_with_other_columns_that_still_answers_is_compared_with_and_reported(inputs):
    assert examine_baseline(inputs(["day"], ["day"])) == (None, None)
    problem, differs = examine_baseline(inputs(["day", "month"], ["day", "year"]))
    assert problem is None
    assert differs.endswith("takes other columns: month are gone since, year are new")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
@pytest.mark.parametrize("executor", [EvaluatorExecutor, FastEvaluatorExecutor])
def test_the_test_split_is_measured_and_no_other(inputs, tmp_path, executor):
    given = inputs(["month"], ["month"])
    del given["baseline_model"]
    flights = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    schema = io_utils.SchemaReader().read(flights.schema)
    settings = eval_config(Evaluation((Gate("auc", 0.1),)), flights.label)
    with beam.Pipeline() as pipeline:
        executor().evaluate(pipeline, given, settings, schema, str(tmp_path))
    (examples,) = given["examples"]
    rows = {
        split: sum(len(block) for file in files_of(examples, split) for block in read_records(file, 1000))
        for split in ("train", "eval", "test")
    }
    assert len(set(rows.values())) == 3
    assert read_metrics(str(tmp_path))["overall"]["example_count"] == rows["test"]


class WithoutAnswer(tf.Module):
    """A model that answers no number for flights of the 12th."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def predict(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        day = tf.io.parse_example(examples, {"day": tf.io.FixedLenFeature([], tf.int64)})["day"]
        return {"probability": tf.where(day == 12, float("nan"), 0.5)}


@pytest.mark.slow
def test_a_row_without_an_answer_is_named_in_a_sentence(inputs, tmp_path):
    given = {**inputs(["month"], ["month"])}
    del given["baseline_model"]
    (model,) = given["model"]
    model.uri = str(tmp_path / "model")
    module = WithoutAnswer()
    tf.saved_model.save(module, f"{model.uri}/Format-Serving", signatures={"serving_default": module.predict})
    flights = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    schema = io_utils.SchemaReader().read(flights.schema)
    settings = eval_config(Evaluation((Gate("auc", 0.1),)), flights.label)
    with pytest.raises(UserError) as caught, beam.Pipeline() as pipeline:
        FastEvaluatorExecutor().evaluate(pipeline, given, settings, schema, str(tmp_path / "evaluation"))
    assert re.match(
        r"the candidate answers nan for a row of the test split, expected a number: carrier \w+, day 12, .*\. "
        r"preprocessing_fn has to give each missing value a number, and nothing may be divided by what can be 0",
        str(caught.value),
    )


@pytest.mark.slow
def test_a_refused_model_that_cannot_be_evaluated_is_not_blessed_and_another_fails_the_step(inputs, tmp_path):
    given = {**inputs(["month"], ["month"])}
    del given["baseline_model"]
    module = WithoutAnswer()
    given["model"] = [made(standard_artifacts.Model, tmp_path / "model")]
    tf.saved_model.save(module, str(tmp_path / "model/Format-Serving"), signatures={"serving_default": module.predict})
    given["schema"] = [made(standard_artifacts.Schema, ROOT / "schema/flights")]
    given["baselines"] = [made(standard_artifacts.ModelEvaluation, tmp_path / "baselines")]
    filesystem.write(f"{tmp_path}/baselines/baselines.json", json.dumps({"metrics": {"constant": {"auc": 0.5}}}))
    check = made(standard_artifacts.InfraBlessing, tmp_path / "check")
    label = load_config(ROOT / "configs/flights.py").label
    evaluation = Evaluation((Gate("auc", 0.1),), baseline="none")
    settings = {"settings": json.dumps({"gates": checks.to_json(evaluation), "label": checks.to_json(label)})}

    def evaluate(refused: bool) -> dict[str, list]:
        check.set_int_custom_property("blessed", int(not refused))
        check.set_string_custom_property("reasons", "signature predict fails" if refused else "")
        outputs = {
            "evaluation": [made(standard_artifacts.ModelEvaluation, tmp_path / f"evaluation-{refused}")],
            "blessing": [made(standard_artifacts.ModelBlessing, tmp_path / f"blessing-{refused}")],
        }
        FastEvaluatorExecutor().Do({**given, "infra_blessing": [check]}, outputs, settings)
        return outputs

    with pytest.raises(UserError, match="the candidate answers nan"):
        evaluate(refused=False)
    outputs = evaluate(refused=True)
    (blessing,) = outputs["blessing"]
    assert (tmp_path / "blessing-True/NOT_BLESSED").is_file()
    (later,) = read_gate_result(blessing.uri).failed
    assert later.startswith("the model was not evaluated, which may follow from that: the candidate answers nan for")
    assert blessing.get_string_custom_property("reasons") == f"model check: signature predict fails; {later}"
    assert read_metrics(outputs["evaluation"][0].uri) == {"overall": {}}


def made(kind: type, folder: Path):
    artifact = kind()
    artifact.uri = str(folder)
    return artifact


def test_a_logit_of_no_chance_and_what_is_not_measured_may_be_infinite():
    outputs = {"probability": [[0.0, -np.inf]], "lower": [-np.inf]}
    given = {"predictions": {name: np.array(values) for name, values in outputs.items()}, "input": [b""]}
    measured = _with_predictions(given, "binary", logits=True)
    np.testing.assert_array_equal(measured["predictions"]["probability"], [[0.0]])


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
