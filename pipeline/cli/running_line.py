"""Last line of a terminal while steps run: their names, the seconds so far, and their progress."""

import time

from rich.live import Live
from rich.text import Text

from pipeline.cli.printing import Terminal, assembled


class RunningLine:
    """Line below all others, updated twice a second; on a terminal only."""

    def __init__(self, console: Terminal):
        self._console = console
        self._live: Live | None = None
        self._started: dict[str, float] = {}
        self._progress: dict[str, str] = {}

    def start(self, *steps: str) -> None:
        """Show the line for all steps that run."""
        self.stop()
        self._started = {step: self._started.get(step, time.monotonic()) for step in steps}
        self._progress = {}
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
        seconds = f"{time.monotonic() - min(self._started.values(), default=time.monotonic()):7.1f} s  "
        details = "; ".join(self._progress.values())
        parts = (f"  {', '.join(self._started):<20}", ("running   ", "dim"), seconds, (details, "dim"))
        return assembled(*parts, no_wrap=True)
