"""What a section of the page is made of; the template knows how each looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True)
class Text:
    """A paragraph; ``tone`` is "", "good", "bad" or "quiet"."""

    text: str
    tone: str = ""
    kind: str = "text"


@dataclass(frozen=True)
class Facts:
    """Names and what stands behind them."""

    values: Mapping[str, str]
    kind: str = "facts"


@dataclass(frozen=True)
class Table:
    """Rows of text; ``folded`` ones are shown when asked for."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Figure:
    """A chart, what it is called, and the numbers behind it."""

    svg: Markup
    caption: str
    table: Table


@dataclass(frozen=True)
class Figures:
    """Charts, beside each other where there is room."""

    figures: Sequence[Figure]
    kind: str = "figures"


Block = Text | Facts | Table | Figures


@dataclass(frozen=True)
class Section:
    """A part of the page with a title."""

    name: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def number(value: float, digits: int = 4) -> str:
    """A metric as text; "-" where it is undefined."""
    return f"{value:,.{digits}f}" if value == value and abs(value) != float("inf") else "-"


def short(value: float) -> str:
    """A number of unknown size as text."""
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"
