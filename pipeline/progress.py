"""How far a step has come, told to whoever watches: the log, and the running line of a terminal."""

from __future__ import annotations

import logging
import time

LOGGER = "pipeline.progress"


class Progress:
    """One kind of work within a step; ``tell`` says how far it is, at most once a second."""

    def __init__(self, topic: str, every: float = 1.0):
        self._logger = logging.getLogger(f"{LOGGER}.{topic}")
        self._every = every
        self._told = -every

    def due(self) -> bool:
        """Whether a second has passed since the last time."""
        return time.monotonic() - self._told >= self._every

    def tell(self, text: str) -> None:
        """Says it."""
        self._told = time.monotonic()
        self._logger.info(text)
