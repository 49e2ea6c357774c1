"""The reviewed schema fits the flights, catches what does not, and the inferred one can be written out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.config import load_config
from pipeline.errors import UserError
from pipeline.pipeline import create_pipeline
from pipeline.target import Target

ROOT = Path(__file__).resolve().parent.parent
REVIEWED = ROOT / "schema/flights/schema.pbtxt"


@pytest.fixture(scope="module")
def month(flights: Path) -> pd.DataFrame:
    # TFDV reads whole numbers of a data frame as they are and a missing text as None.
    return pd.read_parquet(flights / "test/2013-11.parquet")


def anomalies(rows: pd.DataFrame) -> dict[str, str]:
    """What TFDV finds, by column."""
    schema = text_format.Parse(REVIEWED.read_text(), schema_pb2.Schema())
    statistics = tfdv.generate_statistics_from_dataframe(rows)
    found = tfdv.validate_statistics(statistics, schema).anomaly_info
    return {name: info.short_description for name, info in found.items()}


def test_the_flights_fit_the_reviewed_schema(month):
    assert anomalies(month) == {}


def test_what_does_not_fit_is_found(month):
    rows = month.assign(
        origin=month["origin"].replace("JFK", "XXX"), temp=month["temp"] + 200, extra=1, carrier=month["carrier"]
    ).drop(columns=["dest"])
    assert set(anomalies(rows)) == {"origin", "temp", "extra", "dest"}


def write(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.schema", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_newest_inferred_schema_is_written_and_a_review_is_not_overwritten(tmp_path):
    for execution, text in ((9, "# older"), (10, "# newest")):
        folder = tmp_path / f"artifacts/SchemaGen/schema/{execution}"
        folder.mkdir(parents=True)
        (folder / "schema.pbtxt").write_text(text)
    to = tmp_path / "mine/schema.pbtxt"
    assert write("--output", tmp_path, "--to", to).returncode == 0
    assert to.read_text() == "# newest"
    to.write_text("# reviewed")
    again = write("--output", tmp_path, "--to", to)
    assert again.returncode == 1
    assert "exists and may hold a review" in again.stderr
    assert to.read_text() == "# reviewed"
    assert write("--output", tmp_path, "--to", to, "--replace").returncode == 0
    assert to.read_text() == "# newest"


def test_without_a_run_there_is_nothing_to_write(tmp_path):
    answer = write("--output", tmp_path, "--to", tmp_path / "schema.pbtxt")
    assert answer.returncode == 1
    assert "no inferred schema below" in answer.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("feature { nme: 1 }", "is not a schema in text format: line 1:11"), ("", "has no feature 'late', the label")],
)
def test_a_schema_that_is_none_or_lacks_the_label_is_refused(tmp_path, few_flights, text, message):
    schema = tmp_path / "schema.pbtxt"
    schema.write_text(text)
    config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    config = replace(config, schema=str(schema), data=replace(config.data, path=str(few_flights)))
    with pytest.raises(UserError, match=message):
        create_pipeline(config, Target.local(tmp_path / "output", "flights"))
