"""What a stranger, a broken disk or an unlucky program makes of a good file."""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# A hundred cases of each kind; for more: HOSTILE_CASES=5000 pytest tests/hostile
CASES = settings(
    max_examples=int(os.environ.get("HOSTILE_CASES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

_Result = TypeVar("_Result")


def attempt(call: Callable[[], _Result], refused: type[Exception]) -> tuple[_Result | None, str]:
    """What a call returns, or the sentence by which it refuses."""
    try:
        return call(), ""
    except refused as error:
        return None, str(error)


# Lengths and counts at which programs stumble, as formats write them.
NUMBERS = [
    number.to_bytes(size, order)
    for number in (0, 1, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF)
    for size in (4, 8)
    for order in ("little", "big")
]
WORDS = [
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b'"',
    b",",
    b"\x1b[2J",
    b"{",
    b"[",
    b"null",
    b"NaN",
    b"1e999",
]


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """One of the seeds with a few places changed, lost, repeated or filled with something else."""
    content = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(content)))
        until = at + draw(st.integers(0, 64) | st.integers(0, len(content)))
        change = draw(st.sampled_from(["byte", "cut", "remove", "repeat", "number", "word", "other"]))
        if change == "byte" and at < len(content):
            content[at] = draw(st.integers(0, 255))
        elif change == "cut":
            del content[at:]
        elif change == "remove":
            del content[at:until]
        elif change == "repeat":
            content[at:at] = bytes(content[at:until]) * draw(st.sampled_from([1, 2, 50]))
        elif change == "number":
            number = draw(st.sampled_from(NUMBERS))
            content[at : at + len(number)] = number
        elif change == "word":
            content[at:at] = draw(st.sampled_from([*WORDS, *words])) * draw(st.sampled_from([1, 1, 300]))
        else:
            content[at:] = draw(st.sampled_from(seeds))[at:]
    return bytes(content)


# What terminals, rich, HTML, templates, formulas, shells and file systems would obey.
CODES = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\n", "\b", "\u202e", "\u2028", "\ufeff"]
MARKUP = [
    "[bold red]",
    ":smile:",
    "[/]",
    "<script>alert(1)</script>",
    "<!--",
    "]]>",
    "&lt;",
    "{{ 7*7 }}",
    "{% for",
    "$x_1$",
]
WORDS_OF_PROGRAMS = [
    "{0}",
    "%s",
    "\\",
    "'",
    '"',
    "`",
    ";",
    "|",
    "=cmd|' /C calc'!A0",
    "../..",
    "/etc/passwd",
    "~",
    "*",
    "NUL",
]
# Names and values from data, as people with bad intentions or bad exports write them.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.lists(
    st.sampled_from([*CODES, *MARKUP, *WORDS_OF_PROGRAMS, "late", "9" * 40, "é", "名"]), min_size=1, max_size=5
).map("".join)
