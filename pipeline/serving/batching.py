"""Combine waiting requests into one call of the model.

No request waits for others: they collect while the model is busy. A call takes 1.4 ms for one row, 1.9 ms for sixteen
and 4 ms for a hundred (flights, 2 cores), so under load throughput grows and the delay hardly does.

Short calls run in the event loop, longer and gRPC calls in a thread (docs/decisions/0011-serving.md).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from pipeline.model.features import Columns, joined, row_count
from pipeline.model.inputs import EXAMPLES, IMAGE
from pipeline.model.signatures import Signature

MAX_ROWS = 4_096  # of a call
VALUE_BYTES = 8  # of a list
SHORT_SECONDS = 0.01  # of a call, for which the event loop may stand still


class Overloaded(Exception):
    """Too many rows wait."""


@dataclass(frozen=True)
class _Size:
    """Size of one request or of several joined ones; ``widths`` are those of list inputs, padded to the longest."""

    rows: int
    widths: tuple[int, ...]
    encoded_bytes: int

    def __add__(self, other: "_Size") -> "_Size":
        widths = tuple(map(max, self.widths, other.widths))
        return _Size(self.rows + other.rows, widths, self.encoded_bytes + other.encoded_bytes)

    @property
    def weight(self) -> int:
        return self.rows + (self.rows * sum(self.widths) * VALUE_BYTES + self.encoded_bytes) // 1024


@dataclass(frozen=True)
class _Request:
    columns: Columns
    size: _Size
    in_loop: bool
    answer: asyncio.Future[dict[str, np.ndarray]]


class Batcher:
    """Queue in front of one signature.

    A KiB of lists, images and tf.Examples counts as a row, both in ``max_waiting`` and ``most_rows``. ``pool`` has one
    thread, because TensorFlow uses all cores for a call; ``on_call`` gets the rows of each call.
    """

    def __init__(
        self,
        signature: Signature,
        pool: Executor,
        max_waiting: int,
        on_call: Callable[[int], object],
        most_rows: int = MAX_ROWS,
    ):
        self._signature = signature
        self._pool = pool
        self._max_waiting = max_waiting
        self._on_call = on_call
        self._most_rows = most_rows
        self._queue: deque[_Request] = deque()
        self._waiting = 0
        self._short = 0  # weight of the largest call that is known to be short
        self._lists = [name for name, column in signature.inputs.items() if column.values is not None]
        self._encoded = [name for name, column in signature.inputs.items() if column.kind in (IMAGE, EXAMPLES)]
        self._worker: asyncio.Task[None] | None = None

    async def predict(self, columns: Columns, *, in_loop: bool = True) -> dict[str, np.ndarray]:
        """Return the model's answers, [rows, ...] by output; raise Overloaded or tf.errors.OpError."""
        size = _Size(
            row_count(columns),
            tuple(columns[name].shape[1] for name in self._lists),
            sum(len(value) for name in self._encoded for value in columns[name]),
        )
        if self._waiting and self._waiting + size.weight > self._max_waiting:
            raise Overloaded
        request = _Request(columns, size, in_loop, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self._waiting += size.weight
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await request.answer

    async def _work(self) -> None:
        """Call the model until no request waits."""
        while self._queue:
            # What came at the same time is read in this turn of the event loop and checked in the next.
            for _ in range(2):
                await asyncio.sleep(0)
            batch = [self._queue.popleft()]
            size = batch[0].size
            while self._queue and (joint := size + self._queue[0].size).weight <= self._most_rows:
                batch.append(self._queue.popleft())
                size = joint
            self._waiting -= sum(request.size.weight for request in batch)
            await self._call(batch, size.weight)

    async def _call(self, batch: list[_Request], weight: int) -> None:
        columns = batch[0].columns
        if len(batch) > 1:
            columns = {
                name: joined([request.columns[name] for request in batch], self._signature.inputs[name])
                for name in columns
            }
        self._on_call(row_count(columns))
        try:
            in_loop = weight <= self._short and all(request.in_loop for request in batch)
            answers = await self._answers(columns, weight, in_loop)
        except BaseException as error:
            if isinstance(error, tf.errors.OpError) and len(batch) > 1:
                # One row that the model refuses is not to cost the others their answers.
                for request in batch:
                    await self._call([request], request.size.weight)
                return
            for request in batch:
                if request.answer.done():  # its client has disconnected
                    continue
                if isinstance(error, Exception):
                    request.answer.set_exception(error)
                else:
                    request.answer.cancel()
            if not isinstance(error, Exception):
                raise
            return  # the requests that still wait are answered all the same
        start = 0
        for request in batch:
            if not request.answer.done():
                request.answer.set_result(
                    {name: values[start : start + request.size.rows] for name, values in answers.items()}
                )
            start += request.size.rows

    async def _answers(self, columns: Columns, weight: int, in_loop: bool) -> dict[str, np.ndarray]:
        """Call the signature, and learn from how long it took."""
        started = time.perf_counter()
        try:
            if in_loop:
                return self._signature.predict(columns)
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._signature.predict, columns)
        finally:
            is_short = time.perf_counter() - started < SHORT_SECONDS
            self._short = max(self._short, weight) if is_short else min(self._short, weight - 1)
