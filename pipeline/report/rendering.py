"""Render sections as one HTML page that needs no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import jinja2

from pipeline import filesystem
from pipeline.report.blocks import Section

NUMERIC = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( (%|s|min \d+ s))?( to [-\d,.]+)?|-")


def write_page(file: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write a page, whole or not at all; return its path."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.tests["numeric"] = lambda cell: isinstance(cell, str) and bool(NUMERIC.fullmatch(cell))
    html = environment.get_template("page.html.j2").render(title=title, sections=sections)
    filesystem.write(file, html.encode("utf-8", "replace"))
    return file
