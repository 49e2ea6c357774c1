"""Progress of running steps: the last line of a terminal, or a line now and then in a log."""

import threading
import time

from rich.live import Live
from rich.text import Text

from pipeline.cli.printing import Terminal, assembled

# Seconds between two lines: on a terminal; elsewhere in the first minute after a start, and later.
REFRESH, SOON, LATER = 0.5, 10.0, 60.0


class RunningLine:
    """Names of the running steps, their seconds so far and their progress.

    On a terminal it is the line below all others. Elsewhere it is printed when the steps have been running for a while,
    so that a log shows that the run goes on.
    """

    def __init__(self, console: Terminal):
        self._console = console
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._started: dict[str, float] = {}
        self._progress: dict[str, str] = {}

    def start(self, *steps: str) -> None:
        """Show the line for all steps that run."""
        self.stop()
        self._started = {step: self._started.get(step, time.monotonic()) for step in steps}
        self._progress = {}
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        self._stopped.clear()
        self._thread = threading.Thread(target=self._keep_showing, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the line; no thread of it is left."""
        if self._thread:
            self._stopped.set()
            self._thread.join()
        if self._live:
            self._live.stop()
        self._thread = self._live = None

    def progress(self, topic: str, text: str) -> None:
        """Show how far the step is with one kind of work."""
        self._progress = {**self._progress, topic: text}

    def _keep_showing(self) -> None:
        started = time.monotonic()
        while not self._stopped.wait(REFRESH if self._live else SOON if time.monotonic() - started < LATER else LATER):
            if self._live:
                self._live.refresh()
            else:
                self._console.print(self._render(), soft_wrap=True)

    def _render(self) -> Text:
        seconds = ", ".join(f"{time.monotonic() - started:7.1f} s" for started in self._started.values())
        details = "; ".join(self._progress.values())
        parts = (f"  {', '.join(self._started):<19} ", ("running   ", "dim"), f"{seconds}  ", (details, "dim"))
        return assembled(*parts, no_wrap=True)
