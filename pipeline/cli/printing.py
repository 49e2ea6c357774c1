"""Text on a terminal and in logs: what comes from data, files and errors is shown, never obeyed as a control code."""

import logging
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.settings.names import printable


def say(text: str, *, error: bool = False) -> None:
    """Print lines to stdout, or to stderr."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


def assembled(*parts: str | tuple[str, str], no_wrap: bool = False) -> Text:
    """Return a line of rich of texts and (text, style)."""
    pairs = [part if isinstance(part, tuple) else (part, "") for part in parts]
    line = Text.assemble(*((printable(text).replace("\n", "\\n"), style) for text, style in pairs))
    line.no_wrap, line.overflow = no_wrap, "ellipsis" if no_wrap else None
    return line


class Terminal(Console):
    """Rich's console for texts that are no markup."""

    def __init__(self, **settings: Any):
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **settings})

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print texts, and what rich draws as it is."""
        super().print(*(printable(shown) if isinstance(shown, str) else shown for shown in objects), **settings)


class LogFormatter(logging.Formatter):
    """Formatter for logs that are shown on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return printable(super().format(record))
