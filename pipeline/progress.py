"""Progress within a step, for the log and the running line of a terminal."""

import logging
import time

LOGGER = "pipeline.progress"


class Progress:
    """Progress of one kind of work within a step, logged at most once a second."""

    def __init__(self, topic: str, every: float = 1.0):
        self._logger = logging.getLogger(f"{LOGGER}.{topic}")
        self._every = every
        self._reported = -every

    def due(self) -> bool:
        """Return whether a second has passed since the last report."""
        return time.monotonic() - self._reported >= self._every

    def tell(self, text: str) -> None:
        """Log a report."""
        self._reported = time.monotonic()
        self._logger.info(text)
