"""Log a sample of requests and answers as JSON lines, for ``python -m pipeline monitor``.

``{"time": "2026-11-21T15:00:00+00:00", "version": 1795275791, "instance": {...}, "prediction": {...}}``, a file a day.
In place of an image it has what is known about it: ``{"image_format": "PNG", "image_width": 8, ...}``.
"""

import datetime
import errno
import logging
import os
import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import orjson

logger = logging.getLogger("pipeline.serve")


class RequestLog:
    """Append to ``requests-<day>.jsonl``, readable by its owner only, at most ``day_bytes`` a day."""

    def __init__(
        self,
        folder: Path,
        share: float,
        *,
        days: int = 30,
        day_bytes: int = 1 << 30,
        without: Collection[str] = frozenset(),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._share = share
        self._days = days
        self._day_bytes = day_bytes
        self._without = without
        self._day: datetime.date | None = None
        self._failing = False

    def add(self, version: int, instances: Sequence[Any], predictions: Sequence[Any]) -> None:
        """Log a sample of the rows; a full disk does not fail the request."""
        pairs = zip(instances, predictions, strict=True)
        chosen = [pair for pair in pairs if self._share >= 1 or random.random() < self._share]
        if not chosen:
            return
        now = datetime.datetime.now(datetime.UTC)
        common = {"time": now.isoformat(timespec="milliseconds"), "version": version}
        # NaN and infinity, which JSON lacks, become null.
        lines = [
            orjson.dumps(
                {**common, "instance": self._shown(row), "prediction": answer}, option=orjson.OPT_APPEND_NEWLINE
            )
            for row, answer in chosen
        ]
        try:
            if self._day != now.date():
                self._delete_old(now.date())
                self._day = now.date()
            self._append(self._folder / f"requests-{now:%Y-%m-%d}.jsonl", b"".join(lines))
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.error("cannot write the request log to %s: %s", self._folder, error.strerror)
            self._failing = True

    def _shown(self, row: Any) -> Any:
        """Return an instance without the columns that are not logged; a bare value is a column too."""
        if not self._without:
            return row
        return {name: row[name] for name in row if name not in self._without} if isinstance(row, dict) else None

    def _append(self, file: Path, lines: bytes) -> None:
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size + len(lines) > self._day_bytes:
                raise OSError(errno.EFBIG, f"the log of today has {self._day_bytes:,} bytes; see --log-bytes")
            os.write(handle, lines)
        finally:
            os.close(handle)

    def _delete_old(self, today: datetime.date) -> None:
        oldest = f"requests-{today - datetime.timedelta(days=self._days - 1)}.jsonl"
        for file in self._folder.glob("requests-????-??-??.jsonl"):
            if file.name < oldest:
                file.unlink(missing_ok=True)
