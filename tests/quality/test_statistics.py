"""Statistics against the reviewed schema of the flights: every kind of finding, and its severity."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.quality import reference, serving_skew
from pipeline.quality.findings import Finding, from_json, to_json, with_severity
from pipeline.quality.schema_text import changes, inferred_from, parse, proposed
from pipeline.quality.statistics import Remedies, validate
from pipeline.quality.wrong_values import with_values
from pipeline.settings.gates import DataChecks

SCHEMA = parse(Path(__file__).resolve().parents[2] / "schema/flights/schema.pbtxt")
REMEDIES = Remedies("schema.pbtxt", "statistics/1")


@pytest.fixture(scope="module")
def month(flights: Path) -> pd.DataFrame:
    return pd.read_parquet(flights / "test/2013-11.parquet")


def found(
    rows: pd.DataFrame, before: pd.DataFrame | None = None, schema: schema_pb2.Schema = SCHEMA, **checks
) -> dict[tuple[str, str], Finding]:
    """Findings in a train split by kind and column, none that a warning is enough for."""
    statistics = {"train": tfdv.generate_statistics_from_dataframe(rows)}
    earlier = {} if before is None else {"train": tfdv.generate_statistics_from_dataframe(before)}
    settings = DataChecks(**checks)
    _, drafts = validate(statistics, schema, "late", settings, REMEDIES, earlier)
    return {(one.kind, one.feature): one for one in with_severity(drafts, settings.severity, schema)}


def test_a_month_of_flights_has_only_its_calendar_to_be_warned_of(month):
    assert {key: one.severity for key, one in found(month).items()} == {("constant", "month"): "warn"}


def test_a_column_out_of_use_may_be_the_same_in_every_row(month):
    schema = schema_pb2.Schema()
    schema.CopyFrom(SCHEMA)
    (column,) = (feature for feature in schema.feature if feature.name == "month")
    column.lifecycle_stage = schema_pb2.DISABLED
    assert found(month, schema=schema) == {}


def test_each_kind_of_departure_from_the_schema_is_found(month):
    rows = month.assign(
        origin=month["origin"].replace("JFK", "XXX"),
        temp=month["temp"] + 200,
        extra=1.5,
        seats="many",
        late=month["late"].replace(1, 2),
        carrier=month["carrier"].where(month["carrier"] != "UA", None),
    ).drop(columns=["dest"])
    kinds = {key: one.severity for key, one in found(rows).items() if key != ("constant", "month")}
    assert kinds == {
        ("domain", "origin"): "stop",
        ("range", "temp"): "stop",
        ("new_column", "extra"): "warn",
        ("constant", "extra"): "warn",
        ("constant", "seats"): "warn",
        ("type", "seats"): "stop",
        ("label", "late"): "stop",
        ("presence", "carrier"): "stop",
        ("missing_column", "dest"): "stop",
    }
    missing = int((month["carrier"] == "UA").sum())
    of_all = f"{100 * missing / len(month):.1f} % of the rows have no value ({missing:,} of {len(month):,})"
    assert {one.feature: (one.found, one.limit) for one in found(rows).values() if one.kind != "constant"} == {
        "origin": ("{rows} have a value that the schema does not list", "it lists EWR, JFK, LGA"),
        "temp": ("{rows} are out of range", "the schema allows -60 to 130"),
        "extra": ("the schema does not have this column", "no step uses it until the schema does"),
        "seats": ("is STRING", "the schema says FLOAT"),
        "late": ("{rows} have an invalid label", "a label is 0 or 1"),
        "carrier": (of_all, "at most 0 % may have none"),
        "dest": ("there is no such column", "the schema has it"),
    }


def test_of_true_and_false_in_text_only_other_words_are_counted():
    rows = pd.DataFrame({"active": ["true", "false"] * 50})
    schema = inferred_from([tfdv.generate_statistics_from_dataframe(rows)])
    assert schema.feature[0].HasField("bool_domain")
    rows.loc[:6, "active"] = "False"
    finding = found(rows, schema=schema)["domain", "active"]
    assert finding.limit == "it lists false, true"
    table = pa.table({"active": [[value] for value in rows["active"]]})
    (counted,) = with_values([finding], [table], schema)
    assert counted.found == "7 rows have a value that the schema does not list"
    assert counted.values == (("False", 7),)
    accepted = proposed(schema, [tfdv.generate_statistics_from_dataframe(rows)])
    assert changes(schema, accepted)["active"] == ["~ listed values -> any text"]


def test_two_rows_are_enough_for_a_column_that_never_changes_and_one_is_not(month):
    assert ("constant", "month") in found(month[:2])
    assert ("constant", "month") not in found(month[:1])


@pytest.mark.slow
def test_drift_names_both_means_and_the_limit_that_would_allow_it(month):
    celsius = month.assign(temp=((month["temp"] - 32) / 1.8).astype("float32"))
    drift = found(celsius, before=month)["drift", "temp"]
    assert "from the data of the model pushed last (mean " in drift.found
    assert drift.limit == "at most 0.05"
    threshold = re.match(
        r"accept it: drift_comparator { jensen_shannon_divergence { threshold: (\S+) } } of temp in schema.pbtxt$",
        drift.remedy,
    )
    distance = float(re.search(r"distance (\S+) from", drift.found)[1])
    assert distance < float(threshold[1]) < 1.2 * distance
    assert ("drift", "temp") not in found(month, before=month)


def test_drift_of_text_names_the_value_whose_share_changed_most(month):
    # All of HA's few flights are gone too.
    rows = month[((month["carrier"] != "EV") | (month.index % 10 == 0)) & (month["carrier"] != "HA")]
    drift = found(rows, before=month)["drift", "carrier"]
    now, before = ((frame["carrier"] == "EV").mean() for frame in (rows, month))
    assert now < 0.0995 < before
    assert f"(EV: {100 * now:.2g} %, there {100 * before:.1f} %)" in drift.found


def moved(rows: pd.DataFrame, before: pd.DataFrame | None, schema: schema_pb2.Schema, **checks) -> dict[str, Finding]:
    """Findings of what has moved, by column."""
    here = tfdv.generate_statistics_from_dataframe(rows)
    there = None if before is None else tfdv.generate_statistics_from_dataframe(before)
    drafts = list(reference.moved(here, there, "17", schema, DataChecks(**checks), REMEDIES))
    return {one.feature: one for one in with_severity(drafts, {}, schema)}


@pytest.fixture
def without_limits() -> schema_pb2.Schema:
    """The reviewed schema as `new` would write it: nothing says how far a column may move."""
    schema = schema_pb2.Schema()
    schema.CopyFrom(SCHEMA)
    for feature in schema.feature:
        feature.ClearField("drift_comparator")
    return schema


@pytest.mark.slow
def test_what_has_moved_far_without_a_limit_is_a_warning(month, without_limits):
    rows = month.assign(
        temp=((month["temp"] - 32) / 1.8).astype("float32"),
        origin=month["origin"].replace({"EWR": "JFK"}),
        dewp=month["dewp"].where(month.index % 2 == 0, None),
    ).drop(columns=["seats"])
    found = moved(rows, month, without_limits)
    assert {one.severity for one in found.values()} == {"warn"}
    assert found.keys() == {"temp", "origin", "dewp", "seats"}
    assert re.match(
        r"Jensen-Shannon distance 0\.\d+ from the data of the pushed version 17 \(mean ", found["temp"].found
    )
    assert "(JFK: " in found["origin"].found or "(EWR: " in found["origin"].found
    assert re.match(
        r"50\.\d % of the rows have no value, [\d.]+ % in the data of the pushed version 17$", found["dewp"].found
    )
    assert found["seats"].found.startswith("100.0 % of the rows have no value")
    assert found["temp"].limit == "a schema without drift_comparator warns past 0.3"
    assert found["temp"].remedy.endswith('annotation { tag: "moved: ignore" }, of temp in schema.pbtxt')
    assert "temp" in moved(rows, month, without_limits, max_moved=0.1)
    assert moved(rows, month, without_limits, max_moved=1.0) == {}


@pytest.mark.slow
def test_nothing_has_moved_in_equal_rows_in_few_and_without_an_earlier_model(month, without_limits):
    assert moved(month[month.index % 2 == 0], month[month.index % 2 == 1], without_limits) == {}
    celsius = month.assign(temp=month["temp"] - 60)
    assert moved(celsius[:90], month, without_limits) == {}
    assert moved(celsius, None, without_limits) == {}


@pytest.mark.slow
def test_a_limit_of_the_schema_and_a_tag_count_more_than_the_warning(month, without_limits):
    celsius = month.assign(temp=((month["temp"] - 32) / 1.8).astype("float32"))
    assert "temp" not in moved(celsius, month, SCHEMA)  # it has a drift_comparator, which is judged elsewhere
    (temp,) = (feature for feature in without_limits.feature if feature.name == "temp")
    temp.annotation.tag.append("moved: ignore")
    assert "temp" not in moved(celsius, month, without_limits)


def test_a_share_of_labels_out_of_its_limits_is_found(month):
    share = found(month, label_share=(0.3, 0.5))["label_share", "late"]
    assert share.limit == "from 30.0 % to 50.0 %"
    assert ("label_share", "late") not in found(month)


def test_the_config_and_for_a_column_the_schema_say_how_grave_a_finding_is(month):
    rows = month.assign(origin="XXX", extra=1)
    assert found(rows, severity={"domain": "warn"})["domain", "origin"].severity == "warn"
    assert ("new_column", "extra") not in found(rows, severity={"new_column": "ignore"})
    drafts = [Finding("constant", "train", "year", "2013", "", ""), Finding("constant", "train", "day", "1", "", "")]
    # The reviewed schema ignores that the data are of one year, and no config brings that back.
    assert [one.feature for one in with_severity(drafts, {"constant": "stop"}, SCHEMA)] == ["day"]


def test_findings_survive_the_way_to_a_file_and_the_same_in_three_splits_is_one(month):
    three = [Finding("new_column", split, "extra", "a", "b", "c", (("x", 1),)) for split in ("train", "eval", "test")]
    (first, one) = with_severity([*three, Finding("type", "eval", "dep", "a", "b", "c")], {}, SCHEMA)
    assert (first.kind, first.severity) == ("type", "stop")
    assert (one.split, one.severity) == ("train, eval, test", "warn")
    assert from_json(to_json([first, one])) == [first, one]


def test_the_statistics_of_the_model_pushed_last_are_found_and_an_unfinished_one_is_not(month, tmp_path):
    root = str(tmp_path / "_pushed/flights")
    assert reference.read_newest(root) == {}
    statistics = tfdv.generate_statistics_from_dataframe(month)
    older = tfdv.generate_statistics_from_dataframe(month[:10])
    reference.write(root, "999", {"train": older}, {})
    reference.write(root, "1000", {"train": statistics}, {"pushed_to": "somewhere"})
    (tmp_path / "_pushed/flights/1001").mkdir()
    assert reference.read_newest(root) == {"train": statistics}


@pytest.mark.slow
def test_several_classes_and_numbers_are_checked_for_what_they_are(month):
    def of_label(rows: pd.DataFrame, classes: int) -> list[Finding]:
        statistics = {"train": tfdv.generate_statistics_from_dataframe(rows)}
        _, drafts = validate(statistics, schema, "late", DataChecks(), REMEDIES, {}, classes)
        return [draft for draft in drafts if draft.feature == "late" and draft.kind != "constant"]

    def kinds(rows: pd.DataFrame, classes: int) -> set[str]:
        return {draft.kind for draft in of_label(rows, classes)}

    rows = month.assign(late=np.arange(len(month)) % 3)
    schema = tfdv.infer_schema(tfdv.generate_statistics_from_dataframe(rows))
    assert kinds(rows, 3) == set()
    assert kinds(rows, 0) == set()
    (finding,) = of_label(rows.assign(late=rows["late"] + 2), 3)
    assert (finding.kind, finding.limit) == ("label", "a label is 0 to 2")
    assert [finding.found for finding in of_label(rows.assign(late=1), 2)] == [
        f"label 1 is 100.0 % of {len(rows):,} rows"
    ]
    assert kinds(rows.assign(late=1), 3) == kinds(rows.assign(late=1), 0) == {"label_share"}


@pytest.mark.slow
def test_infinite_numbers_are_counted_and_as_labels_stop_the_run(month):
    rows = month.assign(temp=np.where(np.arange(len(month)) == 3, -np.inf, month["temp"]).astype("float32"))
    rows["late"] = np.where(np.arange(len(month)) < 2, np.inf, rows["late"]).astype("float32")
    statistics = {"train": tfdv.generate_statistics_from_dataframe(rows)}
    _, drafts = validate(statistics, SCHEMA, "late", DataChecks(), REMEDIES, {}, 0)
    table = pa.table({name: pa.array([[value] for value in rows[name].tolist()]) for name in ("temp", "late")})
    named = {draft.feature: draft for draft in with_values(with_severity(drafts, {}, SCHEMA), [table], SCHEMA, 0)}
    assert (named["temp"].kind, named["temp"].severity, named["temp"].found) == (
        "infinite",
        "warn",
        "1 rows are infinite",
    )
    assert (named["late"].kind, named["late"].severity, named["late"].values) == ("label", "stop", (("inf", 2),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (lambda count: -1.0 * (np.arange(count) == 3), "the weight is -1 in some rows"),
        (lambda count: np.where(np.arange(count) == 3, np.inf, 1.0), "the weight is inf in some rows"),
        (lambda count: np.where(np.arange(count) == 3, np.nan, 1.0), "the weight is missing in 1 of "),
        (lambda count: np.zeros(count), "the weight is 0 in all of "),
        (None, "there is no such column of numbers"),
    ],
)
def test_a_weight_that_is_none_stops_the_run(month, weight, message):
    rows = month if weight is None else month.assign(exposure=weight(len(month)).astype("float32"))
    statistics = {"train": tfdv.generate_statistics_from_dataframe(rows)}
    _, drafts = validate(statistics, SCHEMA, "late", DataChecks(), REMEDIES, {}, weight="exposure")
    (found,) = (draft for draft in with_severity(drafts, {}, SCHEMA) if draft.kind == "weight")
    assert (found.feature, found.severity) == ("exposure", "stop")
    assert found.found.startswith(message)


def test_weights_may_all_be_equal(month):
    statistics = {"train": tfdv.generate_statistics_from_dataframe(month.assign(exposure=1.0))}
    _, drafts = validate(statistics, SCHEMA, "late", DataChecks(), REMEDIES, {}, weight="exposure")
    assert {draft.kind for draft in drafts if draft.feature == "exposure"} == {"new_column"}


def test_the_command_that_accepts_a_column_can_be_pasted_whatever_its_name():
    remedies = Remedies("schema/some/schema.pbtxt", "output/statistics/2")
    command = remedies.accept("mean radius; rm -rf ~").removeprefix("accept it: ")
    assert shlex.split(command)[5:8] == ["mean radius; rm -rf ~", "--schema", "schema/some/schema.pbtxt"]
    assert shlex.split(remedies.accept(""))[6:9] == ["accept", "--schema", "schema/some/schema.pbtxt"]


def test_logged_values_are_read_as_the_server_reads_them():
    schema = text_format.Parse(
        'feature { name: "n" type: INT } feature { name: "x" type: FLOAT } feature { name: "t" type: BYTES }',
        schema_pb2.Schema(),
    )
    rows = [
        {"n": True, "x": 1, "t": {"b64": "/w=="}},
        {"n": 2.0, "x": True, "t": 3},
        {"n": [1, 2]},
        {"n": 1.5, "x": float("nan"), "t": "ü"},
    ]
    assert serving_skew._as_table(rows, schema).to_pydict() == {
        "n": [[1], [2], [1, 2], None],
        "x": [[1.0], None, None, None],
        "t": [[b"\xff"], None, None, ["ü".encode()]],
    }
