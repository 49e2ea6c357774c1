"""Dates and amounts as text, and large whole numbers, become the numbers that a person reads in them."""

import datetime
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.training.preprocessing import amount, calendar, number


def column(values: list, dtype: tf.DType) -> tf.SparseTensor:
    """A raw feature as Transform hands it over: None is missing."""
    present = [(row, value) for row, value in enumerate(values) if value is not None]
    return tf.SparseTensor(
        np.array([[row, 0] for row, _ in present], np.int64).reshape(-1, 2),
        tf.constant([value for _, value in present], dtype),
        [len(values), 1],
    )


def of(moment: datetime.datetime) -> list[float]:
    """The features of a point in time, by Python's calendar."""
    days = moment.replace(tzinfo=None) - datetime.datetime(2000, 1, 1)
    day = (days.seconds + days.microseconds / 1e6) / 86_400
    phases = (days.days / 365.2425, moment.weekday() / 7, day)
    waves = [wave(2 * math.pi * phase) for phase in phases for wave in (math.sin, math.cos)]
    return [(days.days + day) / 365.2425, *waves]


@pytest.mark.parametrize(
    ("form", "text", "moment"),
    [
        ("%Y-%m-%d", "2024-02-29", (2024, 2, 29)),
        ("%Y-%m-%d", "2024-02-29T13:45:10.250Z", (2024, 2, 29, 13, 45, 10)),
        ("%Y-%m-%d", "2024-02-29 23:30:00+02:00", (2024, 2, 29, 21, 30)),
        ("%Y-%m-%d", "1969-12-31 19:00:00 -0500", (1970, 1, 1)),
        ("%d.%m.%Y", "31.12.1899", (1899, 12, 31)),
        ("%m/%d/%Y", "3/4/2024 1:05 PM", (2024, 3, 4, 13, 5)),
        ("%m/%d/%Y", "12/31/2023 12:10 am", (2023, 12, 31, 0, 10)),
        ("%d/%m/%Y", "03/04/2024", (2024, 4, 3)),
        ("%Y%m%d", "20240229", (2024, 2, 29)),
    ],
)
def test_dates_are_read_as_python_reads_them(form, text, moment):
    found = calendar(column([text], tf.string), form).numpy()
    assert found[0] == pytest.approx(of(datetime.datetime(*moment)), abs=2e-5)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2300, 1, 1)))
def test_any_day_of_six_centuries_is_read_right_from_text_and_from_whole_numbers(moment):
    moment = moment.replace(microsecond=0)
    micros = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    for value, dtype, form in (
        (moment.isoformat(), tf.string, "%Y-%m-%d"),
        (f"{moment:%d/%m/}{moment.year:04d}{moment: %H:%M:%S}", tf.string, "%d/%m/%Y"),
        (micros, tf.int64, "microseconds"),
        (micros // 10**6, tf.int64, "seconds"),
    ):
        assert calendar(column([value], dtype), form).numpy()[0] == pytest.approx(of(moment), abs=1e-4)


def test_what_is_no_date_is_missing_and_so_is_a_gap():
    found = calendar(column(["2024-13-01", "NA", None, "2024-01-01x", "2024-01-01"], tf.string), "%Y-%m-%d").numpy()
    assert np.isnan(found).all(axis=1).tolist() == [True, True, True, True, False]
    no_days = ["31.02.2024", "29.02.2023", "29.02.1900", "31.04.2024", "29.02.2024", "29.02.2000", "31.12.2024"]
    found = calendar(column(no_days, tf.string), "%d.%m.%Y").numpy()
    assert np.isnan(found).all(axis=1).tolist() == [True, True, True, True, False, False, False]
    assert np.isnan(calendar(column([None, 20240229, 20241301], tf.int64), "%Y%m%d").numpy())[:, 0].tolist() == [
        True,
        False,
        True,
    ]


def test_a_time_of_day_has_its_place_in_the_day_only():
    found = calendar(column(["06:00", "18:00:00", "25:00"], tf.string), "%H:%M").numpy()
    assert found[:2] == pytest.approx(np.array([[1, 0], [-1, 0]]), abs=1e-6)
    assert np.isnan(found[2]).all()
    assert calendar(column([21_600_000_000], tf.int64), "time of day").numpy()[0] == pytest.approx([1, 0], abs=1e-6)


@pytest.mark.parametrize(
    ("decimal", "texts"),
    [
        (
            ".",
            {
                "$1,200.50": 1200.5,
                "12%": 12,
                "€ 3.50": 3.5,
                "(300)": -300,
                "-$5": -5,
                "$-5": -5,
                "1e-3": 0.001,
                "7-": -7,
                "\u22127.5": -7.5,
                "$ \u22121,000": -1000,
                " 1 000 ": 1000,
                "CHF 1'200": 1200,
                "0": 0,
                "$.5": 0.5,
                "abc": math.nan,
                "1.2.3": math.nan,
                "": math.nan,
                "$": math.nan,
            },
        ),
        (
            ",",
            {
                "1.234,5": 1234.5,
                "12,5 %": 12.5,
                "-1.000.000,25 €": -1000000.25,
                "1.234,5\u00a0€": 1234.5,
                "(1\u202f000,5) €": -1000.5,
                "7": 7,
                "1,2,3": math.nan,
            },
        ),
    ],
)
def test_amounts_are_the_numbers_in_them(decimal, texts):
    found = amount(column([*texts, None], tf.string), decimal).numpy()[:, 0]
    assert found.tolist() == pytest.approx([*texts.values(), math.nan], nan_ok=True)


def test_whole_numbers_beyond_24_bits_keep_their_differences_from_an_origin():
    values = [17031081403, 17031081404, None, 17031081499]
    assert number(column(values, tf.int64), 17031081400).numpy()[:, 0].tolist() == pytest.approx(
        [3, 4, math.nan, 99], nan_ok=True
    )
    assert len(set(number(column([17031081403, 17031081404], tf.int64)).numpy()[:, 0].tolist())) == 1
