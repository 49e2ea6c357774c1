"""Text in another notation than its column's: the check finds what the model would take for missing, and no more."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.types import artifact_utils, standard_artifacts

from pipeline.components.data_gate import ExampleValidatorExecutor, ValidatorSettings
from pipeline.data.examples import serialize
from pipeline.quality.findings import from_json
from pipeline.quality.request_rows import RequestRows
from pipeline.quality.serving_skew import report, statistics_of
from pipeline.quality.statistics import Remedies
from pipeline.quality.wrong_values import Unread, in_another_notation
from pipeline.scaffold import files
from pipeline.scaffold.table import look
from pipeline.settings.checks import to_json
from pipeline.settings.config import Data, Label, load_config
from pipeline.settings.gates import DataChecks
from pipeline.settings.notations import AMOUNTS, DATES
from pipeline.training.preprocessing import amount, calendar

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    *("2024-02-29", "2024-2-9", "2024-13-01", "2024-00-10", "2024-01-32", "2024-01-00", "24-01-02", "2024-01-02x"),
    *("2024-02-29T13:45:10.250Z", "2024-02-29 24:00", "2024-02-29 25:00", "2024-02-29 13:60", "2024-02-29 1:05 PM"),
    *("2024/02/29", "29.02.2024", "2/29/2024", "29/2/2024", "12/31/2023", "31/12/2023", "31-12-2023", "12-31-2023"),
    *("20240229", "20241301", "20240200", "2024022", "13:45", "7:05:09", "24:59", "25:00", "13:5", " 13:45 "),
    *("2024-02-30", "2023-02-29", "2000-02-29", "1900-02-29", "31.04.2024", "30.04.2024", "4/31/2024", "20240631"),
    *("1.200,50\u00a0€", "$\u00a01,200.50", "1\u202f200,5", "(1.200,50) €", "(300 $)", "1 200.5\u00a0USD"),
    *("$1,200.50", "1.200,50 €", "12 %", "(300)", "7-", "abc", "1.2.3", "1,2,3", "$", "1e-3", "0", "-5", "12 pieces"),
    *(
        "04-Mar-2023",
        "Mar 4, 2023",
        "4 March 2023",
        "30-Feb-2023",
        "Sat, 04 Mar 2023 10:11:12 GMT",
        "04-MAR-23",
        "4Mar23",
    ),
    *(
        "3/4/23",
        "31/4/23",
        "29.02.24",
        "29.02.23",
        "1.2.69",
        "2-29-68",
        "20230304T101112Z",
        "20230304101112",
        "2023.03.04",
    ),
    *(
        "9999-12-31",
        "0001-01-01",
        "1500-01-01",
        "2899-12-31",
        "2023-Mar-04",
        "2024-02-29T10:00+05:30",
        "31 April 2023",
    ),
    *(
        "<0.5",
        ">1000",
        "<= 3",
        "≥ 5",
        "~5",
        "65+",
        "<",
        "+",
        "kg",
        "50.3 kg",
        "12kg",
        "<1e-3kg",
        "5 lb",
        "<1,5 kg",
        "1.234 kg",
    ),
]


def schema_of(**columns: str) -> schema_pb2.Schema:
    """Return a schema of text columns, each with a date format or the decimal sign of an amount."""
    schema = schema_pb2.Schema()
    for name, notation in columns.items():
        feature = schema.feature.add(name=name, type=schema_pb2.BYTES)
        if notation[0] in AMOUNTS:
            feature.annotation.tag.append(f"amount: {notation}")
        else:
            feature.time_domain.string_format = notation
    return schema


def lists(values: list[str | bytes | None]) -> pa.Array:
    return pa.array([None if value is None else [value] for value in values], pa.list_(pa.binary()))


@pytest.mark.parametrize("notation", [*DATES, *AMOUNTS, ". kg", ", kg"])
def test_what_is_found_is_what_the_features_take_for_missing(notation):
    column = tf.constant(TEXTS)[:, None]
    features = calendar(column, notation) if notation in DATES else amount(column, *notation.split(" "))
    missing = {text for text, value in zip(TEXTS, features[:, 0].numpy(), strict=True) if np.isnan(value)}
    table = pa.table({"when": lists(TEXTS)})
    rows = [table.slice(start, 1) for start in range(len(TEXTS))]
    found = {
        text
        for text, row in zip(TEXTS, rows, strict=True)
        if in_another_notation("train", [row], schema_of(when=notation))
    }
    assert found == missing
    assert 0 < len(missing) < len(TEXTS)


def test_a_finding_has_the_share_the_values_and_both_places_to_change_it():
    table = pa.table({"when": lists(["01.02.2024"] * 8 + ["2024-02-01"] * 3), "paid": lists(["1,5"] * 10 + ["x"])})
    of_time, of_amount = in_another_notation("eval", [table, table], schema_of(when="%d.%m.%Y", paid=","))
    assert str(of_time) == (
        "when in eval: 6 of 22 rows looked at have text in another notation, which counts as missing: "
        "2024-02-01 (6 rows); the notation is %d.%m.%Y"
    )
    assert of_time.remedy == "write them alike, or change TIMES in the module file and time_domain in the schema"
    assert of_amount.values == (("x", 2),)
    (once,) = in_another_notation("eval", [pa.table({"paid": lists(["x"])})], schema_of(paid=","))
    assert "counts as missing: x (1 row); " in str(once)
    assert "AMOUNTS in the module file" in of_amount.remedy


def test_of_any_number_of_rows_their_number_is_kept_and_a_few_texts():
    found = Unread("%d.%m.%Y")
    for year in range(2000, 2020):
        found.add(np.array([[b"%d-01-01" % year, b"%d-01-02" % year], [b"01.02.2003", b""], [b"x", b"NA"]], object))
    assert found.rows == 40
    assert found.texts == ["2000-01-01", "2000-01-02", "x", "2001-01-01", "2001-01-02"]


def test_what_is_missing_anyway_or_not_in_use_is_no_finding():
    schema = schema_of(when="%Y-%m-%d", other="%Y-%m-%d", unread="%G week %V")
    schema.feature[1].lifecycle_stage = schema_pb2.DISABLED
    table = pa.table({"when": lists(["2024-01-01", "", " ", "N/A", None]), "other": lists(["x"] * 5)})
    table = table.append_column("unread", lists(["x"] * 5))
    assert in_another_notation("train", [table], schema) == []
    assert in_another_notation("train", [pa.table({"when": pa.nulls(3)})], schema) == []
    (found,) = in_another_notation("train", [pa.table({"when": lists([b"\xff\xfe", "2024-01-01"])})], schema)
    assert found.values == (("\ufffd\ufffd", 1),)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> schema_pb2.Schema:
    """Return the schema that ``new`` writes for a table of times, amounts and numbers."""
    file = tmp_path_factory.mktemp("table") / "some.csv"
    days = pd.date_range("2023-01-01", periods=400)
    frame = pd.DataFrame({"day": days.strftime("%d.%m.%Y"), "paid": [f"{day % 97},5 €" for day in range(400)]})
    frame["stamp"], frame["back"] = days.astype("int64") // 10**9, np.where(days.dayofyear % 3, "no", "yes")
    frame.to_csv(file, index=False)
    return text_format.Parse(files.schema_text(look(Data(str(file)), "back", None), ()), schema_pb2.Schema())


def test_a_new_schema_names_the_notations_of_text_only(schema):
    by_name = {feature.name: feature for feature in schema.feature}
    assert by_name["day"].time_domain.string_format == "%d.%m.%Y"
    assert list(by_name["paid"].annotation.tag) == ["amount: ,"]
    assert not by_name["stamp"].HasField("time_domain")


def rows(days: list[str], seed: int) -> pa.Table:
    """Return examples of the fixture's table; ``seed`` makes every row unique."""
    each = range(seed, seed + len(days))
    columns = {
        "back": pa.array([[number % 2] for number in each]),
        "day": lists([*days]),
        "paid": lists([f"{number},5 €" for number in each]),
        "stamp": pa.array([[1_700_000_000 + 86_400 * (number * 37 % 1000)] for number in each]),
    }
    return pa.table(columns)


@pytest.mark.slow
def test_example_validator_warns_of_each_split_and_lets_the_run_go_on(schema, tmp_path):
    days = [day.strftime("%d.%m.%Y") for day in pd.date_range("2024-01-01", periods=100)]
    tables = {"train": rows(days, 0), "eval": rows(days[:60], 1000), "test": rows(["2024/01/31", *days[1:60]], 2000)}
    examples, statistics = standard_artifacts.Examples(), standard_artifacts.ExampleStatistics()
    of_schema, anomalies = standard_artifacts.Schema(), standard_artifacts.ExampleAnomalies()
    for artifact, name in ((examples, "e"), (statistics, "s"), (of_schema, "schema"), (anomalies, "a")):
        artifact.uri = str(tmp_path / name)
    examples.split_names = statistics.split_names = artifact_utils.encode_split_names(list(tables))
    (tmp_path / "schema").mkdir()
    (tmp_path / "schema/schema.pbtxt").write_text(text_format.MessageToString(schema))
    for split, table in tables.items():
        for artifact, name, content in (
            (examples, "data_tfrecord-00000-of-00001.gz", None),
            (statistics, "FeatureStats.pb", statistics_of(table).SerializeToString()),
        ):
            path = Path(artifact_utils.get_split_uri([artifact], split)) / name
            path.parent.mkdir(parents=True)
            if content:
                path.write_bytes(content)
            else:
                with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
                    for record in serialize(table):
                        writer.write(record)
    settings = ValidatorSettings(Label("back"), DataChecks(), "schema.pbtxt", str(tmp_path / "none"))
    ExampleValidatorExecutor().Do(
        {"examples": [examples], "statistics": [statistics], "schema": [of_schema]},
        {"anomalies": [anomalies]},
        {"settings": to_json(settings)},
    )
    found = [one for one in from_json((tmp_path / "a/findings.json").read_text()) if one.kind == "notation"]
    assert [(one.feature, one.split, one.severity) for one in found] == [("day", "test", "warn")]
    assert found[0].found.startswith("1 of 60 rows looked at")


def test_monitor_warns_of_requests_in_another_notation(schema, tmp_path):
    instances = [{"day": "2024-01-31", "paid": "7,5 €", "stamp": 1_700_000_000 + 1000 * number} for number in range(9)]
    config = load_config(ROOT / "configs/flights.py")
    config = dataclasses.replace(config, label=dataclasses.replace(config.label, name="back"))
    requests = RequestRows(7, instances, "first", "last", 0, 0)
    train = statistics_of(rows(["01.02.2024"] * 50, 0))
    lines, crossed = report(requests, schema, train, config, Remedies(None, ""), str(tmp_path), None)
    assert not crossed
    assert lines[-2].startswith("note: no column has a skew_comparator in the schema, so no column's distribution was")
    assert "  warning  day in serving: 9 of 9 rows looked at have text in another notation" in "\n".join(lines)


def test_monitor_warns_of_a_category_without_a_domain_of_which_no_value_is_known(tmp_path):
    schema = schema_pb2.Schema()
    for name in ("colour", "flag"):
        schema.feature.add(name=name, type=schema_pb2.BYTES)
    schema.feature[1].string_domain.value.extend(["False", "True"])
    train = statistics_of(pa.table({"colour": lists(["red", "blue"] * 50), "flag": lists(["True", "False"] * 50)}))
    config = load_config(ROOT / "configs/flights.py")
    instances = [{"colour": "rot" if row % 2 else "blau", "flag": bool(row % 2)} for row in range(40)]
    requests = RequestRows(7, instances, "first", "last", 0, 0)
    lines, crossed = report(requests, schema, train, config, Remedies(None, ""), str(tmp_path), None)
    assert not crossed
    (found,) = [line for line in lines if line.startswith("  warning")]
    assert found.startswith(
        "  warning  colour in serving: none of 40 values is known from training: found 'blau', 'rot'; expected 'r"
    )
    half = [*instances[:20], *({"colour": "red", "flag": "true"} for _ in range(20))]
    lines, _ = report(
        dataclasses.replace(requests, instances=half), schema, train, config, Remedies(None, ""), str(tmp_path), None
    )
    assert not [line for line in lines if line.startswith("  warning")]
