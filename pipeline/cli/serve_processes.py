"""Several processes that answer at one port: Python computes on one core at a time."""

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.processes import processes

# Folder in which processes share their metrics; Prometheus's library looks when it is imported.
METRICS = "PROMETHEUS_MULTIPROC_DIR"


def serve_in_processes(
    number: int, work: Callable[..., None], arguments: tuple[Any, ...], on_start: Callable[[int], object]
) -> None:
    """Do the same work in several processes until a signal ends them all, or one of them ends.

    ``work`` passes the version that it has loaded to ``processes.ask``, and serves until a SIGTERM; ``on_start`` gets
    the version when all have loaded one.
    """
    logger, lines = logging.getLogger("pipeline"), logging.getLogger().handlers
    # What a process logs is handed to the handlers of this logger, and is not to be said by the process as well.
    logger.handlers, logger.propagate = list(lines), False
    names = [f"process {place + 1} of {number}" for place in range(number)]
    loaded: list[int] = []
    each_in_turn, asked_to = threading.Lock(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="metrics-") as folder:
        os.environ[METRICS] = folder
        with silence_stderr():
            from concurrent.futures import ThreadPoolExecutor, as_completed

            import tensorflow  # noqa: F401  # loaded once for all

            import pipeline.serving.app  # noqa: F401
        with processes() as made:
            if made is None:
                raise UserError("--processes needs Linux and two cores; leave it out")

            def is_ready(version: int) -> None:
                with each_in_turn:
                    loaded.append(version)
                    if len(loaded) == number:
                        on_start(max(loaded))

            def end(*_: object) -> None:
                asked_to.set()
                made.kill_all(names, signal.SIGTERM)

            with ThreadPoolExecutor(number) as pool:
                for one in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(one, end)
                ended = {pool.submit(made.run, work, *arguments, name=name, answer=is_ready): name for name in names}
                first = next(as_completed(ended))
                made.kill_all(names, signal.SIGTERM)
    if (error := first.exception()) and not asked_to.is_set():  # one that is ended while it loads has no last word
        raise UserError(f"{ended[first]}: {error}")
