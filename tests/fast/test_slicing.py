"""Rows of a slice together give TFMA the same metrics as its own way, one example at a time."""

import dataclasses
import traceback
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
import tensorflow_model_analysis as tfma
from apache_beam.options.pipeline_options import PipelineOptions
from tensorflow_model_analysis.api.model_eval_lib import default_extractors
from tensorflow_model_analysis.proto import config_pb2

from pipeline.components.evaluator import KeptPredictions
from pipeline.fast.evaluator import FastEvaluatorExecutor
from pipeline.quality.tfma_config import BASELINE, CANDIDATE, eval_config, read_metrics
from pipeline.settings.config import Label
from pipeline.settings.gates import Evaluation, Gate, SliceGate
from pipeline.settings.target import IN_PROCESS
from pipeline.settings.tasks import ANSWERS
from tests.components.test_evaluator import SLICES

pytestmark = pytest.mark.slow

ROWS, BATCH = 700, 300
KEY = tfma.ARROW_RECORD_BATCH_KEY
SETTINGS = {
    "binary": (
        Label("label"),
        Evaluation((Gate("auc", 0.5), SliceGate("auc", by="carrier", floor=0.1)), threshold=0.3),
    ),
    "multiclass": (
        Label("label", ("a", "b", "c")),
        Evaluation((Gate("accuracy", 0.1), SliceGate("accuracy", by="carrier", floor=0.1))),
    ),
    "regression": (Label("label", ()), Evaluation((Gate("rmse", 1.0), SliceGate("rmse", by="carrier", floor=9.0)))),
}

FORMS = pytest.mark.parametrize(
    ("task", "with_baseline"),
    [
        *(("binary", True), ("multiclass", False), ("regression", True)),
        *(
            pytest.param(*form, marks=pytest.mark.long)
            for form in (("binary", False), ("multiclass", True), ("regression", False))
        ),
    ],
)


def answers(random: np.random.Generator, task: str) -> list[list[float]]:
    """Return one answer per row, or the probabilities of three classes."""
    return (random.dirichlet([1, 1, 1], ROWS) if task == "multiclass" else random.uniform(size=(ROWS, 1))).tolist()


def batches(task: str) -> list[dict[str, Any]]:
    """Return batches as TFMA's extractors get them: some rows without a carrier, a large and a tiny slice."""
    random = np.random.default_rng(1)
    classes = {"binary": 2, "multiclass": 3}.get(task)
    label = random.integers(0, classes, ROWS).astype(float) if classes else random.normal(size=ROWS)
    carriers = [None if row % 11 == 0 else [b"HA" if row == 1 else b"UA"] for row in range(ROWS)]
    columns = {
        "label": [[value] for value in label],
        **{name: answers(random, task) for name in (ANSWERS[task], "theirs")},
        "temp": [[value] for value in random.uniform(size=ROWS)],
        "origin": [[random.choice([b"EWR", b"JFK"])] for _ in range(ROWS)],
        "carrier": [carriers[row] and [carriers[row][0], b"DL"][: 1 + row % 2] for row in range(ROWS)],
    }
    types = {name: pa.list_(pa.binary() if name in ("origin", "carrier") else pa.float32()) for name in columns}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    return [{KEY: batch} for batch in table.to_batches(max_chunksize=BATCH)]


@pytest.mark.parametrize("with_baseline", [False, True])
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_statistics_of_the_judged_model_s_predictions_are_kept(task, with_baseline, tmp_path):
    label, settings = SETTINGS[task]
    config = eval_config(settings, label)
    config = tfma.utils.update_eval_config_with_defaults(config, has_baseline=with_baseline)
    for baseline in config.model_specs[1:]:
        baseline.prediction_key = "theirs"
    kept = KeptPredictions(str(tmp_path / "kept/predictions.pb"), label.classes)
    measure(*fast(config, keep=kept), batches(task), tmp_path / "ours")
    statistics = tfdv.load_stats_binary(kept.file)
    expected = [value[0] for batch in batches(task) for value in batch[KEY].column(ANSWERS[task]).to_pylist()]
    (column,) = statistics.datasets[0].features
    assert column.path.step == ["predictions"]
    assert column.num_stats.common_stats.num_non_missing == ROWS
    assert column.num_stats.mean == pytest.approx(np.mean(expected))


def fast(config: config_pb2.EvalConfig, **more: Any) -> tuple[config_pb2.EvalConfig, list[Any]]:
    """Return the config and the extractors of the fast Evaluator."""
    return FastEvaluatorExecutor().extractors(config, **more)


def measure(config: config_pb2.EvalConfig, extractors: list[Any], rows: list[dict[str, Any]], to: Path) -> str:
    with beam.Pipeline(options=PipelineOptions(list(IN_PROCESS))) as pipeline:
        extracts = pipeline | beam.Create(rows, reshuffle=False)
        _ = extracts | tfma.ExtractEvaluateAndWriteResults(
            eval_config=config, extractors=extractors, output_path=str(to)
        )
    return str(to)


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")  # TFMA, in a slice of one row
@FORMS
def test_every_metric_of_every_slice_is_tfmas(task, with_baseline, tmp_path):
    label, settings = SETTINGS[task]
    config = eval_config(settings, label)
    config.slicing_specs.extend(SLICES[1:])
    config = tfma.utils.update_eval_config_with_defaults(config, has_baseline=with_baseline)
    for baseline in config.model_specs[1:]:
        baseline.prediction_key = "theirs"
    of_arrays, ours = fast(config)
    assert "ExtractUnbatchedInputs" not in [one.stage_name for one in ours]
    found = measure(of_arrays, ours, batches(task), tmp_path / "ours")
    expected = measure(config, default_extractors(eval_config=config), batches(task), tmp_path / "theirs")
    for model in (CANDIDATE, BASELINE) if with_baseline else (CANDIDATE,):
        metrics = read_metrics(found, model)
        by_example = read_metrics(expected, model)
        assert {slice_: metrics[slice_].keys() for slice_ in metrics} == {
            slice_: by_example[slice_].keys() for slice_ in by_example
        }
        assert {"overall", "carrier=HA", "carrier=UA", "carrier=DL", "origin=EWR"} <= metrics.keys()
        assert metrics["overall"]["example_count"] == ROWS
        for slice_, values in by_example.items():
            assert metrics[slice_] == pytest.approx(values, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize(
    "slices", [*(pytest.param(few, marks=pytest.mark.long) for few in ((), ("origin",))), ("origin", "label")]
)
def test_slices_of_columns_that_every_row_has_are_tfmas(slices, tmp_path):
    label, settings = SETTINGS["multiclass"]
    config = eval_config(dataclasses.replace(settings, gates=settings.gates[:1], slices=slices), label)
    config.slicing_specs.append(config_pb2.SlicingSpec(feature_keys=slices))
    config = tfma.utils.update_eval_config_with_defaults(config)
    found = read_metrics(measure(*fast(config), batches("multiclass"), tmp_path / "ours"))
    theirs = default_extractors(eval_config=config)
    expected = read_metrics(measure(config, theirs, batches("multiclass"), tmp_path / "theirs"))
    assert found.keys() == expected.keys()
    assert len(found) == {0: 1, 1: 1 + 2, 2: 1 + 2 + 3 + 2 * 3}[len(slices)]
    for slice_, values in expected.items():
        assert found[slice_] == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [("probability", [0.5, np.nan], "found NaN"), ("label", [0.0, 2.0], "expected labels from 0 to 1, found 0 to 2")],
)
def test_what_two_classes_cannot_have_is_an_error(column, values, problem, tmp_path):
    label, settings = SETTINGS["binary"]
    config = tfma.utils.update_eval_config_with_defaults(eval_config(settings, label))
    (batch, *_) = batches("binary")
    table = pa.Table.from_batches([batch[KEY]])
    wrong = pa.array([[values[row % 2]] for row in range(table.num_rows)], pa.list_(pa.float32()))
    table = table.set_column(table.schema.get_field_index(column), column, wrong)
    # Without the first extractor, which reports the row of an answer that is not a number.
    config, extractors = fast(config)
    extractors = [extractor for extractor in extractors if extractor.stage_name != "Predictions"]
    with pytest.raises(RuntimeError) as raised:  # TFMA's error, with the inputs of the error that caused it
        measure(config, extractors, [{KEY: table.to_batches()[0]}], tmp_path)
    assert any(problem in line for line in traceback.format_exception(raised.value))


def rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Round the answers of batches to one decimal, so that many are 0, 1 or equal to a threshold."""
    tables = [pa.Table.from_batches([batch[KEY]]) for batch in rows]
    for name in (ANSWERS["binary"], "theirs"):
        for number, table in enumerate(tables):
            values = np.round(np.array(table[name].to_pylist()), 1).tolist()
            place = table.schema.get_field_index(name)
            tables[number] = table.set_column(place, name, pa.array(values, pa.list_(pa.float32())))
    return [{KEY: table.combine_chunks().to_batches()[0]} for table in tables]


@pytest.mark.parametrize(
    "thresholds",
    [{CANDIDATE: 0.3, BASELINE: 0.7}, pytest.param({CANDIDATE: 0.1, BASELINE: 1.0}, marks=pytest.mark.long)],
)
def test_each_model_is_measured_at_the_threshold_from_which_it_answers_the_second_class(tmp_path, thresholds):
    label, settings = SETTINGS["binary"]
    given = rounded(batches("binary"))
    config = eval_config(settings, label, thresholds)
    config = tfma.utils.update_eval_config_with_defaults(config, has_baseline=True, rubber_stamp=True)
    config.model_specs[1].prediction_key = "theirs"
    found = measure(*fast(config), given, tmp_path)
    rows = pa.concat_tables([pa.table(batch[KEY].to_pydict()) for batch in given])
    positive = np.array(rows["label"].to_pylist()).ravel() == 1
    for model, column in ((CANDIDATE, ANSWERS["binary"]), (BASELINE, "theirs")):
        answered = np.array(rows[column].to_pylist(), np.float32).ravel()
        says = answered >= np.float32(thresholds[model])
        assert (answered == np.float32(thresholds[model])).any()
        metrics = read_metrics(found, model)["overall"]
        assert metrics["recall"] == pytest.approx((says & positive).sum() / positive.sum())
        assert metrics["precision"] == pytest.approx((says & positive).sum() / says.sum())
        assert metrics["example_count"] == ROWS


def weighed(rows: list[dict[str, Any]], repeat: bool) -> list[dict[str, Any]]:
    """Add a column of weights to batches, or repeat each row by its weight."""
    tables = [pa.Table.from_batches([batch[KEY]]) for batch in rows]
    weights = [np.random.default_rng(place).integers(0, 4, table.num_rows) for place, table in enumerate(tables)]
    if repeat:
        again = [table.take(np.repeat(np.arange(len(w)), w)) for table, w in zip(tables, weights, strict=True)]
    else:
        again = [
            table.append_column("weight", pa.array([[value] for value in w], pa.list_(pa.float32())))
            for table, w in zip(tables, weights, strict=True)
        ]
    return [{KEY: batch} for table in again for batch in table.combine_chunks().to_batches()]


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
@FORMS
def test_a_row_that_weighs_2_is_a_row_that_is_there_twice_in_every_metric_of_every_slice(task, with_baseline, tmp_path):
    found = {}
    for weight in ("weight", None):
        label, settings = SETTINGS[task]
        config = eval_config(settings, dataclasses.replace(label, weight=weight))
        config = tfma.utils.update_eval_config_with_defaults(config, has_baseline=with_baseline)
        for baseline in config.model_specs[1:]:
            baseline.prediction_key = "theirs"
        rows = weighed(batches(task), repeat=weight is None)
        folder = measure(*fast(config), rows, tmp_path / str(weight))
        found[weight] = [read_metrics(folder, model) for model in (CANDIDATE, BASELINE)[: 1 + with_baseline]]
    for metrics, repeated in zip(found["weight"], found[None], strict=True):
        assert metrics["overall"]["example_count"] == ROWS
        assert 0 < metrics["overall"]["effective_count"] < ROWS
        for slice_, values in repeated.items():
            counts = {name: metrics[slice_].pop(name) for name in ("example_count", "effective_count")}
            assert counts["effective_count"] <= counts["example_count"]
            del values["example_count"]
            assert metrics[slice_] == pytest.approx(values, rel=1e-5)
