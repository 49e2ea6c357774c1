"""Notations of dates, times, amounts and truth values in text.

The regular expressions are read alike by Python, pyarrow and TensorFlow.

In a schema, ``time_domain { string_format: "%d.%m.%Y" }`` is the notation of times, and ``annotation { tag: "amount: ,
kg" }`` says that text holds amounts with this decimal sign and, where one follows, unit. Standard library only.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow_metadata.proto.v0.schema_pb2 import Feature, Schema

# Stand for a missing value among numbers, times and amounts, as pandas, R, databases and spreadsheets write it; without
# spaces around them, in lower case. A category keeps them: there "NA" may be Namibia.
MISSING = (
    *("", "na", "n/a", "n.a.", "n.a", "n/d", "#n/a", "#n/a n/a", "#na", "<na>", "nan", "-nan", "nat", "<nat>"),
    *("null", "(null)", "[null]", "#null!", "nil", "none", "\\n", "-", "--", "---", "\u2013", "\u2014", "?", "??"),
    *(".", "..", "...", "*", "#div/0!", "#num!", "#ref!", "#value!", "#name?", "1.#ind", "-1.#ind", "1.#qnan"),
)
# Dates by the order of their parts, as ``strftime`` writes it; a time of day and a zone may follow. Names of months are
# English, with any separators and a weekday before them: "%d %b %Y" is also "04-Mar-2023" and "Sat, 4 March 2023".
# Years of two digits are 1969 to 2068. "%H:%M" is a time of day alone, seconds may follow. Of two that both fit, the
# first is taken.
DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%m-%d-%Y",
    "%d-%m-%Y",
    "%Y%m%d",
    "%d %b %Y",
    "%b %d %Y",
    "%Y %b %d",
    "%d %b %y",
    "%m/%d/%y",
    "%d/%m/%y",
    "%m-%d-%y",
    "%d-%m-%y",
    "%d.%m.%y",
    "%H:%M",
)
# Others, such as 0001 and 9999, stand for a missing date or for one that never comes.
YEARS = (1500, 2899)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Years of two digits from here on are of the 20th century, as POSIX has it.
CENTURY_TURNS = 69
# Seconds in a unit of whole numbers that count from 1970-01-01 UTC.
UNITS = {"days": 86_400.0, "seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6}
# Microseconds since midnight, which is what a Parquet file's times of day become.
TIME_OF_DAY = "time of day"

_PARTS = {
    "%Y": "(?P<year>1[5-9][0-9]{2}|2[0-8][0-9]{2})",
    "%y": "(?P<short>[0-9]{2})",
    "%m": "(?P<month>0?[1-9]|1[0-2])",
    "%b": rf"(?i:(?P<name>{'|'.join(MONTHS)})(?:uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?)",
    "%d": "(?P<day>0?[1-9]|[12][0-9]|3[01])",
}
_WEEKDAY = "(?:(?i:mon|tues?|wed|wednes|thur?s?|fri|sat|satur|sun)(?:day)?[,.]? +)?"
# Spreadsheets write a no-break space before a sign, and some a narrow one between thousands.
_SPACE = " \u00a0\u202f"
_SPACES = f"[{_SPACE}]*"
_CLOCK = (
    r"(?P<hour>[01]?[0-9]|2[0-4]):(?P<minute>[0-5][0-9])(?::(?P<second>[0-9]{2})(?:[.,][0-9]+)?)?"
    rf"{_SPACES}(?P<half>[AaPp]\.?[Mm]\.?)?"
)
_ZONE = r" *(?P<zone>Z|(?:UTC|GMT)?(?:[+-][0-9]{2}(?::?[0-9]{2})?)?)(?: *\([^()]*\))?"


def date_pattern(form: str) -> str:
    """Return the regular expression of one of ``DATES``.

    Its groups, nine at most: year, short (of two digits), month, name (of the month), day, hour, minute, second, half
    and zone.
    """
    if form == "%H:%M":
        return rf"^ *{_CLOCK}{_ZONE} *$"
    clock, parts = rf"(?:(?:[T ]|, ) *{_CLOCK}{_ZONE})?", dict(_PARTS)
    if form == "%Y%m%d":
        # Without separators, every part must have all its digits.
        parts = {part: pattern.replace("0?[", "0[") for part, pattern in _PARTS.items()}
        clock = rf"(?:[T ]?{_CLOCK.replace('[01]?', '[01]').replace(':(?P', ':?(?P')}{_ZONE})?"
    separator, weekday = " ", ""
    if "%b" in form:
        separator, weekday = "[-/., ]*", _WEEKDAY
        parts["%d"] += "(?:st|nd|rd|th)?"
        clock = clock.replace("[T ]", "[T :]")  # of web servers: 04/Mar/2023:10:11:12
    date = re.sub(r"%[Yymbd]|\\? ", lambda at: parts.get(at[0], separator), re.escape(form))
    return rf"^ *{weekday}{date}{clock} *$"


SIGN = r"(?:[$€£¥₹%‰]|USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|BRL|KRW)"
_DIGITS = {
    ".": rf"(?:[0-9]{{1,3}}(?:[,'{_SPACE}][0-9]{{3}})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)",
    ",": rf"(?:[0-9]{{1,3}}(?:[.'{_SPACE}][0-9]{{3}})+(?:,[0-9]+)?|[0-9]+(?:,[0-9]*)?|,[0-9]+)",
}
# A number without a currency or percent sign; may have an exponent.
PLAIN_NUMBER = r"^ *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *$"
# Between brackets of a regular expression: a hyphen, and the minus sign of typesetting and of statistics offices.
MINUS = "\u2212-"
# What amounts below zero have in them.
NEGATIVE = f"^(?:[^0-9]*[({MINUS}].*|.*[{MINUS}])$"
# Amounts by their decimal sign: "$1,200.50", "(3 %)", "(3) %", "1.234,5 €".
AMOUNTS = {
    sign: _SPACES.join(
        ("^", f"[+({MINUS}]?", f"{SIGN}?", f"[+{MINUS}]?", digits, f"{SIGN}?", rf"\)?[{MINUS}]?", f"{SIGN}?", "$")
    )
    for sign, digits in _DIGITS.items()
}
# Measured values beyond what an instrument measures, and groups: "<0.5", ">= 1,000", "65+". Their number is the bound.
BELOW = rf"^{_SPACES}(?:=?<|≤|⩽).*"
ABOVE = rf"^(?:{_SPACES}(?:=?>|≥|⩾).*|.*[0-9]{_SPACES}\+{_SPACES}(?:[^0-9].*)?)$"
_COMPARISON = rf"^{_SPACES}(?:=?[<>]=?|[≤≥⩽⩾~≈]){_SPACES}"
# What may follow a number as its unit: kg, mg/L, °C, m², ml/min/1.73m2.
UNIT = r"""[\pL°µμΩ"'/](?:[\pL\pN°µμΩ²³/^·*(). -]{0,18}[\pL\pN°²³)])?"""

# The notation of amounts is this, their decimal sign and, after a space, their unit.
AMOUNT = "amount: "


def around_amounts(unit: str = "") -> tuple[str, ...]:
    """Return regular expressions of what stands around an amount, to be taken off in this order."""
    ends = (rf"{_SPACES}{re.escape(unit)}{_SPACES}$",) if unit else ()
    return (*ends, rf"{_SPACES}\+{_SPACES}$", _COMPARISON)


def amount_parts(notation: str) -> tuple[str, str]:
    """Return the decimal sign and the unit of a notation of amounts; "" for no unit."""
    sign, _, unit = notation.removeprefix(AMOUNT).partition(" ")
    return sign, unit


def notation_of(feature: Feature) -> str:
    """Return the notation that a schema names of a feature's text: one of ``DATES``, or "amount: ,"; or nothing."""
    form = feature.time_domain.string_format
    named = [form, *(tag for tag in feature.annotation.tag if tag.startswith(AMOUNT))]
    return next((notation for notation in named if is_notation(notation)), "")


def is_notation(notation: str) -> bool:
    """Return whether this is a notation of times or amounts."""
    return notation in DATES or (notation.startswith(AMOUNT) and amount_parts(notation)[0] in AMOUNTS)


def described(notation: str) -> str:
    """Return a notation for messages."""
    if notation in DATES:
        return f"the notation is {notation}"
    sign, unit = amount_parts(notation)
    return f"the decimal sign is {sign!r}{f', the unit {unit!r}' if unit else ''}"


def is_in(text: str, notation: str) -> bool:
    """Return whether a text is a time or an amount in a notation."""
    return is_time(text, notation) if notation in DATES else is_amount(text, *amount_parts(notation))


def is_time(text: str, form: str) -> bool:
    """Return whether a text is a point in time in one of ``DATES``, of a day that there is."""
    match = re.fullmatch(date_pattern(form), text)
    if not match or form == "%H:%M":
        return bool(match)
    parts = match.groupdict()
    short = int(parts.get("short") or 0)
    year = int(parts.get("year") or short + (1900 if short >= CENTURY_TURNS else 2000))
    month = int(parts.get("month") or MONTHS.index(parts.get("name", "jan").lower()) + 1)
    return int(parts["day"]) <= calendar.monthrange(year, month)[1]


def is_amount(text: str, decimal: str, unit: str = "") -> bool:
    """Return whether a text is an amount with a decimal sign, a key of ``AMOUNTS``, and a unit."""
    for pattern in around_amounts(unit):
        text = re.sub(pattern, "", text, count=1)
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
