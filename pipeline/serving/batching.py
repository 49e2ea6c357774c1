"""Requests that wait at the same time are put to the model in one call.

Nobody waits for company: while the model is busy others come together by themselves. A call costs 3 ms for one row and
5 ms for a hundred (flights, 2 cores), so under load the answers per second grow and the delay hardly does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from pipeline.serving.features import Columns, rows_in
from pipeline.serving.model import Signature

MOST_ROWS = 4_096


class Overloaded(Exception):
    """More rows wait than may."""


@dataclass(frozen=True)
class _Waiting:
    columns: Columns
    rows: int
    answer: asyncio.Future[dict[str, np.ndarray]]


class Batcher:
    """The line in front of one signature.

    Args:
        signature: To ask.
        pool: Of one thread: TensorFlow uses all cores for a call.
        most_waiting: Rows that may wait, to refuse at once what would be answered too late.
        on_call: Told the rows of each call.
    """

    def __init__(self, signature: Signature, pool: Executor, most_waiting: int, on_call: Callable[[int], object]):
        self.signature = signature
        self._pool = pool
        self._most_waiting = most_waiting
        self._on_call = on_call
        self._line: deque[_Waiting] = deque()
        self._rows = 0
        self._work: asyncio.Task[None] | None = None

    async def answer(self, columns: Columns) -> dict[str, np.ndarray]:
        """The model's answers, [rows, ...] by output.

        Raises:
            Overloaded: too many rows wait.
            tf.errors.OpError: the model refuses these rows.
        """
        rows = rows_in(columns)
        if self._rows and self._rows + rows > self._most_waiting:
            raise Overloaded
        waiting = _Waiting(columns, rows, asyncio.get_running_loop().create_future())
        self._line.append(waiting)
        self._rows += rows
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._work_off())
        return await waiting.answer

    async def _work_off(self) -> None:
        while self._line:
            together = [self._line.popleft()]
            rows = together[0].rows
            while self._line and rows + self._line[0].rows <= MOST_ROWS:
                together.append(self._line.popleft())
                rows += together[-1].rows
            self._rows -= rows
            await self._ask(together)

    async def _ask(self, together: list[_Waiting]) -> None:
        columns = together[0].columns
        if len(together) > 1:
            columns = {name: np.concatenate([one.columns[name] for one in together]) for name in columns}
        self._on_call(rows_in(columns))
        try:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(self._pool, self.signature.answer, columns)
        except tf.errors.OpError as error:
            if len(together) == 1:
                _settle(together[0], error)
            else:
                # One row that the model refuses is not to cost the others their answers.
                for one in together:
                    await self._ask([one])
            return
        except BaseException as error:
            for one in together:
                _settle(one, error)
            raise
        start = 0
        for one in together:
            _settle(one, {name: values[start : start + one.rows] for name, values in answers.items()})
            start += one.rows


def _settle(one: _Waiting, outcome: dict[str, np.ndarray] | BaseException) -> None:
    if one.answer.done():  # whoever asked has gone
        return
    if isinstance(outcome, dict):
        one.answer.set_result(outcome)
    elif isinstance(outcome, Exception):
        one.answer.set_exception(outcome)
    else:
        one.answer.cancel()
