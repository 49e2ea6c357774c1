"""The version that answers now; a newer one takes its place when it is ready, and no request notices."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pipeline.errors import UserError
from pipeline.serving.batching import Batcher
from pipeline.serving.metrics import Metrics
from pipeline.serving.model import Model, load
from pipeline.serving.versions import Versions

logger = logging.getLogger("pipeline.serve")


@dataclass(frozen=True)
class Served:
    """A loaded version and the lines in front of its signatures. Who has one keeps it until it has answered."""

    model: Model
    make: Callable[[str], Batcher] = field(repr=False)
    batchers: dict[str, Batcher] = field(default_factory=dict, repr=False)

    def batcher(self, signature: str) -> Batcher:
        """The line in front of a signature."""
        if signature not in self.batchers:
            self.batchers[signature] = self.make(signature)
        return self.batchers[signature]


class Current:
    """What is served, from a folder of versions or from one SavedModel.

    Args:
        model: Folder of versions, followed as they come and go; or of a SavedModel, here or gs://bucket/folder.
        name: Of the model, in the server's addresses.
        metrics: Told what happens.
        most_waiting: Rows that may wait for an answer.
    """

    def __init__(self, model: Versions | str, name: str, metrics: Metrics, most_waiting: int):
        self.name = name
        self._model = model
        self._metrics = metrics
        self._most_waiting = most_waiting
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="ask")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        # Versions that do not load, with the time their folder was last changed.
        self._broken: dict[int, float] = {}
        self.served: Served | None = None

    def start(self) -> Served:
        """Loads the newest version that loads.

        Raises:
            UserError: there is none.
        """
        if isinstance(self._model, str):
            self._take(load(self._model))
        else:
            self._model.resolve("latest")
            problem = self._look(self._model)
            if self.served is None:
                raise UserError(problem or f"no version in {self._model.folder} loads")
        assert self.served is not None
        return self.served

    async def follow(self, every: float) -> None:
        """Looks into the folder now and then, and changes to the version that is the newest there."""
        if isinstance(self._model, str):
            return
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(every)
            try:
                await loop.run_in_executor(self._loading, self._look, self._model)
            except Exception:
                logger.exception("Could not look into %s; looking again in %g s", self._model.folder, every)

    def close(self) -> None:
        """Lets the threads go."""
        self._asking.shutdown()
        self._loading.shutdown(cancel_futures=True)

    def _look(self, versions: Versions) -> str | None:
        """Takes the newest version that loads; returns why the newest does not."""
        problem = None
        for number in reversed(versions.numbers()):
            if self.served and self.served.model.number == number:
                return problem
            try:
                changed = versions.path(number).stat().st_mtime
                if self._broken.get(number) == changed:
                    continue
                self._take(load(str(versions.path(number)), number, versions.manifest(number)))
                return problem
            except FileNotFoundError:
                continue  # removed since; the next look knows
            except UserError as error:
                if not versions.path(number).is_dir():
                    continue
                self._broken[number] = changed
                self._metrics.load_failures.inc()
                logger.error("%s", error)
                problem = problem or str(error)
        return problem

    def _take(self, model: Model) -> None:
        started = time.monotonic()
        model.warm_up()

        def batcher(signature: str) -> Batcher:
            one = model.signatures[signature]
            return Batcher(one, self._asking, self._most_waiting, self._metrics.rows_per_call.observe)

        before = self.served
        self.served = Served(model, batcher)
        self._metrics.version.set(model.number)
        if before is not None:
            logger.info(
                "version %d answers in place of %d (warmed up in %.1f s)",
                model.number,
                before.model.number,
                time.monotonic() - started,
            )
