"""The line of the step that runs, on a terminal: its name, the seconds so far, and how far it is."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from pipeline.progress import LOGGER

EVERY = 0.5  # seconds


class RunningLine(logging.Handler):
    """Writes the line anew twice a second, and takes it away before another one is written."""

    def __init__(self, console: Console):
        super().__init__(logging.INFO)
        self._console = console
        self._line = threading.RLock()
        self._step = ""
        self._started = 0.0
        self._details: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> RunningLine:
        if self._console.is_terminal:
            logging.getLogger(LOGGER).addHandler(self)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._ended.set()
            self._thread.join()
            logging.getLogger(LOGGER).removeHandler(self)

    def show(self, step: str) -> None:
        """Begins the line of a step."""
        with self._line:
            self._step, self._started, self._details = step, time.monotonic(), {}
            self._write()

    def clear(self) -> None:
        """Takes the line away, for another one to be written."""
        with self._line:
            self._step = ""
            self._erase()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Makes room for a line above the one of the step, which goes on."""
        with self._line:
            self._erase()
            yield
            if self._step:
                self._write()

    def emit(self, record: logging.LogRecord) -> None:
        """Takes up how far a step is."""
        with self._line:
            self._details[record.name] = record.getMessage()

    def _tick(self) -> None:
        while not self._ended.wait(EVERY):
            with self._line:
                if self._step:
                    self._write()

    def _write(self) -> None:
        if not self._console.is_terminal:
            return
        seconds = time.monotonic() - self._started
        line = Text.assemble(
            f"  {self._step:<20}",
            ("running   ", "dim"),
            f"{seconds:7.1f} s  ",
            ("; ".join(self._details.values()), "dim"),
        )
        line.truncate(max(20, self._console.width - 1), overflow="ellipsis")
        self._erase()
        self._console.print(line, end="\r", soft_wrap=True)

    def _erase(self) -> None:
        if self._console.is_terminal:
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))
