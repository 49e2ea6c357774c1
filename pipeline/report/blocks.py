"""Blocks that a section of a page is made of; the template decides how each looks, and needs no network."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from pipeline import filesystem

NUMERIC = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( (%|s|min \d+ s))?( to [-\d,.]+)?|-")


class Text(NamedTuple):
    """A paragraph; ``tone`` is "", "good", "bad" or "quiet"."""

    text: str
    tone: str = ""


class Facts(NamedTuple):
    """Values by name."""

    values: Mapping[str, str]


class Card(NamedTuple):
    """A headline number: its title, the value in large letters, notes below it, and a tone as of ``Text``."""

    title: str
    value: str
    notes: Sequence[str] = ()
    tone: str = ""


class Cards(NamedTuple):
    """Headline numbers next to each other."""

    cards: Sequence[Card]


class Link(NamedTuple):
    """A cell of a table that leads to a page in the same folder."""

    text: str
    href: str


class Table(NamedTuple):
    """Rows of text; ``folded`` ones are shown on a click."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    caption: str = ""
    folded: bool = False


class Figure(NamedTuple):
    """A chart, its title, the numbers behind it, and a note."""

    svg: Markup
    caption: str
    table: Table
    note: str = ""


class Figures(NamedTuple):
    """Charts, next to each other if there is room."""

    figures: Sequence[Figure]


class Thumbnail(NamedTuple):
    """A small PNG in base64, its description, and a text below it."""

    png: str
    alt: str
    text: str = ""


class Thumbnails(NamedTuple):
    """Small images in rows, each with its title."""

    rows: Sequence[tuple[str, Sequence[Thumbnail]]]
    caption: str


class Node(NamedTuple):
    """A box of a diagram: texts, state, share of the whole time, and its place in columns and rows."""

    name: str
    state: str
    seconds: str
    share: float
    column: float
    row: int


class Diagram(NamedTuple):
    """Boxes in rows, arrows between them as pairs of nodes, and a table next to them."""

    nodes: Sequence[Node]
    arrows: Sequence[tuple[Node, Node]]
    columns: int
    rows: int
    alt: str
    table: Table


Block = Text | Facts | Cards | Table | Figures | Thumbnails | Diagram


class Section(NamedTuple):
    """A part of the page; without a title, its headline."""

    name: str
    title: str
    blocks: Sequence[Block] = ()


def write_page(file: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write a page, whole or not at all; return its path."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.tests["numeric"] = lambda cell: isinstance(cell, str) and bool(NUMERIC.fullmatch(cell))
    html = environment.get_template("page.html.j2").render(title=title, sections=sections)
    filesystem.write(file, html.encode("utf-8", "replace"))
    return file


def number(value: float) -> str:
    """Return a metric as text; "-" where it is undefined."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.4f}" if abs(value) < 1_000 else f"{value:,.1f}"


def between(interval: tuple[float, float] | None) -> str:
    """Return an interval of a metric as text, or "-"."""
    return f"{number(interval[0])} to {number(interval[1])}" if interval else "-"


def short(value: float) -> str:
    """Return a number of unknown size as text; "-" where it is not known."""
    if math.isnan(value):
        return "-"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return seconds as text, as "0.4 s", "23 s" or "3 min 5 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds // 60:,.0f} min {seconds % 60:.0f} s"
