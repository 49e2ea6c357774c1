"""Last line of a terminal while a step runs: its name, the seconds so far, and its progress."""

import time

from rich.live import Live
from rich.text import Text

from pipeline.cli.printing import Terminal, assembled


class RunningLine:
    """Line below all others, updated twice a second; on a terminal only."""

    def __init__(self, console: Terminal):
        self._console = console
        self._live: Live | None = None
        self._step = ""
        self._started = 0.0
        self._progress: dict[str, str] = {}

    def start(self, step: str) -> None:
        """Show the line for a step."""
        self.stop()
        self._step, self._started, self._progress = step, time.monotonic(), {}
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def stop(self) -> None:
        """Remove the line."""
        if self._live:
            self._live.stop()
        self._live = None

    def progress(self, topic: str, text: str) -> None:
        """Show how far the step is with one kind of work."""
        self._progress = {**self._progress, topic: text}

    def _render(self) -> Text:
        seconds = f"{time.monotonic() - self._started:7.1f} s  "
        details = "; ".join(self._progress.values())
        parts = (f"  {self._step:<20}", ("running   ", "dim"), seconds, (details, "dim"))
        return assembled(*parts, no_wrap=True)
