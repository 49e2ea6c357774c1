"""Columns of dates, times and amounts that ``new`` finds in text and numbers, in the notation that they are in."""

import pandas as pd
import pytest

from tests.scaffold.test_columns import NOT_TOO_FEW, columns_of, repeated


def dates(form: str) -> list[str]:
    return [f"{pd.Timestamp('2023-01-01') + pd.Timedelta(days=row):{form}}" for row in range(NOT_TOO_FEW)]


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (dates("%Y-%m-%d"), "%Y-%m-%d"),
        ([f"{day}T08:30:00Z" for day in dates("%Y-%m-%d")], "%Y-%m-%d"),
        ([*dates("%Y-%m-%d")[2:], "NA", ""], "%Y-%m-%d"),
        (dates("%d.%m.%Y"), "%d.%m.%Y"),
        (dates("%d/%m/%Y"), "%d/%m/%Y"),
        (dates("%m/%d/%Y"), "%m/%d/%Y"),
        (dates("%Y%m%d"), "%Y%m%d"),
        (repeated("06:10", "23:59", "0:00"), "%H:%M"),
    ],
)
def test_dates_and_times_in_text_are_times(tmp_path, values, form):
    column = columns_of(pd.DataFrame({"day": values}), tmp_path)["day"]
    assert (column.role, column.form, column.left_out) == ("time", form, None)


@pytest.mark.parametrize("values", [repeated("03/04/2024", "05/06/2024", "01/02/2023")])
def test_dates_that_are_two_days_at_once_are_read_as_american_and_said_so(tmp_path, values):
    column = columns_of(pd.DataFrame({"day": values}), tmp_path)["day"]
    assert column.form == "%m/%d/%Y"
    assert "but %d/%m/%Y would fit as well" in column.note


@pytest.mark.parametrize(
    "values",
    [repeated("2023-02-30", "2023-01-01"), repeated("99.99.2023", "1.1.2023"), repeated("12-34", "56-78", "1-2")],
)
def test_what_only_looks_like_a_date_is_text(tmp_path, values):
    assert columns_of(pd.DataFrame({"day": values}), tmp_path)["day"].role == "category"


@pytest.mark.parametrize(
    ("values", "sign"),
    [
        ([f"${row:,}.50" for row in range(900, 900 + NOT_TOO_FEW)], "."),
        ([f"{row / 7:.2f}%" for row in range(NOT_TOO_FEW)], "."),
        ([f"€ {row / 7:.2f}" for row in range(NOT_TOO_FEW)], "."),
        ([f"{row},5" for row in range(NOT_TOO_FEW)], ","),
        ([f"1.{row:03d},25" for row in range(NOT_TOO_FEW)], ","),
        ([f"({3 * row})" for row in range(NOT_TOO_FEW)], "."),
    ],
)
def test_amounts_in_text_are_amounts_with_their_decimal_sign(tmp_path, values, sign):
    column = columns_of(pd.DataFrame({"price": values}), tmp_path)["price"]
    assert (column.role, column.form, column.left_out, column.note) == ("amount", sign, None, "")


def test_a_few_words_among_numbers_count_as_missing_and_are_named(tmp_path):
    values = [*(f"{row}.5" for row in range(NOT_TOO_FEW - 3)), "abc", "abc", "twelve"]
    column = columns_of(pd.DataFrame({"price": values}), tmp_path)["price"]
    assert column.role == "amount"
    assert column.note == (
        "3 of 400 values are not numbers and count as missing: 'abc' (2, first in row 398), 'twelve' (1, row 400)"
    )


@pytest.mark.parametrize(
    ("name", "values", "form"),
    [
        ("created_at", [1_700_000_000 + 977 * row for row in range(NOT_TOO_FEW)], "seconds"),
        ("timestamp", [1_700_000_000_000 + 977 * row for row in range(NOT_TOO_FEW)], "milliseconds"),
        ("size", [1_700_000_000 + 977 * row for row in range(NOT_TOO_FEW)], ""),
    ],
)
def test_whole_numbers_that_count_from_1970_are_times_where_the_name_says_so(tmp_path, name, values, form):
    column = columns_of(pd.DataFrame({name: values}), tmp_path)[name]
    assert column.form == form
    assert bool(column.origin) == (not form)


def test_parquet_times_are_times_in_their_unit(tmp_path):
    moments = pd.date_range("2024-01-01", periods=NOT_TOO_FEW, freq="7h")
    frame = pd.DataFrame({"moment": moments, "day": moments.date, "clock": moments.time})
    forms = {name: column.form for name, column in columns_of(frame, tmp_path, "parquet").items()}
    assert forms == {"moment": "microseconds", "day": "days", "clock": "time of day"}
