"""Read the texts of a column as times or amounts, where all but a few are in one notation."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data import csv_files
from pipeline.settings.notations import (
    ABOVE,
    AMOUNTS,
    BELOW,
    DATES,
    NEGATIVE,
    PLAIN_NUMBER,
    SIGN,
    UNIT,
    around_amounts,
    date_pattern,
    is_time,
)

# Share of a column's values, without missing ones, that at least are in its notation; the others count as missing.
# Where most are in one notation, but not that many, the notes say so.
SHARE, MOST = 0.8, 0.5
# Share of bounds such as "<0.5", from which a model is given which ones they are.
SHARE_OF_BOUNDS = 0.01
# Share of numbers with zeros before them from which they are codes: as numbers they would lose the zeros.
SHARE_OF_CODES = 0.01
# A notation is chosen by this many different texts.
TEXTS_TRIED = 10_000
WORDS_NAMED = 5
# Of a text, in a message.
LONGEST = 40
# Row from 0 → how a message names it: "row 1".
Place = Callable[[int], str]


def row_number(row: int) -> str:
    """Return the place of a row in a single file."""
    return f"row {row + 1:,}"


@dataclass(frozen=True)
class Texts:
    """The different values of a column."""

    words: pa.Array  # of large_string
    counts: np.ndarray  # rows that have each, int64 [words]
    first: np.ndarray  # the first of them, from 0, int64 [words]
    places: np.ndarray  # the word of each row that has one, int64 [rows with a value]
    absent: np.ndarray  # words that stand for a missing value, booleans [words]
    place: Place = row_number

    @classmethod
    def of(cls, values: pa.Array, place: Place = row_number) -> "Texts":
        """Count the values of a column."""
        coded = values.dictionary_encode()
        rows = np.flatnonzero(np.asarray(values.is_valid()))
        places = np.asarray(coded.indices.drop_null()).astype(np.int64)
        first: np.ndarray = np.zeros(len(coded.dictionary), np.int64)
        first[places[::-1]] = rows[::-1]
        absent = np.array(csv_files.is_missing(coded.dictionary))
        return cls(coded.dictionary, np.bincount(places, minlength=len(first)), first, places, absent, place)

    @property
    def tried(self) -> np.ndarray:
        """Return the places of some words that are not missing, evenly taken."""
        known = np.flatnonzero(~self.absent)
        return known[:: -(-len(known) // TEXTS_TRIED) or 1]

    @property
    def total(self) -> int:
        """Return the number of rows with a value that is not missing."""
        return self.rows(~self.absent)

    def rows(self, mask: np.ndarray) -> int:
        """Return the number of rows with some of the words, of which ``mask`` is true."""
        return int(self.counts[mask].sum())

    def matching(self, pattern: str) -> np.ndarray:
        """Return which words match a pattern, [words]."""
        return np.array(pc.match_substring_regex(self.words, pattern))

    def named(self, mask: np.ndarray, most: int = WORDS_NAMED) -> str:
        """Return the most frequent of some words with their counts and first rows, for a message."""
        at = np.flatnonzero(mask)
        at = at[np.lexsort((self.first[at], -self.counts[at]))]
        shown = []
        for word in at[:most]:
            count, row = self.counts[word], self.place(int(self.first[word]))
            shown.append(f"{self.shown(word)} ({f'{count:,}, first in {row}' if count > 1 else f'1, {row}'})")
        return f"{', '.join(shown)}{f' and {len(at) - most:,} more' if len(at) > most else ''}"

    def example(self, mask: np.ndarray) -> str:
        """Return the word that comes first in the rows, for a message."""
        word = int(np.where(mask, self.first, np.iinfo(np.int64).max).argmin())
        return f"{self.shown(word)} ({self.place(int(self.first[word]))})"

    def shown(self, at: int) -> str:
        """Return a word as Python writes it, shortened."""
        text = repr(self.words[int(at)].as_py())
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}...{text[0]}"

    def odd(self, fits: np.ndarray, kind: str) -> str:
        """Return a note of the words that are not of a kind, or ""."""
        odd = ~(fits | self.absent)
        if not odd.any():
            return ""
        # "dates" → "a date", "numbers in 'kg'" → "a number in 'kg'".
        verbs = (
            f"is not a {kind.replace('s', '', 1)} and counts" if self.rows(odd) == 1 else f"are not {kind} and count"
        )
        return f"{self.rows(odd):,} of {self.total:,} values {verbs} as missing: {self.named(odd)}"

    def mostly(self, fits: np.ndarray, kind: str) -> str:
        """Return a note of words that are most often of a kind, but not often enough, or ""."""
        share = self.rows(fits & ~self.absent) / max(1, self.total)
        if not MOST <= share < SHARE:
            return ""
        others = self.example(~(fits | self.absent))
        return (
            f"{100 * share:.0f} % of the values are {kind}, the others are not, such as {others}; a column is read as "
            f"{kind} where at most {100 * (1 - SHARE):.0f} % are not"
        )


class Times(NamedTuple):
    """The notation of dates or times that fits the most rows."""

    form: str  # one of ``DATES``
    fits: np.ndarray  # [words]


class Amounts(NamedTuple):
    """The notation of amounts that fits the most rows."""

    sign: str  # a key of ``AMOUNTS``
    unit: str
    numbers: np.ndarray  # float64 [words], NaN of a word that is no amount

    @property
    def fits(self) -> np.ndarray:
        """Return which words are amounts, [words]."""
        return ~np.isnan(self.numbers)

    @property
    def kind(self) -> str:
        """Return the name of such values, for messages."""
        return f"numbers in {self.unit!r}" if self.unit else "numbers"


def times_of(texts: Texts, forms: tuple[str, ...] = DATES) -> Times:
    """Return the notation that the most rows are in."""
    best, tried = Times("", np.zeros(len(texts.words), bool)), texts.words.take(pa.array(texts.tried))
    for form in forms:
        if pc.any(pc.match_substring_regex(tried, date_pattern(form))).as_py():
            fits = texts.matching(date_pattern(form))
            for at in np.flatnonzero(fits & texts.matching("29|30|31")).tolist():
                fits[at] = is_time(texts.words[at].as_py(), form)
            if texts.rows(fits) > texts.rows(best.fits):
                best = Times(form, fits)
    return best


def amounts_of(texts: Texts) -> Amounts:
    """Return the decimal sign and the unit with which the most rows are amounts; none of codes such as 007."""
    if texts.rows(texts.matching("^ *0[0-9]") & ~texts.absent) >= SHARE_OF_CODES * max(1, texts.total):
        return Amounts(".", "", np.full(len(texts.words), np.nan))
    tried = texts.tried
    words, counts = texts.words.take(pa.array(tried)), texts.counts[tried]
    units = ("", *(unit for unit, _ in units_of(texts).most_common(1)))
    notations = [(sign, unit) for unit in units for sign in AMOUNTS]
    best = max(notations, key=lambda notation: counts[~np.isnan(_numbers(words, *notation))].sum())
    return Amounts(*best, _numbers(texts.words, *best))


def units_of(texts: Texts) -> Counter[str]:
    """Count the rows by the unit that follows a number."""
    pattern = rf"^[^\pL]*[0-9][.,]?\+? *(?P<unit>{UNIT}) *$"
    at = np.flatnonzero(texts.matching(pattern) & ~(texts.matching(PLAIN_NUMBER) | texts.absent))
    found = pc.struct_field(pc.extract_regex(texts.words.take(pa.array(at)), pattern), "unit")
    units: Counter[str] = Counter()
    for unit, count in zip(found.to_pylist(), texts.counts[at].tolist(), strict=True):
        units[unit] += count
    return units


def about_amounts(texts: Texts, amounts: Amounts) -> tuple[list[str], bool]:
    """Return notes of the amounts of a column, and whether many of them are bounds."""
    notes = [texts.odd(amounts.fits, amounts.kind)]
    below, above = (texts.matching(side) & amounts.fits for side in (BELOW, ABOVE))
    censored = texts.rows(below | above) >= SHARE_OF_BOUNDS * texts.total
    if (below | above).any():
        more = ", and whether it is a bound" if censored else ""
        notes.append(
            f"{texts.rows(below | above):,} of {texts.total:,} values are bounds, {texts.named(below | above)}: the "
            f"model gets the number{more}"
        )
    if amounts.unit:
        bare = amounts.fits & ~np.array(pc.match_substring(texts.words, amounts.unit))
        if bare.any():
            verbs = "has no unit and is" if texts.rows(bare) == 1 else "have no unit and are"
            notes.append(
                f"{texts.rows(bare):,} of {texts.total:,} values {verbs} read as {amounts.unit!r}: {texts.named(bare)}"
            )
    signs = _signs(texts, amounts.fits)
    if len(signs) > 1:
        listed = ", ".join(f"{sign or 'none'} ({count:,})" for sign, count in signs.most_common(5))
        notes.append(f"amounts of several currencies or signs are read alike: {listed}; write them in one")
    return [note for note in notes if note], censored


def _signs(texts: Texts, fits: np.ndarray) -> Counter[str]:
    """Count the rows by the currency or percent sign."""
    signs: Counter[str] = Counter()
    signed = texts.matching(SIGN) & fits
    if signed.any():
        at = np.flatnonzero(signed)
        found = pc.struct_field(pc.extract_regex(texts.words.take(pa.array(at)), f"(?P<sign>{SIGN})"), "sign")
        for sign, count in zip(found.to_pylist(), texts.counts[at].tolist(), strict=True):
            signs[sign] += count
        signs[""] += texts.rows(fits & ~signed & texts.matching("[1-9]"))  # a zero needs no sign
    return +signs


def _numbers(words: pa.Array, sign: str, unit: str) -> np.ndarray:
    """Return the amounts in texts as ``training.preprocessing.amount`` does, NaN for other texts."""
    for pattern in around_amounts(unit):
        words = pc.replace_substring_regex(words, pattern, "", max_replacements=1)
    is_amount = pc.match_substring_regex(words, AMOUNTS[sign])
    digits = pc.replace_substring_regex(pc.replace_substring_regex(words, f"[^0-9{sign}]", ""), ",", ".")
    size = np.array(pc.if_else(is_amount, digits, "nan").cast(pa.float64()))
    size = np.where(pc.match_substring_regex(words, NEGATIVE), -size, size)
    is_plain = pc.match_substring_regex(words, PLAIN_NUMBER)
    trimmed = pc.replace_substring_regex(pc.utf8_trim_whitespace(words), r"^\+", "")
    plain = np.array(pc.if_else(is_plain, trimmed, "nan").cast(pa.float64()))
    return np.where(is_amount, size, plain)
