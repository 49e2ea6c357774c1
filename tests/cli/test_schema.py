"""The reviewed schema fits the flights, catches what does not, and the inferred one can be written out."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.__main__ import main
from pipeline.errors import UserError
from pipeline.graph import create_pipeline
from pipeline.settings.config import load_config
from pipeline.settings.target import Target

ROOT = Path(__file__).resolve().parents[2]
REVIEWED = ROOT / "schema/flights/schema.pbtxt"


@pytest.fixture(scope="module")
def month(flights: Path) -> pd.DataFrame:
    # TFDV reads whole numbers of a data frame as they are and a missing text as None.
    return pd.read_parquet(flights / "test/2013-11.parquet")


def anomalies(rows: pd.DataFrame) -> dict[str, str]:
    """Return what TFDV finds, by column."""
    reviewed = text_format.Parse(REVIEWED.read_text(), schema_pb2.Schema())
    statistics = tfdv.generate_statistics_from_dataframe(rows)
    found = tfdv.validate_statistics(statistics, reviewed).anomaly_info
    return {name: info.short_description for name, info in found.items()}


def test_the_flights_fit_the_reviewed_schema(month):
    assert anomalies(month) == {}


def test_what_does_not_fit_is_found(month):
    rows = month.assign(
        origin=month["origin"].replace("JFK", "XXX"), temp=month["temp"] + 200, extra=1, carrier=month["carrier"]
    ).drop(columns=["dest"])
    assert set(anomalies(rows)) == {"origin", "temp", "extra", "dest"}


@pytest.fixture(scope="module")
def output(month: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder after a run over flights with something new in them."""
    folder = tmp_path_factory.mktemp("output")
    rows = month[:3000].assign(extra=1.5)
    rows["origin"] = rows["origin"].where(rows.index % 10 != 0, "XXX")
    rows["carrier"] = rows["carrier"].where(rows.index % 3 != 0, None)
    rows["seats"] = "many"
    rows["temp"] = rows["temp"] + 200
    rows = rows.drop(columns=["dest"])
    for execution, data in ((9, month[:100]), (10, rows)):
        split = folder / f"artifacts/StatisticsGen/statistics/{execution}/Split-train"
        split.mkdir(parents=True)
        (split / "FeatureStats.pb").write_bytes(tfdv.generate_statistics_from_dataframe(data).SerializeToString())
    return folder


@dataclass(frozen=True)
class Answer:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def schema_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """The command line, without the seconds that a process of its own takes to import TensorFlow."""

    def call(*arguments: str | Path) -> Answer:
        code = main(["schema", *map(str, arguments)])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


def test_the_difference_is_shown_column_by_column(output, schema_command):
    answer = schema_command("diff", "--output", output)
    assert answer.returncode == 3
    assert answer.stderr == ""
    expected = [
        "carrier",
        "  ~ in 100 % of the rows -> 66.67 %",
        "  ~ exactly one value -> may be missing",
        "origin",
        "  + value 'XXX'",
        "dest",
        "  - no longer in the data: taken out of use (lifecycle_stage: DEPRECATED)",
        "seats",
        "  ~ type FLOAT -> BYTES",
        "temp",
        "extra",
        "  + new column: FLOAT, in every row",
    ]
    lines = [line for line in answer.stdout.splitlines() if not line.startswith("  ~ range")]
    assert [line for line in lines if line in expected] == expected
    assert "  ~ range -60 to 130 -> range -60 to 2" in answer.stdout
    assert "accept carrier origin dest seats temp extra --schema" in answer.stdout


def test_a_column_that_the_config_leaves_out_is_no_difference(output, tmp_path, schema_command):
    config = tmp_path / "config.py"
    text = (ROOT / "configs/flights.py").read_text()
    change = 'CONFIG = replace(CONFIG, data=replace(CONFIG.data, leave_out=("dest",)))'
    config.write_text(f"from dataclasses import replace\n{text}\n{change}\n")
    lines = schema_command("diff", "--output", output, "--config", config).stdout.splitlines()
    assert "carrier" in lines
    assert "dest" not in lines


def test_accepting_changes_these_columns_and_leaves_the_rest_of_the_file_as_it_is(output, tmp_path, schema_command):
    copy = tmp_path / "schema.pbtxt"
    copy.write_text(REVIEWED.read_text())
    answer = schema_command("accept", "temp", "origin", "extra", "--output", output, "--schema", copy)
    assert answer.returncode == 0, answer.stderr
    before, after = REVIEWED.read_text().splitlines(), copy.read_text().splitlines()
    changed = [line[2:] for line in difflib.ndiff(before, after) if line.startswith(("- ", "+ "))]
    assert all(
        re.search(r"temp|float|XXX|extra|FLOAT|presence|value_count|^[}]?$|Accepted|{$", line) for line in changed
    )
    comments = [line for line in before if line.startswith("#")]
    assert [line for line in after if line in comments] == comments
    left = schema_command("diff", "--output", output, "--schema", copy)
    assert left.returncode == 3
    assert {line for line in left.stdout.splitlines() if line and line[0] not in " T"} == {"carrier", "dest", "seats"}
    again = schema_command("accept", "temp", "--output", output, "--schema", copy)
    assert again.returncode == 1
    assert "the data changes nothing about temp" in again.stderr


def test_an_inferred_schema_does_without_the_label_when_serving_and_a_review_is_not_overwritten(
    output, tmp_path, schema_command
):
    to = tmp_path / "mine/schema.pbtxt"
    assert schema_command("write", "--output", output, "--to", to).returncode == 0
    inferred = text_format.Parse(to.read_text(), schema_pb2.Schema())
    serving = tfdv.generate_statistics_from_dataframe(pd.DataFrame({"weekday": ["Mon"], "month": [11]}))
    found = tfdv.validate_statistics(serving, inferred, environment="SERVING").anomaly_info
    assert "late" not in found
    assert "late" in tfdv.validate_statistics(serving, inferred, environment="TRAINING").anomaly_info
    to.write_text("# reviewed")
    again = schema_command("write", "--output", output, "--to", to)
    assert again.returncode == 1
    assert "exists and may hold a review" in again.stderr
    assert to.read_text() == "# reviewed"


def test_without_a_run_there_is_nothing_to_compare_with(tmp_path, schema_command):
    answer = schema_command("diff", "--output", tmp_path)
    assert answer.returncode == 1
    assert "no statistics below" in answer.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("feature { nme: 1 }", "is not a schema in text format: line 1:11"), ("", "has no feature 'late', the label")],
)
def test_a_schema_that_is_none_or_lacks_the_label_is_refused(tmp_path, few_flights, text, message):
    file = tmp_path / "schema.pbtxt"
    file.write_text(text)
    config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    config = replace(config, schema=str(file), data=replace(config.data, path=str(few_flights)))
    with pytest.raises(UserError, match=message):
        create_pipeline(config, Target.local(tmp_path / "output", "flights"))
