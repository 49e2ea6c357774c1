"""A minority of other values does not change what a column of times, numbers or amounts is, and ``new`` names it."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform.tf_metadata.schema_utils import schema_as_feature_spec

from pipeline.errors import UserError
from pipeline.quality.serving_skew import statistics_of
from pipeline.report.data import _figure
from pipeline.scaffold import files
from pipeline.scaffold.columns import Column
from pipeline.scaffold.table import look
from pipeline.scaffold.texts import Amounts, Texts, _numbers, times_of
from pipeline.settings.config import Data
from pipeline.settings.notations import AMOUNTS, DATES
from pipeline.training.preprocessing import amount, calendar
from tests.quality.test_wrong_notations import TEXTS
from tests.scaffold.test_columns import NOT_TOO_FEW, columns_of, repeated, table_of

VAR_LEN = tf.io.VarLenFeature
NUMBERS = [f"{row * 7919 % 5003 / 100:.2f}" for row in range(NOT_TOO_FEW)]
DAYS = pd.date_range("2023-01-01", periods=NOT_TOO_FEW)


def column_of(values: list, folder, name: str = "x", format: str = "csv") -> Column:
    return columns_of(pd.DataFrame({name: values}), folder, format)[name]


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize(
    "odd",
    [
        ["unknown", "TBD", "unknown"],
        ["2023-02-30", "0000-00-00", "24:00"],
        ["9999-12-31", "0001-01-01", "3000-01-01"],
        [" never ", "31/12/2023", "soon"],
    ],
)
def test_a_few_words_among_dates_are_missing_and_named(tmp_path, format, odd):
    column = column_of([*DAYS.strftime("%Y-%m-%d")[:-3], *odd], tmp_path, format=format)
    assert (column.role, column.form, column.left_out) == ("time", "%Y-%m-%d", None)
    assert column.note.startswith("3 of 400 values are not dates and count as missing: ")
    for word in odd:
        assert repr(word) in column.note
    assert "row 398" in column.note


@pytest.mark.parametrize("missing", ["NaT", "n/a", "  ", "--", "?", "\t", "NULL", "\\N", "#N/A", "<NA>", "-"])
def test_usual_spellings_of_missing_are_missing_without_a_note(tmp_path, missing):
    frame = pd.DataFrame({"day": DAYS.strftime("%d.%m.%Y"), "number": NUMBERS, "price": [f"${n}" for n in NUMBERS]})
    frame.iloc[::3] = missing
    columns = columns_of(frame, tmp_path)
    assert {name: column.role for name, column in columns.items()} == {
        "day": "time",
        "number": "number",
        "price": "amount",
    }
    assert [column.note for column in columns.values()] == ["", "", ""]


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("%d-%b-%Y", "%d %b %Y"),
        ("%d %B %Y", "%d %b %Y"),
        ("%a, %d %b %Y %H:%M:%S +0100", "%d %b %Y"),
        ("%d/%b/%Y:%H:%M:%S +0000", "%d %b %Y"),
        ("%d%b%Y", "%d %b %Y"),
        ("%d-%b-%y", "%d %b %y"),
        ("%b %d, %Y", "%b %d %Y"),
        ("%Y-%b-%d", "%Y %b %d"),
        ("%m/%d/%y", "%m/%d/%y"),
        ("%d/%m/%y", "%d/%m/%y"),
        ("%d.%m.%y", "%d.%m.%y"),
        ("%Y.%m.%d", "%Y.%m.%d"),
        ("%Y%m%dT%H%M%SZ", "%Y%m%d"),
        ("%m/%d/%Y, %I:%M:%S\u202f%p", "%m/%d/%Y"),
    ],
)
def test_dates_are_read_as_people_and_programs_write_them(tmp_path, written, form):
    column = column_of([*DAYS.strftime(written)[:-1], "unknown"], tmp_path)
    assert (column.role, column.form) == ("time", form)
    assert column.note == "1 of 400 values is not a date and counts as missing: 'unknown' (1, row 400)"
    found = calendar(tf.constant([[text] for text in DAYS.strftime(written)]), form).numpy()[:, 0]
    assert found == pytest.approx((DAYS.to_numpy() - np.datetime64("2000-01-01")) / np.timedelta64(31556952, "s"), 1e-3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [f"{row % 28 + 1}. März {1900 + row // 28}" for row in range(NOT_TOO_FEW)],
            "such as '1. März 1900' (row 1); if",
        ),
        (
            [f"Q{row % 4 + 1} {1900 + row // 4}" for row in range(NOT_TOO_FEW)],
            "no notation of dates that is read, such as",
        ),
        ([number if row % 3 else f"x{number}" for row, number in enumerate(NUMBERS)], "66 % of the values are numbers"),
        (
            [f"{number} {'kg' if row % 3 else 'lb'}" for row, number in enumerate(NUMBERS)],
            "66 % of the values are numbers in 'kg', the others are not, such as '0.00 lb' (row 1)",
        ),
        (
            [f"{number} {('kg', 'lb', 'oz')[row % 3]}" for row, number in enumerate(NUMBERS)],
            "numbers in several units, 'kg' (34 %), 'lb' (33 %), 'oz' (33 %), such as '0.00 kg' (row 1)",
        ),
    ],
)
def test_what_is_mostly_numbers_or_dates_is_noted_with_an_example(tmp_path, values, message):
    column = column_of(values, tmp_path)
    assert column.role in ("category", "text")
    assert message in (column.left_out or column.note)


@pytest.mark.parametrize(
    ("odd", "bounds"),
    [("<0.5", True), (">1000", True), ("<= 3", True), ("≥ 5", True), ("65+", True), ("~5", False), ("LOD", False)],
)
def test_numbers_with_bounds_are_numbers_and_the_model_knows_the_bounds(tmp_path, odd, bounds):
    column = column_of([odd if row % 8 == 1 else number for row, number in enumerate(NUMBERS)], tmp_path)
    assert (column.role, column.form, column.censored, column.left_out) == ("amount", ".", bounds, None)
    if odd != "~5":
        assert f"'{odd}' (50, first in row 2)" in column.note


@pytest.mark.parametrize("written", ["{} kg", "{}kg", "{} mg/L", "{} m²", "{} ml/min/1.73m2", "{} °C", "{} miles"])
def test_numbers_with_one_unit_are_numbers(tmp_path, written):
    column = column_of([*(written.format(number) for number in NUMBERS[:-2]), "0.7 stone", "7"], tmp_path)
    assert (column.role, column.unit, column.left_out) == ("amount", written[2:].strip(), None)
    assert "'0.7 stone' (1, row 399)" in column.note
    assert f"1 of 400 values has no unit and is read as {column.unit!r}: '7' (1, row 400)" in column.note


def test_amounts_of_several_currencies_are_noted(tmp_path):
    column = column_of([f"{'€' if row % 4 else '$'}{number}" for row, number in enumerate(NUMBERS)], tmp_path)
    assert "several currencies or signs are read alike: € (300), $ (100)" in column.note


def test_whole_numbers_with_a_word_are_what_they_are_without_it(tmp_path):
    def both(name: str, values: list) -> tuple[Column, Column]:
        return column_of(values, tmp_path, name), column_of([*map(str, values[:-1]), "unknown"], tmp_path, name)

    clean, odd = both("created_at", [1_700_000_000 + 977 * row for row in range(NOT_TOO_FEW)])
    assert (odd.role, odd.form) == (clean.role, clean.form) == ("time", "seconds")
    clean, odd = both("tract", [17_031_081_403 + row % 229 for row in range(NOT_TOO_FEW)])
    assert (odd.origin, odd.form) == (clean.origin, ".")
    clean, odd = both("rating", [row % 5 for row in range(NOT_TOO_FEW)])
    assert odd.role == clean.role == "code"
    clean, odd = both("customer_id", [row * 7 % 4001 for row in range(NOT_TOO_FEW)])
    assert odd.left_out == clean.left_out == "numbers the rows"
    found = calendar(tf.constant([["1700000000"], ["unknown"]]), "seconds").numpy()
    assert found[0] == pytest.approx(calendar(tf.constant([[1_700_000_000]], tf.int64), "seconds").numpy()[0])
    assert np.isnan(found[1]).all()
    origin = amount(tf.constant([["17031081404"], ["<17031081403"]]), origin=17_031_081_403)
    assert origin.numpy().tolist() == [[1], [0]]


def test_compact_dates_and_epochs_with_impossible_ones_are_times(tmp_path):
    days = [int(day) for day in DAYS.strftime("%Y%m%d")]
    column = column_of([*days[:-3], 0, 99991231, 20230230], tmp_path)
    assert (column.role, column.form) == ("time", "%Y%m%d")
    assert "3 of 400 values are not dates and count as missing: '0' (1, row 398), '99991231'" in column.note
    far = pa.array([*DAYS.to_pydatetime()[:-1], pd.Timestamp("9999-12-31").to_pydatetime()], pa.timestamp("us"))
    bought = pa.array(repeated("yes", "no"))
    pq.write_table(pa.table({"when": far, "bought": bought}), tmp_path / "far.parquet")
    (column,) = look(Data(str(tmp_path / "far.parquet")), "bought", None).columns
    assert column.note.startswith(
        "1 of 400 values are of years before 1500 or after 2899 and count as missing, first in"
    )
    assert np.isnan(calendar(tf.constant([[253_402_214_400]], tf.int64), "seconds").numpy()).all()


def test_infinite_values_are_named_with_their_first_row(tmp_path):
    column = column_of([*NUMBERS[:-2], "inf", "-Infinity"], tmp_path)
    assert column.note == "2 of 400 values are infinite and count as missing, first in row 399"


@pytest.mark.slow
def test_infinite_values_neither_warn_nor_are_missing_in_the_report(tmp_path, recwarn):
    frame = pd.DataFrame({"x": ["inf", "-inf", *NUMBERS[2:]], "bought": repeated("yes", "no")})
    table = table_of(frame, tmp_path)
    files.schema_text(table, ())
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]
    (of_split,) = statistics_of(table.rows.select(["x"])).datasets
    figure = _figure("x", {"train": {"x": of_split.features[0]}})
    assert figure is None or "<svg" in figure.svg


def test_rows_of_several_files_are_named_with_their_file(tmp_path):
    frame = pd.DataFrame({"day": DAYS.strftime("%Y-%m-%d"), "bought": repeated("yes", "no")})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.assign(day=["TBD", *frame["day"][1:]]).to_csv(tmp_path / "b.csv", index=False)
    (column,) = look(Data(str(tmp_path)), "bought", None).columns
    assert column.note.endswith(f"'TBD' (1, row 1 of {tmp_path / 'b.csv'})")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["<4.0", *NUMBERS[1:]], "not a number in 1 of 400 rows: '<4.0' (1, row 1); expected one in every row"),
        (["?" if row % 20 == 3 else str(row % 2) for row in range(NOT_TOO_FEW)], "'?' (20, first in row 4)"),
        (["inf", *NUMBERS[1:]], "the label 'bought' is inf in 1 of 400 rows, first in row 1; expected finite numbers"),
        (["NaN", *NUMBERS[1:]], "is nan in 1 of 400 rows, first in row 1"),
        ([f"{number} kg" for number in NUMBERS], "These are amounts, which are read of other columns only"),
    ],
)
def test_a_label_of_numbers_with_other_values_is_refused_with_these(tmp_path, values, message):
    frame = pd.DataFrame({"bought": values, "other": range(NOT_TOO_FEW)})
    with pytest.raises(UserError) as error:
        table_of(frame, tmp_path)
    assert message in str(error.value)


def test_a_label_of_words_and_numbers_has_classes(tmp_path):
    frame = pd.DataFrame({"bought": repeated("1", "2", "3", "other"), "other": NUMBERS})
    assert table_of(frame, tmp_path).label.classes == ("1", "2", "3", "other")


def test_the_module_the_schema_and_the_summary_name_units_bounds_and_words(tmp_path):
    frame = pd.DataFrame(
        {
            "mass": [f"{number} kg" for number in NUMBERS],
            "lead": ["<0.5" if row % 8 == 1 else number for row, number in enumerate(NUMBERS)],
            "rating": [*(str(row % 5) for row in range(NOT_TOO_FEW - 1)), "none yet"],
            "since": [*(str(1_700_000_000 + 97 * row) for row in range(NOT_TOO_FEW - 1)), "never"],
            "bought": repeated("yes", "no"),
        }
    ).rename(columns={"since": "since_date"})
    table = table_of(frame, tmp_path)
    module = files.module_text("some", table)
    for line in (
        'AMOUNTS = {"mass": ".", "lead": ".", "rating": "."}',
        'UNITS = {"mass": "kg"}',
        'CENSORED = ("lead",)',
        'CODES = ("rating",)',
        'TIMES = {"since_date": "seconds"}',
    ):
        assert f"\n{line}\n" in module
    schema = files.schema_text(table, ())
    assert 'tag: "amount: . kg"' in schema
    assert schema.count('tag: "amount: ."') == 3
    parsed = text_format.Parse(schema, schema_pb2.Schema())
    optional = {name for name, spec in schema_as_feature_spec(parsed).feature_spec.items() if isinstance(spec, VAR_LEN)}
    assert optional == {"rating", "since_date"}  # as requests may lack what a text has said is missing
    notes = [line for kind, line in files.summary(table) if kind == "note"]
    assert "'rating': 1 of 400 values is not a number and counts as missing: 'none yet' (1, row 400)" in notes


@pytest.mark.parametrize("unit", ["", "kg"])
@pytest.mark.parametrize("sign", AMOUNTS)
def test_new_reads_the_numbers_that_the_model_reads(sign, unit):
    texts = [
        *TEXTS,
        *(f"{text} kg" for text in TEXTS),
        *(f"<{text}" for text in TEXTS),
        "1,5 kg",
        "+2.5",
        "3 kg.",
        "5+",
    ]
    of_new = Amounts(sign, unit, _numbers(pa.array(texts, pa.large_string()), sign, unit)).numbers
    of_model = amount(tf.constant(texts)[:, None], sign, unit).numpy()[:, 0]
    assert of_new == pytest.approx(of_model, nan_ok=True)


@pytest.mark.parametrize("form", DATES)
def test_new_reads_the_times_that_the_model_reads(form):
    texts = Texts.of(pa.array(TEXTS, pa.large_string()))
    of_model = ~np.isnan(calendar(tf.constant(texts.words.to_pylist())[:, None], form).numpy()[:, 0])
    assert times_of(texts, (form,)).fits.tolist() == of_model.tolist()
