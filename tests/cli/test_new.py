"""python -m pipeline new: what it writes, and the names it refuses."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.cli.new import main
from pipeline.errors import UserError
from pipeline.packaging.user_code import read_module
from pipeline.scaffold import files
from pipeline.scaffold.table import Table, look
from pipeline.settings.checks import read_settings
from pipeline.settings.config import Data, Label, PipelineConfig

ROOT = Path(__file__).resolve().parent.parent.parent


def new(*arguments: str | Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pipeline", "new", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My Model", "lower-case letters, digits"),
        ("README.md", "a letter first. Give a name and this file: new NAME --data README.md"),
        ("flights", "configs/flights.py, models/flights.py, schema/flights/schema.pbtxt exist; take another name"),
        ("json", "'json' is the name of a Python package; take another, such as json_model"),
        ("fine", "no data at nowhere.csv"),
    ],
)
def test_a_name_or_path_that_cannot_be_is_refused_at_once(name, message):
    refused = new(name, "--data", "nowhere.csv", "--label", "late")
    assert refused.returncode == 1
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --data, of a table, or --images, of a folder of images or a table of their paths"),
        (["--data", "some.csv"], "give the column to predict with --label COLUMN"),
        (["--data", "some.csv", "--label", "late", "--backbone", "ResNet50"], "--backbone is for --images"),
        (["--images", "some", "--leave-out", "late"], "--leave-out, --keep and --weight are for --data"),
        (["--images", "nowhere"], "no data at nowhere; give a folder of images, or a table of their paths"),
    ],
)
def test_options_of_tables_and_of_images_exclude_each_other(options, message):
    with pytest.raises(UserError, match=message):
        main(["fine", *options])


@pytest.mark.slow
@pytest.mark.parametrize(
    "label", [["no", "yes"], ['say "hi"', "it's", "plain"], [f"class {number}" for number in range(30)], range(200)]
)
def test_what_is_written_is_formatted_and_is_a_config_and_a_module(tmp_path, label):
    rows = 2000
    frame = pd.DataFrame({f"a long name of a column, {one}": np.arange(rows) % 11 for one in range(20)})
    frame["kind"] = np.where(np.arange(rows) % 3, "one", "other")
    frame["wanted"] = (list(label) * rows)[:rows]
    frame.to_csv(tmp_path / "some.csv", index=False)
    table = look(Data(str(tmp_path / "some.csv")), "wanted", None)

    config, module = tmp_path / "some_config.py", tmp_path / "some.py"
    config.write_text(files.config_text("some", "data/some.csv", table))
    module.write_text(files.module_text("some", table))

    read = read_settings(config, "CONFIG", PipelineConfig)
    assert read.label == table.label
    assert read.evaluation.slices == ("kind",)
    read_module(module)
    command = [sys.executable, "-m", "ruff"]
    for check in (["check"], ["format", "--check", "--diff"]):
        checked = subprocess.run(
            [*command, *check, config, module], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_weight_is_in_config_schema_and_first_gate_and_is_no_feature(tmp_path, format):
    rows = 600
    frame = pd.DataFrame({"size": np.arange(rows) % 97, "weeks": 1 + 3 * (np.arange(rows) % 2)})
    frame["price"] = frame["size"] * frame["weeks"] * 1.5
    data = Data(str(tmp_path / f"some.{format}"))

    def look_at(table: pd.DataFrame, *, leave_out: tuple[str, ...] = ()) -> Table:
        getattr(table, f"to_{format}")(data.path, index=False)
        return look(replace(data, leave_out=leave_out), "price", None, "weeks")

    table = look_at(frame)
    assert [column.name for column in table.columns] == ["size"]
    config, module = tmp_path / "some_config.py", tmp_path / "some.py"
    config.write_text(files.config_text("some", "data/some.csv", table))
    module.write_text(files.module_text("some", table))
    read = read_settings(config, "CONFIG", PipelineConfig)
    assert read.label == Label("price", (), "weeks")
    test = table.places == 2
    errors = np.square(table.values[test] - table.values[table.places == 0].mean())
    assert read.evaluation.gates[0].ceiling == pytest.approx(
        np.sqrt(np.average(errors, weights=table.weights[test])), rel=0.01
    )
    assert "weighted_metrics=[" in module.read_text()
    schema = text_format.Parse(files.schema_text(table, ()), schema_pb2.Schema())
    absent = {feature.name for feature in schema.feature if "SERVING" in feature.not_in_environment}
    assert absent == {"price", "weeks"}

    for wrong, message in (
        (frame.assign(weeks=-1), r"the weight 'weeks' is -1.0; expected a number of 0 or more in every row"),
        (frame.assign(weeks=0), r"the weight 'weeks' is 0 in every row of the train split"),
        (frame.drop(columns="weeks"), r"no column 'weeks'; --weight names one of how much each row counts"),
    ):
        with pytest.raises(UserError, match=message):
            look_at(wrong)
    with pytest.raises(UserError, match="the column 'weeks' is the weight, which is no input of the model"):
        look_at(frame, leave_out=("weeks",))


def test_sentences_and_lists_get_vocabularies_of_their_own_and_room_in_the_config(tmp_path):
    rows = 400
    random = np.random.default_rng(0)
    words = np.array(["late", "snow", "rain", "calm", "wind", "crew", "gate", "door"])
    frame = pd.DataFrame(
        {
            'a "remark"': [" ".join(random.choice(words, 9)) for _ in range(rows)],
            "ids": [list(random.integers(0, 9, row % 5)) for row in range(rows)],
            "sequence_": (["yes", "no"] * rows)[:rows],
        }
    )
    frame.to_parquet(tmp_path / "some.parquet")
    table = look(Data(str(tmp_path / "some.parquet")), "sequence_", None)
    config, module = tmp_path / "some_config.py", tmp_path / "some.py"
    config.write_text(files.config_text("some", "data/some.parquet", table))
    module.write_text(files.module_text("some", table))
    assert read_settings(config, "CONFIG", PipelineConfig).training.sequence_length == 16
    assert """TEXTS = ('a "remark"',)""" in module.read_text()
    assert 'SEQUENCES = ("ids",)' in module.read_text()
    assert 'outputs[f"sequence_of_{plain[name]}"]' in module.read_text()
    for check in (["check"], ["format", "--check", "--diff"]):
        command = [sys.executable, "-m", "ruff", *check, config, module]
        checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_rare_class_gets_a_share_that_the_data_gate_lets_pass(tmp_path):
    rows = 4000
    frame = pd.DataFrame({"x": np.arange(rows) / 7, "fraud": [number % 200 == 0 for number in range(rows)]})
    frame.to_csv(tmp_path / "some.csv", index=False)
    (tmp_path / "some_config.py").write_text(
        files.config_text("some", "data/some.csv", look(Data(str(tmp_path / "some.csv")), "fraud", None))
    )
    low, high = read_settings(tmp_path / "some_config.py", "CONFIG", PipelineConfig).data_checks.label_share
    assert low < 1 / 200 < high
