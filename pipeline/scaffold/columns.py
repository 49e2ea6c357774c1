"""Infer from a column's values what it holds and how a model can use it."""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data import csv_files
from pipeline.data.table import type_name
from pipeline.errors import UserError, first_line
from pipeline.settings.names import how_to_leave_out
from pipeline.settings.notations import AMOUNTS, DATES, PLAIN_NUMBER, TIME_OF_DAY, is_time

Role = Literal["category", "number", "code", "time", "amount", "text", "sequence", "none"]
ROWS_WITH_A_VALUE = 60
# Whole numbers of more different values are a quantity.
VALUES_OF_A_CODE = 50
# More columns of few whole numbers than this are measures of one kind, such as the pixels of an image.
MOST_UNNAMED_CODES = 16
NAMES_OF_CODES = re.compile(r"(^|[ _-])(id|code|zip|zipcode|postcode|tract|area)s?$", re.IGNORECASE)
NAMES_OF_TIMES = re.compile(r"(time|date|stamp|epoch|created|updated|modified|when)|_(at|ts|on)$", re.IGNORECASE)
DAY_FIRST = {"%m/%d/%Y": "%d/%m/%Y", "%m-%d-%Y": "%d-%m-%Y"}
# Share of the texts in a column that must be amounts for the others to count as missing.
SHARE_OF_AMOUNTS = 0.9
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
# Epochs of 1980 to 2100, in seconds.
EPOCHS = (315_532_800, 4_102_444_800)


@dataclass(frozen=True)
class Column:
    """A column that is not the label."""

    name: str
    type: str  # in a tf.Example: "text", "integers", "floats", "lists" or "nothing"
    role: Role = "none"  # a code is a number as well; "text" is sentences, "sequence" several values in a row
    distinct: int = 0  # number of different values
    form: str = ""  # of a time, a key of ``notations.DATES`` or a unit; of an amount, its decimal sign
    origin: int = 0  # from which whole numbers count that have more digits than float32
    places: int = 0  # words or items that nearly all rows have at most: a power of 2
    left_out: str | None = None  # why no model can use it
    note: str = ""  # how it is read


def describe(name: str, values: pa.ChunkedArray, *, from_text: bool) -> Column:
    """Infer what a column of scalars or lists holds; ``from_text``: the file has no types, so text may be numbers."""
    try:
        return _described(name, values, from_text)
    except pa.ArrowInvalid as error:
        raise UserError(f"column {name!r}: {first_line(error)}; correct it, or {how_to_leave_out(name)}") from error


def _described(name: str, values: pa.ChunkedArray, from_text: bool) -> Column:
    kind = type_name(values.type)
    if kind == "nothing" or values.null_count == len(values):
        return Column(name, "nothing", left_out="no row has a value")
    if kind.startswith("lists of "):
        return _lists(name, values, kind.removeprefix("lists of "))
    known = values.drop_null()
    if pa.types.is_dictionary(known.type):
        known = known.cast(known.type.value_type)
    if kind == "text":
        try:
            known = known.cast(pa.large_string())
        except pa.ArrowInvalid:
            return Column(name, "text", left_out="bytes that are no text; say in the module file what to make of them")
        type_ = csv_files.narrowest(known) if from_text else csv_files.TEXT
        if type_ == csv_files.INTEGERS and _zero_padded(known):
            type_ = csv_files.TEXT
        if type_ == csv_files.TEXT:
            return _text(name, known, len(values))
        if type_ == csv_files.NOTHING:
            return Column(name, "nothing", left_out="no row has a value")
        known = csv_files.parse(known, type_)[0].drop_null()
        kind = type_
    if kind == "floats":
        return _floats(name, np.asarray(known.cast(pa.float64())), len(values))
    units = {"timestamps": "microseconds", "dates": "days", "times of day": TIME_OF_DAY}
    if kind in units:
        column = Column(name, "integers", "time", pc.count_distinct(known).as_py(), units[kind])
        return _if_usable(column, known, len(values))
    if kind == "durations":
        known = known.cast(pa.duration("us"), safe=False).cast(pa.int64())
    if kind in ("booleans", "integers", "durations"):
        return _integers(name, np.asarray(known.cast(pa.int64())), len(values))
    return Column(name, "nothing", left_out=f"of type {values.type}, which no tf.Example can hold")


def without_too_many_codes(columns: list[Column]) -> list[Column]:
    """Treat many columns of few whole numbers as measures, such as pixels."""
    unnamed = [column for column in columns if column.role == "code" and not NAMES_OF_CODES.search(column.name)]
    if len(unnamed) <= MOST_UNNAMED_CODES:
        return columns
    return [replace(column, role="number") if column in unnamed else column for column in columns]


def _text(name: str, known: pa.ChunkedArray, rows: int) -> Column:
    counts = pc.value_counts(known)
    texts, times = pa.chunked_array([counts.field("values")]), np.asarray(counts.field("counts"))
    column = Column(name, "text", "category", len(texts))
    form = _date_form(texts)
    if form:
        note = ""
        if form in DAY_FIRST and _date_form(texts, (DAY_FIRST[form],)):
            note = f"read as {form}, but {DAY_FIRST[form]} would fit as well: see TIMES in the module file"
        return _if_usable(replace(column, role="time", form=form, note=note), known, rows)
    amount = _amount_form(texts, times)
    if amount:
        sign, others = amount
        note = f"{others[0]:,} values such as {others[1]!r} are no amount and count as missing" if others[0] else ""
        return _if_usable(replace(column, role="amount", form=sign, note=note), known, rows)
    places = _places_of_sentences(texts)
    if places:
        return _if_usable(replace(column, role="text", places=places), known, rows)
    if len(texts) > DIFFERENT_TEXTS and len(texts) > len(known) / 2:
        return replace(
            column, left_out=f"{len(texts):,} different texts in {len(known):,} rows, too many to learn from each"
        )
    return _if_usable(column, known, rows)


def _places_of_sentences(texts: pa.ChunkedArray) -> int:
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


def _floats(name: str, known: np.ndarray, rows: int) -> Column:
    finite = known[np.isfinite(known)]
    infinite = int(np.isinf(known).sum())
    note = f"{infinite:,} infinite values count as missing" if infinite else ""
    if not len(finite):
        return Column(name, "floats", left_out="no row has a finite value")
    distinct = len(np.unique(finite))
    if len(finite) == len(known) and (finite == np.floor(finite)).all() and np.abs(finite).max() < 2**53:
        # pandas makes floats of integers with gaps.
        as_integers = _integers(name, finite.astype(np.int64), rows)
        if as_integers.role in ("code", "time") or as_integers.origin or as_integers.left_out:
            return as_integers
    column = Column(name, "floats", "number", distinct, note=note)
    if distinct > 2 and np.abs(finite).max() * 2.0**-FLOAT_BITS > finite.std() / 1000:
        single = len(np.unique(finite.astype(np.float32)))
        reason = (
            f"as 32-bit numbers, {distinct:,} different values such as {float(finite[0])!r} would become {single:,}"
        )
        return replace(column, left_out=f"{reason}: write whole numbers, or the difference from a value")
    return _if_usable(column, pa.array(known), rows)


def _integers(name: str, known: np.ndarray, rows: int) -> Column:
    low, high = int(known.min()), int(known.max())
    distinct = len(np.unique(known))
    column = Column(name, "integers", "number", distinct)
    form = _epoch(name, low, high) or _compact_date(known, low, high, distinct)
    if form:
        return _if_usable(replace(column, role="time", form=form), pa.array(known), rows)
    named = bool(NAMES_OF_CODES.search(name))
    if distinct == rows and (named or high - low == len(known) - 1):
        return replace(column, left_out="numbers the rows")
    is_code = distinct > 2 and (distinct <= VALUES_OF_A_CODE or (named and distinct <= rows / 20))
    large = max(-low, high) >= 2**FLOAT_BITS and high - low < 2**62
    return _if_usable(
        replace(column, role="code" if is_code else "number", origin=low if large else 0), pa.array(known), rows
    )


def _if_usable(column: Column, known: pa.ChunkedArray | pa.Array, rows: int) -> Column:
    """Return the column, left out where it has one value only or hardly any."""
    if column.distinct == 1 and len(known) == rows:
        value = repr(known[0].as_py())
        return replace(column, left_out=f"{value if len(value) <= 60 else f'{value[:57]}...'} in every row")
    if len(known) < min(rows, max(ROWS_WITH_A_VALUE, rows / 200)):
        return replace(column, left_out=f"a value in {len(known):,} of {rows:,} rows only")
    return column


def _zero_padded(text: pa.ChunkedArray) -> bool:
    """Return whether whole numbers begin with zeros, as codes do: as numbers they would lose them."""
    return bool(pc.any(pc.match_substring_regex(text, r"^ *0[0-9]")).as_py())


def _date_form(texts: pa.ChunkedArray, forms: tuple[str, ...] = DATES) -> str:
    """Return the first notation in which every text is a day of the calendar, or ""."""
    texts = texts.filter(pc.invert(csv_files.is_missing(texts)))
    if not len(texts):
        return ""
    for form in forms:
        # The first one alone rules out most notations.
        if all(is_time(text.as_py(), form) for text in texts):
            return form
    return ""


def _amount_form(texts: pa.ChunkedArray, times: np.ndarray) -> tuple[str, tuple[int, str]] | None:
    """Return the decimal sign in which most texts are amounts, and how many rows have others, with one of them."""
    missing = np.asarray(csv_files.is_missing(texts))
    plain = np.asarray(pc.match_substring_regex(texts, PLAIN_NUMBER))
    if _zero_padded(texts):
        return None
    best: tuple[str, tuple[int, str]] | None = None
    for sign, pattern in AMOUNTS.items():
        fits = np.asarray(pc.match_substring_regex(texts, pattern)) | plain | missing
        rows = int(times[~missing].sum())
        others = int(times[~fits].sum())
        if rows and others <= (1 - SHARE_OF_AMOUNTS) * rows and (best is None or others < best[1][0]):
            at = np.flatnonzero(~fits)
            best = sign, (others, texts[int(at[0])].as_py() if len(at) else "")
    return best


def _epoch(name: str, low: int, high: int) -> str:
    """Return the unit in which whole numbers count from 1970, if their column's name speaks of time."""
    if NAMES_OF_TIMES.search(name):
        for unit, factor in (("seconds", 1), ("milliseconds", 1000), ("microseconds", 1_000_000)):
            if EPOCHS[0] * factor <= low and high <= EPOCHS[1] * factor:
                return unit
    return ""


def _compact_date(known: np.ndarray, low: int, high: int, distinct: int) -> str:
    """Return the notation of whole numbers such as 20240229 if all are days of the calendar, else nothing."""
    if low < 1900_01_01 or high > 2100_12_31 or distinct < 3:
        return ""
    return _date_form(pa.chunked_array([pa.array(np.unique(known)).cast(pa.string())]), ("%Y%m%d",))
