"""Notations of dates, times and amounts in text, as regular expressions that Python, pyarrow and TensorFlow read alike.

Standard library only.
"""

import calendar
import re

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
# What stands at its place in the groups of a date's pattern.
GROUPS_OF_CLOCK = ("hour", "minute", "second", "half", "zone")


def date_pattern(form: str) -> tuple[str, tuple[str, ...]]:
    """Return the regular expression of a whole text, and what its groups are.

    Args:
        form: One of ``DATES``.

    Returns:
        Pattern, and the groups' names in their order: "%Y", "%m", "%d", and ``GROUPS_OF_CLOCK``.
    """
    if form == "%H:%M":
        return rf"^ *{_CLOCK}{_ZONE} *$", GROUPS_OF_CLOCK
    parts = re.findall("%[Ymd]", form)
    date = re.escape(form)
    for part in parts:
        # Digits without signs between them: each part has all of its own.
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
# A number without any sign beside it, which may have an exponent.
PLAIN_NUMBER = r"^ *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *$"
# Amounts by their decimal sign: "$1,200.50", "(3 %)", "(3) %", "1.234,5 €".
AMOUNTS = {
    sign: _SPACES.join(("^", "[-+(]?", f"{_SIGNS}?", "[-+]?", digits, f"{_SIGNS}?", r"\)?-?", f"{_SIGNS}?", "$"))
    for sign, digits in _DIGITS.items()
}


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
