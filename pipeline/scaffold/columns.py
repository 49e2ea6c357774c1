"""Infer from a column's values what it holds and how a model can use it."""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data import csv_files
from pipeline.data.table import as_integers, one_array, type_name
from pipeline.errors import UserError, first_line
from pipeline.scaffold.texts import (
    SHARE,
    Amounts,
    Place,
    Texts,
    about_amounts,
    amounts_of,
    row_number,
    times_of,
    units_of,
)
from pipeline.settings.names import how_to_leave_out
from pipeline.settings.notations import MONTHS, TIME_OF_DAY, UNITS, YEARS

Role = Literal["category", "number", "code", "time", "amount", "text", "sequence", "none"]
ROWS_WITH_A_VALUE = 60
# Whole numbers of more different values are a quantity.
VALUES_OF_A_CODE = 50
# More columns of few whole numbers than this are measures of one kind, such as the pixels of an image.
MOST_UNNAMED_CODES = 16
NAMES_OF_CODES = re.compile(r"(^|[ _-])(id|code|zip|zipcode|postcode|tract|area)s?$", re.IGNORECASE)
NAMES_OF_TIMES = re.compile(r"(time|date|stamp|epoch|created|updated|modified|when)|_(at|ts|on)$", re.IGNORECASE)
DAY_FIRST = {f"%m{sign}%d{sign}{year}": f"%d{sign}%m{sign}{year}" for sign in "/-" for year in ("%Y", "%y")}
# Bits of a float32's mantissa; whole numbers beyond lose their last digits.
FLOAT_BITS = 24
# A text column with more distinct values than this holds sentences if its rows average this many words, and if half of
# the words also occur in other rows: only then can a model learn from the words.
DIFFERENT_TEXTS = 100
WORDS_OF_A_SENTENCE = 3
WORD = r"[\pL\pM\pN']+"
# Scripts without spaces between words: each of their characters is taken for a word, and counts as half of one.
CHARACTER = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
TEXTS_LOOKED_AT = 10_000
# Nearly all rows have at most as many words or items as are looked at.
SHARE_OF_LENGTHS = 0.95
MOST_PLACES = 512
# Text that may be a date: three parts of which one may be a name, a month or quarter with its year, or a week.
LIKE_A_DATE = (
    r"^(\pL+,? )?([0-9]{1,4}[-/. ]+([0-9]{1,2}|\pL{3,9}\.?)[-/., ]+[0-9]{2,4}|[12][0-9]{3}[-/. ]?[WQMwq]?[0-9]{1,2}"
    rf"|(?i:{'|'.join(MONTHS)}|[QW][0-9]+)\pL*[-/.,' ]+[0-9]{{2,4}}|(?i:{'|'.join(MONTHS)}) +[0-9]{{1,2}} )"
)
# Epochs of 1980 to 2100, in seconds.
EPOCHS = (315_532_800, 4_102_444_800)


@dataclass(frozen=True)
class Column:
    """A column that is not the label."""

    name: str
    type: str  # in a tf.Example: "text", "integers", "floats", "lists" or "nothing"
    role: Role = "none"  # a code is a number as well, of text an amount; "text" is sentences, "sequence" several values
    distinct: int = 0  # number of different values
    form: str = ""  # of a time, one of ``notations.DATES`` or a unit of time; of an amount, its decimal sign
    unit: str = ""  # of an amount
    censored: bool = False  # many amounts are bounds, such as "<0.5"
    gaps: bool = False  # some texts count as missing
    origin: int = 0  # from which whole numbers count that have more digits than float32
    places: int = 0  # words or items that nearly all rows have at most: a power of 2
    left_out: str | None = None  # why no model can use it
    note: str = ""  # how it is read


def describe(name: str, values: pa.ChunkedArray, *, from_text: bool, place: Place = row_number) -> Column:
    """Infer what a column of scalars or lists holds; ``from_text``: the file has no types, so text may be numbers."""
    try:
        return _described(name, values, from_text, place)
    except pa.ArrowInvalid as error:
        raise UserError(f"column {name!r}: {first_line(error)}; correct it, or {how_to_leave_out(name)}") from error


def _described(name: str, values: pa.ChunkedArray, from_text: bool, place: Place) -> Column:
    kind = type_name(values.type)
    if kind == "nothing" or values.null_count == len(values):
        return Column(name, "nothing", left_out="no row has a value")
    if kind.startswith("lists of "):
        return _lists(name, values, kind.removeprefix("lists of "))
    values = one_array(values)
    if kind == "text":
        try:
            values = values.cast(pa.large_string())
        except pa.ArrowInvalid:
            return Column(name, "text", left_out="bytes that are no text; say in the module file what to make of them")
        type_ = csv_files.narrowest(values) if from_text else csv_files.TEXT
        if type_ == csv_files.INTEGERS and pc.any(pc.match_substring_regex(values, "^ *0[0-9]")).as_py():
            type_ = csv_files.TEXT  # codes: as numbers they would lose the zeros before them
        if type_ == csv_files.TEXT:
            return _text(Texts.of(values, place), name, len(values))
        if type_ == csv_files.NOTHING:
            return Column(name, "nothing", left_out="no row has a value")
        values = one_array(csv_files.parse(values, type_)[0])
        kind = type_
    if kind == "floats":
        return _floats(name, values.cast(pa.float64()), place)
    units = {"timestamps": "microseconds", "dates": "days", "times of day": TIME_OF_DAY}
    if kind in units:
        column = Column(name, "integers", "time", pc.count_distinct(values).as_py(), units[kind])
        note = "" if kind == "times of day" else _far_away(as_integers(values), units[kind], place)
        return _if_usable(replace(column, note=note), values.drop_null(), len(values))
    if kind == "durations":
        values = values.cast(pa.duration("us"), safe=False).cast(pa.int64())
    if kind in ("booleans", "integers", "durations"):
        return _integers(name, values.cast(pa.int64()), place)
    return Column(name, "nothing", left_out=f"of type {values.type}, which no tf.Example can hold")


def without_too_many_codes(columns: list[Column]) -> list[Column]:
    """Treat many columns of few whole numbers as measures, such as pixels."""
    unnamed = [column for column in columns if column.role == "code" and not NAMES_OF_CODES.search(column.name)]
    if len(unnamed) <= MOST_UNNAMED_CODES:
        return columns
    return [
        replace(column, role="amount" if column.form else "number") if column in unnamed else column
        for column in columns
    ]


def _text(texts: Texts, name: str, rows: int) -> Column:
    if not texts.total:
        return Column(name, "text", left_out="no row has a value")
    column = Column(name, "text", "category", len(texts.words))
    times = times_of(texts)
    if texts.rows(times.fits) >= SHARE * texts.total:
        notes = [texts.odd(times.fits, "times" if times.form == "%H:%M" else "dates")]
        other = DAY_FIRST.get(times.form, "")
        if other and texts.rows(times_of(texts, (other,)).fits) == texts.rows(times.fits):
            notes.append(f"read as {times.form}, but {other} would fit as well: see TIMES in the module file")
        gaps = not times.fits.all()
        column = replace(column, role="time", form=times.form, gaps=gaps, note="; ".join(filter(None, notes)))
        return _if_usable(column, _known(texts, times.fits), rows)
    amounts = amounts_of(texts)
    if texts.rows(amounts.fits) >= SHARE * texts.total:
        return _amount(texts, name, amounts, rows)
    note = texts.mostly(times.fits, "dates") or texts.mostly(amounts.fits, amounts.kind) or _not_read(texts)
    column, known = replace(column, note=note), texts.words.take(pa.array(texts.places))
    places = _places_of_sentences(texts.words)
    if places:
        return _if_usable(replace(column, role="text", places=places), known, rows)
    if len(texts.words) > DIFFERENT_TEXTS and len(texts.words) > len(known) / 2:
        reason = f"{len(texts.words):,} different texts in {len(known):,} rows, too many to learn from each"
        return replace(column, left_out=f"{reason}{f'; {note}' if note else ''}")
    return _if_usable(column, known, rows)


def _known(texts: Texts, fits: np.ndarray) -> pa.Array:
    """Return the values of the rows whose words fit."""
    return texts.words.take(pa.array(texts.places[fits[texts.places]]))


def _amount(texts: Texts, name: str, amounts: Amounts, rows: int) -> Column:
    """Infer what the numbers in a column of text are, as of a column of numbers."""
    numbers = np.full(rows, np.nan)
    numbers[: len(texts.places)] = amounts.numbers[texts.places]
    column = _floats(name, pa.array(numbers, from_pandas=True), texts.place)
    notes, censored = about_amounts(texts, amounts)
    notes = [*notes, *filter(None, [column.note])]
    column = replace(column, type="text", gaps=not amounts.fits.all(), note="; ".join(notes))
    if column.left_out or column.role == "time":
        return column
    role: Role = "code" if column.role == "code" else "amount"
    return replace(column, role=role, form=amounts.sign, unit=amounts.unit, censored=censored)


def _not_read(texts: Texts) -> str:
    """Return a note of numbers in several units, or of what seems to be dates in a notation that is not read, or ""."""
    if len(texts.words) <= DIFFERENT_TEXTS:
        return ""
    dates = texts.matching(LIKE_A_DATE)
    if texts.rows(dates) >= SHARE * texts.total:
        return (
            f"no notation of dates that is read, such as {texts.example(dates)}; if these are dates, write 2023-12-31"
        )
    units = units_of(texts).most_common(5)
    if len(units) > 1 and sum(count for _, count in units) >= SHARE * texts.total:
        listed = ", ".join(f"{unit!r} ({100 * count / texts.total:.0f} %)" for unit, count in units)
        return (
            f"numbers in several units, {listed}, such as {texts.example(~texts.absent)}; if these are units, write one"
        )
    return ""


def _places_of_sentences(texts: pa.Array) -> int:
    """Return the number of positions for sentences, including one for the start; 0 if the texts are not sentences."""
    if len(texts) <= DIFFERENT_TEXTS:
        return 0
    texts = pc.replace_substring_regex(texts.slice(0, TEXTS_LOOKED_AT), f"({CHARACTER})", r" \1 ")
    lengths = np.asarray(pc.count_substring_regex(texts, WORD))
    characters = np.asarray(pc.count_substring_regex(texts, CHARACTER))
    if (lengths - characters / 2).mean() < WORDS_OF_A_SENTENCE:
        return 0
    words = pc.list_flatten(pc.split_pattern_regex(pc.utf8_lower(texts), WORD.replace("[", "[^")))
    counts = np.asarray(pc.value_counts(words.filter(pc.not_equal(words, ""))).field("counts"))
    return _places(lengths) if counts[counts > 1].sum() >= counts.sum() / 2 else 0


def _places(lengths: np.ndarray) -> int:
    """Return a power of 2 that is more than nearly all lengths."""
    usual = int(np.quantile(lengths, SHARE_OF_LENGTHS))
    return int(min(MOST_PLACES, max(8, 2 ** math.ceil(math.log2(usual + 1)))))


def _lists(name: str, values: pa.ChunkedArray, kind: str) -> Column:
    """Infer what a column of lists of a kind holds."""
    items = pc.list_flatten(values).drop_null()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0))
    if not len(items):
        return Column(name, "lists", left_out="no row has a value")
    column = Column(name, "lists", distinct=pc.count_distinct(items).as_py())
    fixed = lengths.min() == lengths.max()
    if kind == "floats":
        if not fixed or not np.isfinite(np.asarray(items.cast(pa.float64()))).all():
            return replace(
                column,
                left_out="several decimals in a row, not as many in each or not all finite; say in the module file "
                "what to make of them",
            )
        return _if_different(replace(column, role="number"))
    if kind == "text":
        try:
            items.cast(pa.large_string())
        except pa.ArrowInvalid:
            return replace(column, left_out="bytes that are no text; say in the module file what to make of them")
    elif kind not in ("integers", "booleans"):
        return replace(column, left_out=f"several {kind} in a row; say in the module file what to make of them")
    if column.distinct > DIFFERENT_TEXTS and column.distinct > len(items) / 2:
        return replace(
            column, left_out=f"{column.distinct:,} different values in lists of {len(items):,}, too many to learn each"
        )
    column = replace(column, role="sequence", places=_places(lengths))
    return _if_different(column) if fixed else column


def _if_different(column: Column) -> Column:
    """Return the column of lists of one length, left out where all their values are the same."""
    return replace(column, left_out="the same values in every row") if column.distinct == 1 else column


def _floats(name: str, values: pa.Array, place: Place) -> Column:
    known = np.asarray(values.drop_null())
    finite, note = known[np.isfinite(known)], ""
    infinite = np.isinf(np.asarray(values.fill_null(0.0)))
    if infinite.any():
        note = (
            f"{infinite.sum():,} of {len(known):,} values are infinite and count as missing, first in "
            f"{place(int(infinite.argmax()))}"
        )
    if not len(finite):
        return Column(name, "floats", left_out=f"no row has a finite value{f': {note}' if note else ''}")
    distinct = len(np.unique(finite))
    if len(finite) == len(known) and (finite == np.floor(finite)).all() and np.abs(finite).max() < 2**53:
        # pandas makes floats of integers with gaps.
        as_integers = _integers(name, values.cast(pa.int64()), place)
        if as_integers.role in ("code", "time") or as_integers.origin or as_integers.left_out:
            return as_integers
    column = Column(name, "floats", "number", distinct, note=note)
    if distinct > 2 and np.abs(finite).max() * 2.0**-FLOAT_BITS > finite.std() / 1000:
        single = len(np.unique(finite.astype(np.float32)))
        reason = (
            f"as 32-bit numbers, {distinct:,} different values such as {float(finite[0])!r} would become {single:,}"
        )
        return replace(column, left_out=f"{reason}: write whole numbers, or the difference from a value")
    return _if_usable(column, values.drop_null(), len(values))


def _integers(name: str, values: pa.Array, place: Place) -> Column:
    known, rows = np.asarray(values.drop_null()), len(values)
    low, high = int(known.min()), int(known.max())
    distinct = len(np.unique(known))
    column = Column(name, "integers", "number", distinct)
    form = _epoch(name, known)
    note = _far_away(values, form, place) if form else ""
    if not form and distinct >= 3 and np.mean((known >= 1900_01_01) & (known <= 2100_12_31)) >= SHARE:
        days = Texts.of(values.cast(pa.large_string()), place)
        times = times_of(days, ("%Y%m%d",))
        if days.rows(times.fits) >= SHARE * days.total:
            form, note = times.form, days.odd(times.fits, "dates")
    if form:
        return _if_usable(replace(column, role="time", form=form, note=note), values.drop_null(), rows)
    named = bool(NAMES_OF_CODES.search(name))
    if distinct == len(known) >= SHARE * rows and (named or high - low < rows):
        return replace(column, left_out="numbers the rows")
    is_code = distinct > 2 and (distinct <= VALUES_OF_A_CODE or (named and distinct <= rows / 20))
    large = max(-low, high) >= 2**FLOAT_BITS and high - low < 2**62
    return _if_usable(
        replace(column, role="code" if is_code else "number", origin=low if large else 0), values.drop_null(), rows
    )


def _far_away(values: pa.Array, unit: str, place: Place) -> str:
    """Return a note of times, in a unit since 1970, whose years are far away and count as missing; or ""."""
    low, high = (
        int((np.datetime64(f"{year}-01-01") - np.datetime64("1970-01-01")).astype(int) * 86_400 / UNITS[unit])
        for year in (YEARS[0], YEARS[1] + 1)
    )
    far = np.asarray(pc.or_(pc.less(values, low), pc.greater_equal(values, high)).fill_null(False))
    if not far.any():
        return ""
    return (
        f"{far.sum():,} of {len(values) - values.null_count:,} values are of years before {YEARS[0]} or after "
        f"{YEARS[1]} and count as missing, first in {place(int(far.argmax()))}"
    )


def _if_usable(column: Column, known: pa.ChunkedArray | pa.Array, rows: int) -> Column:
    """Return the column, left out where it has one value only or hardly any."""
    if column.distinct == 1 and len(known) == rows:
        value = repr(known[0].as_py())
        return replace(column, left_out=f"{value if len(value) <= 60 else f'{value[:57]}...'} in every row")
    if len(known) < min(rows, max(ROWS_WITH_A_VALUE, rows / 200)):
        return replace(column, left_out=f"a value in {len(known):,} of {rows:,} rows only")
    return column


def _epoch(name: str, known: np.ndarray) -> str:
    """Return the unit in which most whole numbers count from 1970, if their column's name speaks of time."""
    if NAMES_OF_TIMES.search(name):
        for unit, factor in (("seconds", 1), ("milliseconds", 1000), ("microseconds", 1_000_000)):
            if np.mean((known >= EPOCHS[0] * factor) & (known <= EPOCHS[1] * factor)) >= SHARE:
                return unit
    return ""
