"""Functions for a module file's ``preprocessing_fn``: text and whole numbers → numbers, inside TensorFlow's graph.

They travel with the model, so that a server takes dates and amounts as they stand in the data.
"""

import datetime
import math
import re

import tensorflow as tf
import tensorflow_transform as tft

from pipeline.settings.notations import (
    ABOVE,
    AMOUNTS,
    BELOW,
    CENTURY_TURNS,
    MONTHS,
    NEGATIVE,
    PLAIN_NUMBER,
    TIME_OF_DAY,
    UNITS,
    YEARS,
    around_amounts,
    date_pattern,
)

DAY = 86_400
YEAR = 365.2425
# By the number of the month, from 1.
DAYS_OF_MONTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# Days of years that are not far away, since 1970-01-01.
DAYS = [datetime.date(year, 1, 1).toordinal() - 719_163 for year in (YEARS[0], YEARS[1] + 1)]
# The trend counts from here, so that 32-bit floats tell hours apart.
ORIGIN_DAY = 10_957  # 2000-01-01, in days since 1970-01-01
# Parts of equally many values that numbers are placed among.
QUANTILES = 128


def dense(value: tf.Tensor | tf.SparseTensor, missing: float | str) -> tf.Tensor:
    """Return [batch, 1], with ``missing`` in the place of what a row lacks."""
    if not isinstance(value, tf.SparseTensor):
        return value
    one_a_row = tf.SparseTensor(value.indices, value.values, [value.dense_shape[0], 1])
    return tf.sparse.to_dense(one_a_row, missing)


def text(value: tf.Tensor | tf.SparseTensor) -> tf.Tensor:
    """Return text or whole numbers as text [batch, 1], "" where one is missing."""
    if value.dtype == tf.string:
        return dense(value, "")
    if isinstance(value, tf.SparseTensor):
        return dense(value.with_values(tf.strings.as_string(tf.cast(value.values, tf.int64))), "")
    return tf.strings.as_string(tf.cast(value, tf.int64))


def number(value: tf.Tensor | tf.SparseTensor, origin: int = 0) -> tf.Tensor:
    """Return numbers as float32 [batch, 1], NaN where one is missing.

    Args:
        value: Integers or floats, [batch, 1].
        origin: Subtracted from integers first: float32 holds 24 bits, and so tells timestamps apart to minutes only.
    """
    if origin and value.dtype == tf.int64:
        is_sparse = isinstance(value, tf.SparseTensor)
        value = value.with_values(value.values - origin) if is_sparse else value - origin
    return dense(tf.cast(value, tf.float32), math.nan)


def amount(value: tf.Tensor | tf.SparseTensor, decimal: str = ".", unit: str = "", origin: int = 0) -> tf.Tensor:
    """Return amounts as float32 [batch, 1], NaN where a text is not an amount; currencies and "%" are ignored.

    Args:
        value: Text, [batch, 1], such as "$1,200.50", "12 %", "(300)", "1.234,5 €" or "<0.5", which is 0.5.
        decimal: The decimal sign, "." or ",".
        unit: May follow, such as "kg"; with another one, a text is not an amount.
        origin: Subtracted, as by ``number``.
    """
    return tf.cast(_amount(dense(value, ""), decimal, unit) - origin, tf.float32)


def censored(value: tf.Tensor | tf.SparseTensor) -> tf.Tensor:
    """Return which texts [batch, 1] are bounds: -1 for an upper one, "<5", 1 for a lower one, ">5" or "5+", else 0."""
    text = dense(value, "")
    below, above = (tf.cast(tf.strings.regex_full_match(text, side), tf.float32) for side in (BELOW, ABOVE))
    return above - below


def _amount(text: tf.Tensor, decimal: str, unit: str) -> tf.Tensor:
    for pattern in around_amounts(unit):
        text = tf.strings.regex_replace(text, pattern, "", replace_global=False)
    digits = tf.strings.regex_replace(text, rf"[^0-9{decimal}]", "")
    digits = tf.strings.regex_replace(digits, ",", ".")
    is_amount = tf.strings.regex_full_match(text, AMOUNTS[decimal])
    size = tf.strings.to_number(tf.where(is_amount, digits, "nan"), tf.float64)
    size = tf.where(tf.strings.regex_full_match(text, NEGATIVE), -size, size)
    is_plain = tf.strings.regex_full_match(text, PLAIN_NUMBER)
    plain = tf.strings.to_number(tf.where(is_plain, tf.strings.strip(text), "nan"), tf.float64)
    return tf.where(is_amount, size, plain)


def quantile_transform(numbers: tf.Tensor) -> tf.Tensor:
    """Place numbers among the numbers of the train split: 0 at the lowest, 1 at the highest.

    Between two different quantiles the place is interpolated, so equal steps hold about equally many values, however
    skewed they are. A number outside lies less than 0.5 below 0 or above 1: a network cuts it off or hardly notices,
    and trees still distinguish it.

    Args:
        numbers: float32 [batch, numbers]; NaN and infinite numbers are missing.

    Returns:
        float32 [batch, numbers], NaN where a number is missing: for the layers of ``tabular``, and for trees.
    """
    numbers = tf.where(tf.math.is_finite(numbers), numbers, math.nan)
    # A column without any number has no quantiles, and its neighbours' would take their place: zeros that hardly weigh.
    filled = tf.concat([numbers, tf.zeros_like(numbers[:1])], axis=0)
    weights = tf.concat([tf.ones_like(numbers[:, 0]), tf.fill([tf.minimum(tf.shape(numbers)[0], 1)], 1e-6)], axis=0)
    edges = tft.quantiles(filled, QUANTILES, epsilon=0.1 / QUANTILES, weights=weights, reduce_instance_dims=False)
    columns = tf.transpose(numbers)  # [numbers, batch], as the edges are [numbers, QUANTILES - 1]
    missing = tf.math.is_nan(columns)
    columns = tf.where(missing, 0.0, columns)
    # Equal quantiles, of a value that is frequent, are one step.
    steps = tf.cumsum(tf.cast(edges[:, 1:] > edges[:, :-1], tf.float32), axis=1)
    most, spread = steps[:, -1:], edges[:, -1:] - edges[:, :1]
    # By the number of edges at or below a value: where its part begins, how wide it is, and the steps before it.
    low, high = tf.concat([edges[:, :1], edges], axis=1), tf.concat([edges, edges[:, -1:]], axis=1)
    width = tf.where(high > low, high - low, math.inf)
    parts = tf.stack([low, width, tf.pad(steps, [[0, 0], [2, 0]])], axis=2)
    part = tf.gather(parts, tf.searchsorted(edges, columns, side="right"), batch_dims=1)
    low, width, step = tf.unstack(part, axis=2)  # [numbers, batch]
    inside = tf.clip_by_value(columns, edges[:, :1], edges[:, -1:])
    place = tf.where(most > 0, (step + (inside - low) / width) / most, 0.5)
    outside = columns - inside
    outside /= tf.where(spread > 0, spread, 1.0) + tf.abs(outside)  # -1 to 1
    return tf.transpose(tf.where(missing, math.nan, place + 0.5 * outside))


def calendar(value: tf.Tensor | tf.SparseTensor, form: str) -> tf.Tensor:
    """Return features of points in time, float32 [batch, 7], NaN where a value is missing or no such time.

    Years since 2000; sine and cosine of the time of the year, of the week and of the day. Of a time of day alone only
    the last two, [batch, 2].

    Args:
        value: Text or whole numbers, [batch, 1].
        form: How text is written, one of ``notations.DATES``; or of whole numbers since 1970, in text too, the unit, a
            key of ``notations.UNITS``, or "time of day" for microseconds since midnight.
    """
    if value.dtype == tf.string and form in UNITS:
        seconds = _amount(dense(value, ""), ".", "") * UNITS[form]
        known = tf.math.is_finite(seconds)
    elif value.dtype == tf.string:
        seconds, known = _seconds(dense(value, ""), form)
    else:
        whole = dense(value, value.dtype.min)
        known = whole != value.dtype.min
        if form == "%Y%m%d":
            seconds, known_date = _seconds(tf.strings.as_string(whole), form)
            known &= known_date
        else:
            unit = UNITS["microseconds"] if form == TIME_OF_DAY else UNITS[form]
            seconds = tf.cast(whole, tf.float64) * unit
    days = tf.floor(seconds / DAY)
    phases = [(seconds - days * DAY) / DAY]
    features = []
    if form not in ("%H:%M", TIME_OF_DAY):
        known &= (days >= DAYS[0]) & (days < DAYS[1])
        features.append((seconds / DAY - ORIGIN_DAY) / YEAR)
        # 1970-01-05 was a Monday.
        phases = [(days - ORIGIN_DAY) / YEAR, (days - 4) / 7, *phases]
    for phase in phases:
        angle = 2 * math.pi * (phase - tf.floor(phase))
        features += [tf.sin(angle), tf.cos(angle)]
    return tf.where(known, tf.cast(tf.concat(features, axis=1), tf.float32), math.nan)


def _seconds(text: tf.Tensor, form: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Return seconds since 1970-01-01 UTC, float64, and whether a text is such a time; both [batch, 1]."""
    pattern = date_pattern(form)
    groups = re.compile(pattern).groupindex
    matches = tf.strings.regex_full_match(text, pattern.strip("^$"))

    def part(name: str) -> tf.Tensor:
        return tf.where(matches, tf.strings.regex_replace(text, pattern, rf"\{groups[name]}"), "")

    def whole(name: str) -> tf.Tensor:
        digits = part(name)
        return tf.strings.to_number(tf.where(digits == "", "0", digits), tf.int64)

    hour, minute = whole("hour"), whole("minute")
    half = tf.strings.lower(tf.strings.substr(part("half"), 0, 1))
    hour = tf.where(half == "", hour, hour % 12 + tf.where(half == "p", tf.constant(12, tf.int64), 0))
    seconds = tf.cast(3600 * hour + 60 * minute + whole("second"), tf.float64) - _offset(part("zone"))
    if form == "%H:%M":
        return seconds, matches
    if "year" in groups:
        year = whole("year")
    else:
        year = whole("short")
        year += tf.where(year >= CENTURY_TURNS, tf.constant(1900, tf.int64), 2000)
    if "month" in groups:
        month = whole("month")
    else:
        names = tf.strings.lower(part("name"))  # [batch, 1], compared with each month's
        month = tf.argmax(names == tf.constant(MONTHS), axis=1, output_type=tf.int64)[:, tf.newaxis] + 1
    day = whole("day")
    leap = (month == 2) & (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    matches &= day <= tf.gather(tf.constant(DAYS_OF_MONTHS, tf.int64), month) + tf.cast(leap, tf.int64)
    return seconds + DAY * tf.cast(_days(year, month, day), tf.float64), matches


def _offset(zone: tf.Tensor) -> tf.Tensor:
    """Return the seconds that a zone such as "+02:00" is ahead of UTC; 0 for none."""
    digits = tf.strings.regex_replace(zone, "[^0-9]", "")
    digits = tf.where(tf.strings.length(digits) == 2, digits + "00", digits)
    number = tf.strings.to_number(tf.where(digits == "", "0", digits), tf.int64)
    seconds = tf.cast(3600 * (number // 100) + 60 * (number % 100), tf.float64)
    return tf.where(tf.strings.regex_full_match(zone, ".*-.*"), -seconds, seconds)


def _days(year: tf.Tensor, month: tf.Tensor, day: tf.Tensor) -> tf.Tensor:
    """Return days since 1970-01-01 in the Gregorian calendar.

    By Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that the leap day is the
    last one.
    """
    year = tf.where(month <= 2, year - 1, year)
    month = (month + 9) % 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719_468
