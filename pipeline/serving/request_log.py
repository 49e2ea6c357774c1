"""Log a sample of requests and answers as JSON lines, for ``python -m pipeline monitor``.

``{"time": "2026-11-21T15:00:00+00:00", "version": 1795275791, "instance": {...}, "prediction": {...}}``, a file a day.
In place of an image it has what is known about it: ``{"image_format": "PNG", "image_width": 8, ...}``.
"""

import datetime
import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger("pipeline.serve")


class RequestLog:
    """Appends to ``requests-<day>.jsonl``.

    Args:
        folder: Created if missing.
        share: Of the rows that are logged, 0 to 1.
    """

    def __init__(self, folder: Path, share: float):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._share = share
        self._failing = False

    def add(self, version: int, instances: Sequence[Any], predictions: Sequence[Any]) -> None:
        """Log a sample of the rows; a full disk costs the log, not the answer."""
        pairs = zip(instances, predictions, strict=True)
        chosen = [pair for pair in pairs if self._share >= 1 or random.random() < self._share]
        if not chosen:
            return
        now = datetime.datetime.now(datetime.timezone.utc)
        common = {"time": now.isoformat(timespec="milliseconds"), "version": version}
        lines = [json.dumps({**common, "instance": row, "prediction": answer}) + "\n" for row, answer in chosen]
        try:
            with (self._folder / f"requests-{now:%Y-%m-%d}.jsonl").open("a", encoding="utf-8") as file:
                file.write("".join(lines))
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.error("cannot write the request log to %s: %s", self._folder, error.strerror)
            self._failing = True
