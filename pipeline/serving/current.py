"""Hold the loaded version; replace it with a newer one without losing a request."""

import asyncio
import gc
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from pipeline import filesystem
from pipeline.errors import UserError, first_line
from pipeline.model.explanations import MOST_WAITING
from pipeline.model.export_format import EXPLAIN_SIGNATURE
from pipeline.model.signatures import Model, load
from pipeline.model.versions import Versions
from pipeline.serving.batching import Batcher
from pipeline.serving.metrics import Metrics

logger = logging.getLogger("pipeline.serve")
# A broken disk, a link that leads nowhere; a model that refuses its own example, or whose graph does not run.
FAILURES = (UserError, OSError, tf.errors.OpError, RuntimeError)


@dataclass(frozen=True)
class Served:
    """A loaded version and the queues of its signatures; a request keeps the version it began with."""

    model: Model
    batchers: dict[str, Batcher] = field(repr=False)

    def explains(self, signature: str) -> bool:
        """Return whether a signature is the one that explains answers, which takes long."""
        return signature == EXPLAIN_SIGNATURE and self.model.explains is not None


class Current:
    """The served version of a watched folder of versions, or one SavedModel (also gs://bucket/folder)."""

    def __init__(self, model: Versions | str, name: str, metrics: Metrics, max_waiting: int):
        self.name = name
        self._model = model
        self._metrics = metrics
        self._max_waiting = max_waiting
        self._predicting = ThreadPoolExecutor(1, thread_name_prefix="predict")
        # An explanation takes as long as a thousand answers, which must not wait for it.
        self._explaining = ThreadPoolExecutor(1, thread_name_prefix="explain")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        # Versions that do not load, with names, sizes and times of their files: a copy may not yet be whole.
        self._broken: dict[int, object] = {}
        self.problems: list[str] = []
        self.served: Served | None = None

    def start(self) -> Served:
        """Load the newest version that loads; raise a UserError if none does."""
        if isinstance(self._model, str):
            try:
                self._switch_to(load(self._model))
            except FAILURES as error:
                raise UserError(_problem(self._model, error)) from error
        else:
            self._model.resolve("latest")
            self._update(self._model)
            if self.served is None:
                raise UserError(self.problems[0] if self.problems else f"no version in {self._model.folder} loads")
        assert self.served is not None
        return self.served

    async def follow(self, every: float) -> None:
        """Switch to the newest version in the folder, every few seconds."""
        if isinstance(self._model, str):
            return
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(every)
            try:
                await loop.run_in_executor(self._loading, self._update, self._model)
            except Exception:
                logger.exception("Could not look into %s; looking again in %g s", self._model.folder, every)

    def close(self) -> None:
        """Shut the threads down."""
        self._predicting.shutdown()
        self._explaining.shutdown()
        self._loading.shutdown(cancel_futures=True)

    def _update(self, versions: Versions) -> None:
        """Switch to the newest version that loads."""
        for number in reversed(versions.numbers()):
            if self.served and self.served.model.number == number:
                return
            changed = _state(versions.path(number))
            if self._broken.get(number) == changed:
                continue
            try:
                self._switch_to(load(str(versions.path(number)), number, versions.manifest(number)))
                return
            except FAILURES as error:
                if not versions.path(number).is_dir():
                    continue  # removed meanwhile; the next update knows
                self._broken[number] = changed
                self._metrics.load_failures.inc()
                problem = _problem(str(versions.path(number)), error)
                logger.error("%s", problem)
                self.problems.append(problem)

    def _switch_to(self, model: Model) -> None:
        started = time.monotonic()
        model.warm_up()
        on_call = self._metrics.rows_per_call.observe
        batchers = {
            name: Batcher(signature, self._predicting, self._max_waiting, on_call)
            for name, signature in model.signatures.items()
        }
        if model.explains:
            most = min(self._max_waiting, MOST_WAITING)
            # Rows are explained singly: in a batch, each request would wait for the last.
            explaining = Batcher(model.explains, self._explaining, most, on_call, most_rows=1)
            batchers[EXPLAIN_SIGNATURE] = explaining
        before, self.served = self.served, Served(model, batchers)
        if model.explains:
            # Takes seconds, for which predictions do not wait; the first request to explain stands behind it.
            self._explaining.submit(model.explains.predict_example)
        self._metrics.version.set(model.number)
        if before is not None:
            seconds = time.monotonic() - started
            numbers = (model.number, before.model.number)
            logger.info("version %d answers in place of %d (warmed up in %.1f s)", *numbers, seconds)
            del before
            gc.unfreeze()
            gc.collect()
        # What is loaded now is no garbage. Each search through all of it, which requests bring about, took a third of a
        # second, in which none was answered.
        gc.freeze()


def _problem(folder: str, error: Exception) -> str:
    """Return why a model is not served."""
    if isinstance(error, UserError):
        return str(error)
    return f"the model in {folder} is not served: {first_line(error)[:300]}; push it again"


def _state(folder: Path) -> object:
    """Return a value that changes when a file in a folder does; an error number if the folder cannot be read."""
    try:
        return list(filesystem.stamps(folder, sorted(map(str, folder.rglob("*")))))
    except OSError as error:
        return error.errno
