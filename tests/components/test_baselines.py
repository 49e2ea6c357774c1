"""The step Baselines on real examples of ExampleGen."""

import json
from pathlib import Path

import numpy as np
import pytest
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.types import standard_artifacts

from pipeline.components.artifacts import read_baselines
from pipeline.components.base import files_of
from pipeline.components.baselines import BaselinesExecutor, served_columns, spread
from pipeline.quality.schema_text import parse
from pipeline.settings.checks import to_json
from pipeline.settings.config import Data, Label
from tests.components.example_gen import run

ROOT = Path(__file__).resolve().parents[2]
SPLITS = ("train", "eval", "test")


def baselines(examples: standard_artifacts.Examples, schema: Path, to: Path):
    given = standard_artifacts.Schema()
    given.uri = str(schema)
    output = standard_artifacts.ModelEvaluation()
    output.uri = str(to)
    to.mkdir()
    settings = to_json(Label("late"))
    BaselinesExecutor().Do({"examples": [examples], "schema": [given]}, {"baselines": [output]}, {"settings": settings})
    return read_baselines(output.uri), json.loads((to / "baselines.json").read_text())


@pytest.mark.slow
def test_flights_of_the_test_months_are_predicted_better_by_boosting_than_by_one_answer(few_flights, tmp_path):
    data = Data(str(few_flights), splits={split: f"{split}/*.parquet" for split in SPLITS})
    examples = run(data, tmp_path / "examples")
    first, content = baselines(examples, ROOT / "schema/flights", tmp_path / "first")
    assert first["boosting"]["auc"] > 0.6 > first["constant"]["auc"] == 0.5
    assert content["columns"] == len(served_columns(parse(ROOT / "schema/flights/schema.pbtxt"), "late"))
    assert baselines(examples, ROOT / "schema/flights", tmp_path / "second")[0] == first


def csv(folder: Path, rows: int = 200) -> tuple[Data, Label]:
    folder.mkdir()
    lines = [f"{place},{['many', 'few'][place % 2]},{place % 2}" for place in range(rows)]
    (folder / "some table.csv").write_text("\n".join(["a number,a text,the label", *lines]) + "\n")
    return Data(str(folder / "some table.csv")), Label("the label", classes=("no", "yes"))


def test_a_column_that_no_request_has_is_not_learnt_from():
    schema = schema_pb2.Schema(default_environment=["TRAINING", "SERVING"])
    for name, kind in (("a number", "INT"), ("a text", "BYTES"), ("the label", "INT")):
        schema.feature.add(name=name, type=schema_pb2.FeatureType.Value(kind))
    assert served_columns(schema, "the label") == ["a number", "a text"]
    schema.feature[1].not_in_environment.append("SERVING")
    assert served_columns(schema, "the label") == ["a number"]
    schema.feature[0].lifecycle_stage = schema_pb2.LifecycleStage.DEPRECATED
    assert served_columns(schema, "the label") == []


@pytest.mark.slow
def test_rows_are_taken_evenly_from_a_file_that_is_sorted(tmp_path):
    data, label = csv(tmp_path / "in", rows=5_000)
    examples = run(data, tmp_path / "examples", label=label)
    files = files_of(examples, "train")
    every = spread(files, 10_000)
    some = spread(files, 1_000)
    assert 500 <= some.num_rows <= 1_000 < every.num_rows
    assert spread(files[:1] * 48, 10**6).num_rows == 16 * spread(files[:1], 10**6).num_rows  # every third is read
    share = np.mean([values[0] for values in some.column("the label").to_pylist()])
    assert 0.4 < share < 0.6
