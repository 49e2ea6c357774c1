"""A model whose columns have names that no tensor can have: people and files use the names of the columns."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from pipeline.cli import predict
from pipeline.errors import UserError
from pipeline.model.export_format import INPUTS
from pipeline.model.features import Refused, from_instances
from pipeline.model.signatures import Model, load
from pipeline.serving.app import describe
from pipeline.settings.names import plain_names

NAMES = ["mean radius", "class", "größe", "a-b", "a b", "a_b", "1st", "x" * 200, 'say "hi" \\', "🙂", "A_B"]


def save(folder: Path, *, says_inputs: bool, required: bool = False) -> Path:
    """Write a model that answers a sum, in which each column has another weight."""
    plain = plain_names(NAMES)
    server = tf.Module()

    @tf.function(input_signature=[{one: tf.TensorSpec([None], tf.float32, name=one) for one in plain.values()}])
    def rows(given):
        known = {name: tf.where(tf.math.is_nan(given[one]), 0.0, given[one]) for name, one in plain.items()}
        return {"prediction": tf.add_n([known[name] * 2.0**place for place, name in enumerate(NAMES)])}

    tf.saved_model.save(server, str(folder), signatures={"serving_default": rows})
    described = {name: {"type": "floats", "required": required} for name in NAMES}
    if says_inputs:
        described = {name: {"input": plain[name], **one} for name, one in described.items()}
    (folder / INPUTS).parent.mkdir(exist_ok=True)
    (folder / INPUTS).write_text(json.dumps(described))
    return folder


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.DataFrame(np.random.RandomState(1).rand(20, len(NAMES)).astype(np.float32), columns=NAMES)


@pytest.fixture(scope="module", params=[True, False], ids=["named in inputs.json", "exported before that"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(str(save(tmp_path_factory.mktemp("odd") / "model", says_inputs=request.param)))


def test_files_and_rows_are_answered_by_the_columns_own_names(model, table, tmp_path):
    expected = table.to_numpy() @ 2.0 ** np.arange(len(NAMES))
    table.to_csv(tmp_path / "rows.csv", index=False)
    predict.predict(model, predict.find_files(str(tmp_path / "rows.csv")), tmp_path / "answers.parquet")
    assert pd.read_parquet(tmp_path / "answers.parquet")["prediction"].to_numpy() == pytest.approx(expected, rel=1e-5)

    instances = [{str(name): float(value) for name, value in row.items()} for row in table.to_dict("records")]
    answers = model.rows.predict(from_instances(instances, model.rows.inputs))
    assert answers["prediction"] == pytest.approx(expected, rel=1e-5)
    instance = describe("odd", model, 10)["paths"]["/v1/models/odd:predict"]["post"]["requestBody"]["content"][
        "application/json"
    ]["schema"]["properties"]["instances"]["items"]
    assert set(instance["properties"]) == set(NAMES)


def test_the_name_of_a_tensor_is_answered_with_that_of_the_column(model):
    with pytest.raises(Refused, match=r"unknown feature 'mean_radius'; did you mean 'mean radius'\?"):
        from_instances([{"mean_radius": 1.0}], model.rows.inputs)


def test_a_required_column_stays_required(tmp_path):
    model = load(str(save(tmp_path / "model", says_inputs=True, required=True)))
    with pytest.raises(Refused, match="feature 'mean radius' is missing"):
        from_instances([dict.fromkeys(NAMES[1:], 1.0)], model.rows.inputs)


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_file_of_another_table_is_refused_and_nothing_is_written(model, tmp_path, ending):
    other = pd.DataFrame({"species": ["a", "b"], "mean_radius": [1.0, 2.0]})
    file = tmp_path / f"other.{ending}"
    if ending == "jsonl":
        other.to_json(file, orient="records", lines=True)
    else:
        getattr(other, f"to_{ending}")(file, index=False)
    with pytest.raises(UserError, match="no column in common with the model.*species, mean_radius"):
        predict.predict(model, predict.find_files(str(file)), tmp_path / "answers.csv")
    assert not (tmp_path / "answers.csv").exists()


def test_columns_that_a_file_lacks_and_a_row_may_lack_are_named_once(model, table, tmp_path, capsys):
    table.rename(columns={"class": "Class", "🙂": "smile"}).to_csv(tmp_path / "rows.csv", index=False)
    predict.predict(model, predict.find_files(str(tmp_path / "rows.csv")), tmp_path / "answers.parquet")
    said = capsys.readouterr().err
    assert (
        said.count("has no column 'class', '🙂', taken as missing; it has 'Class', 'smile', which the model does") == 1
    )
