"""Notations of dates, times, amounts and truth values in text.

The regular expressions are read alike by Python, pyarrow and TensorFlow.

In a schema, ``time_domain { string_format: "%d.%m.%Y" }`` is the notation of times, and ``annotation { tag: "amount:
," }`` says that text holds amounts with this decimal sign. Standard library only.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow_metadata.proto.v0.schema_pb2 import Feature, Schema

# Dates by the order of their parts, as ``strftime`` writes it; a time of day and a zone may follow. "%H:%M" is a time
# of day alone, seconds may follow. Of two that both fit, the first is taken.
DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%m-%d-%Y",
    "%d-%m-%Y",
    "%Y%m%d",
    "%H:%M",
)
# Seconds in a unit of whole numbers that count from 1970-01-01 UTC.
UNITS = {"days": 86_400.0, "seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6}
# Microseconds since midnight, which is what a Parquet file's times of day become.
TIME_OF_DAY = "time of day"

_PARTS = {"%Y": "([1-9][0-9]{3})", "%m": "(0?[1-9]|1[0-2])", "%d": "(0?[1-9]|[12][0-9]|3[01])"}
_CLOCK = r"([01]?[0-9]|2[0-4]):([0-5][0-9])(?::([0-9]{2})(?:[.,][0-9]+)?)? *([AaPp][Mm])?"
_ZONE = r" *(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?"
# Groups of the time of day in a date's pattern.
GROUPS_OF_CLOCK = ("hour", "minute", "second", "half", "zone")


def date_pattern(form: str) -> tuple[str, tuple[str, ...]]:
    """Return the regular expression of one of ``DATES``, and its groups: "%Y", "%m", "%d" and ``GROUPS_OF_CLOCK``."""
    if form == "%H:%M":
        return rf"^ *{_CLOCK}{_ZONE} *$", GROUPS_OF_CLOCK
    parts = re.findall("%[Ymd]", form)
    date = re.escape(form)
    for part in parts:
        # Without separators, every part must have all its digits.
        date = date.replace(part, _PARTS[part].replace("0?", "0") if form == "%Y%m%d" else _PARTS[part], 1)
    return rf"^ *{date}(?:[T ] *{_CLOCK}{_ZONE})? *$", (*parts, *GROUPS_OF_CLOCK)


_SIGNS = r"(?:[$€£¥₹%‰]|USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|BRL|KRW)"
# Spreadsheets write a no-break space before the sign, and some a narrow one between thousands.
_SPACE = " \u00a0\u202f"
_DIGITS = {
    ".": rf"(?:[0-9]{{1,3}}(?:[,'{_SPACE}][0-9]{{3}})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)",
    ",": rf"(?:[0-9]{{1,3}}(?:[.'{_SPACE}][0-9]{{3}})+(?:,[0-9]+)?|[0-9]+(?:,[0-9]*)?|,[0-9]+)",
}
_SPACES = f"[{_SPACE}]*"
# A number without a currency or percent sign; may have an exponent.
PLAIN_NUMBER = r"^ *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *$"
# Amounts by their decimal sign: "$1,200.50", "(3 %)", "(3) %", "1.234,5 €".
AMOUNTS = {
    sign: _SPACES.join(("^", "[-+(]?", f"{_SIGNS}?", "[-+]?", digits, f"{_SIGNS}?", r"\)?-?", f"{_SIGNS}?", "$"))
    for sign, digits in _DIGITS.items()
}

# The notation of amounts is this and their decimal sign.
AMOUNT = "amount: "


def notation_of(feature: Feature) -> str:
    """Return the notation that a schema names of a feature's text: one of ``DATES``, or "amount: ,"; or nothing."""
    form = feature.time_domain.string_format
    named = [form, *(tag for tag in feature.annotation.tag if tag.startswith(AMOUNT))]
    return next((notation for notation in named if is_notation(notation)), "")


def is_notation(notation: str) -> bool:
    """Return whether this is a notation of times or amounts."""
    return notation in DATES or (notation.startswith(AMOUNT) and notation.removeprefix(AMOUNT) in AMOUNTS)


def described(notation: str) -> str:
    """Return a notation for messages."""
    if notation in DATES:
        return f"the notation is {notation}"
    return f"the decimal sign is {notation.removeprefix(AMOUNT)!r}"


def is_in(text: str, notation: str) -> bool:
    """Return whether a text is a time or an amount in a notation."""
    return is_time(text, notation) if notation in DATES else is_amount(text, notation.removeprefix(AMOUNT))


def is_time(text: str, form: str) -> bool:
    """Return whether a text is a point in time in one of ``DATES``, of a day that there is."""
    pattern, groups = date_pattern(form)
    match = re.fullmatch(pattern, text)
    if not match or form == "%H:%M":
        return bool(match)
    year, month, day = (int(match[groups.index(part) + 1]) for part in ("%Y", "%m", "%d"))
    return day <= calendar.monthrange(year, month)[1]


def is_amount(text: str, decimal: str) -> bool:
    """Return whether a text is an amount with a decimal sign, a key of ``AMOUNTS``."""
    return any(re.fullmatch(pattern, text) for pattern in (AMOUNTS[decimal], PLAIN_NUMBER))


# Words for false and for true, in lower case.
TRUTHS = (("false", "no", "off", "f", "n", "0"), ("true", "yes", "on", "t", "y", "1"))


def plain(value: object) -> str:
    """Return a scalar as text in lower case without spaces around it; whole numbers without needless zeros."""
    text = str(value).strip().lower()
    whole = re.fullmatch(r"\+?([0-9]+)(?:\.0*)?", text)
    return whole[1].lstrip("0") or "0" if whole else text


def spellings(known: Iterable[str]) -> dict[str, str]:
    """Return the known text for each ``plain`` one that stands for the same truth value or whole number.

    Words for true stand for the only known one, if one for false is known as well: "1" for "True" or "yes". A single
    letter or digit is such a word only where nothing else is known. "3" stands for "03" unless "3" is known as well.
    """
    texts: dict[str, list[str]] = {}
    for text in known:
        texts.setdefault(plain(text), []).append(text)
    single = {key: several[0] for key, several in texts.items() if len(several) == 1}
    pair = [[word for word in words if word in texts] for words in TRUTHS]
    words = [found[0] for found in pair if len(found) == 1 and found[0] in single]
    if len(words) == 2 and (len(texts) == 2 or min(map(len, words)) > 1):
        return {word: single[known] for alike, known in zip(TRUTHS, words, strict=True) for word in alike}
    return {key: text for key, text in single.items() if key.isdecimal()}


def listed_values(feature: Feature, schema: Schema) -> list[str]:
    """Return the text values that the schema lists for a feature, there or in a domain that it names."""
    if feature.HasField("string_domain"):
        return list(feature.string_domain.value)
    if feature.HasField("bool_domain") and feature.bool_domain.true_value:  # as TFDV infers it of "true" and "false"
        return [feature.bool_domain.false_value, feature.bool_domain.true_value]
    return [value for domain in schema.string_domain if domain.name == feature.domain for value in domain.value]
