"""A table of BigQuery that has changed is other data: for TFX's launcher here, and for Vertex AI's cache."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.components.bigquery_example_gen import BigQueryDriver, BigQueryExampleGen
from pipeline.components.example_gen import create_example_gen
from pipeline.config import Data, Evaluation, Gate, Label, PipelineConfig
from pipeline.settings.target import Target
from tests.example_gen_driver import written_on_vertex
from tests.fakes.google_cloud import BUCKET, PROJECT, GoogleCloud

TABLE = "demo.flights.all"
BEAM_ARGS = (f"--project={PROJECT}", f"--temp_location=gs://{BUCKET}/temp")


def example_gen(path: str) -> BigQueryExampleGen:
    gates = Evaluation(gates=(Gate("auc", floor=0.6),))
    config = PipelineConfig("flights", Data(path), Label("late"), module="models/flights.py", evaluation=gates)
    target = replace(Target.local(Path("unused"), "flights"), beam_args=BEAM_ARGS)
    component = create_example_gen(config, target)
    assert isinstance(component, BigQueryExampleGen)
    return component


def fingerprint(path: str = f"bigquery://{TABLE}") -> str:
    """Return the fingerprint that TFX's launcher compares."""
    properties = dict(example_gen(path).exec_properties)
    return str(BigQueryDriver(None).resolve_exec_properties(properties, None, None)["input_fingerprint"])


def on_vertex(output: Path) -> str:
    """Return the fingerprint that Vertex AI's cache compares."""
    written = written_on_vertex(example_gen(f"bigquery://{TABLE}"), output, *BEAM_ARGS)
    return str(written["parameterValues"]["input_fingerprint"])


@pytest.fixture
def table(there: GoogleCloud) -> dict:
    state = {"lastModifiedTime": "1795600000000", "numRows": "1000"}
    there.rest.project.tables[TABLE] = state
    return state


@pytest.mark.parametrize(
    "change",
    [
        {"lastModifiedTime": "1795600000001"},
        {"numRows": "1001"},
        {"streamingBuffer": {"estimatedRows": "5", "estimatedBytes": "99", "oldestEntryTime": "1795600000000"}},
    ],
    ids=["modified", "rows", "streamed"],
)
def test_a_changed_table_is_other_data(table, change, tmp_path):
    before = fingerprint()
    assert fingerprint() == before
    assert on_vertex(tmp_path / "first/output.json") == before
    table |= change
    assert fingerprint() != before
    assert on_vertex(tmp_path / "second/output.json") == fingerprint()


def test_a_table_behind_a_view_is_seen(table, there):
    there.rest.project.tables["demo.flights.view"] = {"type": "VIEW", "view": {"query": f"SELECT * FROM `{TABLE}`"}}
    before = fingerprint("bigquery://demo.flights.view")
    assert fingerprint("bigquery://demo.flights.view") == before
    table["lastModifiedTime"] = "1795600000001"
    assert fingerprint("bigquery://demo.flights.view") != before


def test_every_table_of_a_query_counts(table, there, tmp_path):
    weather = there.rest.project.tables["demo.weather.hours"] = dict(table)
    query = tmp_path / "flights.sql"
    query.write_text(f"SELECT * FROM `{TABLE}` JOIN `demo.weather.hours` USING (hour)")
    before = fingerprint(str(query))
    weather["numRows"] = "7"
    assert fingerprint(str(query)) != before


@pytest.mark.parametrize("unknown", ["external", "not allowed", "too many"])
def test_what_nobody_can_tell_is_read_again(unknown, table, there, tmp_path):
    query = tmp_path / "flights.sql"
    query.write_text(f"SELECT * FROM `{TABLE}`")
    if unknown == "external":
        table["type"] = "EXTERNAL"
    elif unknown == "not allowed":
        there.rest.project.denied.add(("bigquery.tables.get", TABLE))
    else:
        names = [f"demo.flights.part_{number}" for number in range(60)]
        there.rest.project.tables |= {name: dict(table) for name in names}
        query.write_text(" UNION ALL ".join(f"SELECT * FROM `{name}`" for name in names))
    assert fingerprint(str(query)) != fingerprint(str(query))
