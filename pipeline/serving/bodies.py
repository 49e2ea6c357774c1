"""Read bodies within a budget of bytes; parse large ones sequentially, so that small ones are answered meanwhile."""

import asyncio
import contextlib
import gc
import re
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from pipeline.model.features import Refused

Parsed = TypeVar("Parsed")
# A larger body is parsed in a thread.
LARGE = 64 << 10
EXPECTED = 'expected {"instances": [{"feature": value, ...}, ...]}'
RETRY = {"Retry-After": "1"}
# So that what looks like NaN in a string is left alone. Possessive: nothing is tried twice, in a string without an end
# neither.
_STRING_OR_NAN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|NaN', re.DOTALL)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Limits:
    """Limits of requests."""

    body_bytes: int
    instances: int
    rows_waiting: int = 50_000  # of all requests
    bytes_under_way: int = 256 << 20  # of bodies that are being read or answered
    bytes_to_parse: int = 64 << 20  # of large bodies that wait
    body_seconds: float = 60.0  # until a body is complete

    @property
    def cells(self) -> int:
        """Return the most values, rows times width, of a request: as many as a body can write out, with commas."""
        return self.body_bytes // 2


class Bodies:
    """Bodies of all current requests."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._under_way = self._to_parse = 0
        self._turn = asyncio.Lock()
        self._locked_seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="parse")

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Yield a whole body, whose bytes count until the block ends; HTTPException: it is too large or slow."""
        body = bytearray()
        seconds = self._limits.body_seconds
        try:
            try:
                async with asyncio.timeout(seconds):
                    await self._fill(body, request)
            except TimeoutError as error:
                raise HTTPException(408, f"the body was not whole after {seconds:g} s") from error
            except ClientDisconnect as error:
                raise HTTPException(400, "the client has gone") from error
            yield body
        finally:
            self._under_way -= len(body)

    async def parse(self, body: bytearray, check: Callable[[Any], Parsed]) -> Parsed:
        """Return the result of a check of the JSON in a body; raise what the check raises, or an HTTPException."""
        if len(body) <= LARGE:
            return check(_from_json(body))
        if self._to_parse and self._to_parse + len(body) > self._limits.bytes_to_parse:
            raise HTTPException(503, "too many large bodies wait to be parsed; try again", RETRY)
        self._to_parse += len(body)
        loop = asyncio.get_running_loop()
        try:
            await self._turn.acquire()
            try:
                return await loop.run_in_executor(self._thread, self._parse_large, body, check)
            finally:
                # The event loop takes the interpreter's lock several times in one answer: each time it may wait.
                loop.call_later(2 * self._locked_seconds, self._turn.release)
        finally:
            self._to_parse -= len(body)

    def close(self) -> None:
        """Shut the thread down."""
        self._thread.shutdown(cancel_futures=True)

    def _parse_large(self, body: bytearray, check: Callable[[Any], Parsed]) -> Parsed:
        """Parse a body with Python's garbage collector off.

        10 MiB of ``[],[],...`` are 3.3 million lists. The collector would search them and TensorFlow's objects
        repeatedly and hold the interpreter's lock meanwhile: 5 s instead of 0.5 s.
        """
        collecting, started = gc.isenabled(), time.monotonic()
        gc.disable()
        try:
            try:
                content = _from_json(body)
            finally:
                self._locked_seconds = time.monotonic() - started
            return check(content)
        except (HTTPException, Refused) as error:
            # Frames of the traceback and of the causes have the content, which is to go before the collector is back.
            error.__context__ = None
            raise error.with_traceback(None) from None
        finally:
            if collecting:
                gc.enable()

    async def _fill(self, body: bytearray, request: Request) -> None:
        limit = self._limits.body_bytes
        async for chunk in request.stream():
            body += chunk
            self._under_way += len(chunk)
            if len(body) > limit:
                raise HTTPException(
                    413, f"the body is larger than {limit:,} bytes; send fewer instances, or use pipeline predict"
                )
            if self._under_way > max(limit, self._limits.bytes_under_way):
                raise HTTPException(503, "too many bodies are under way; try again", RETRY)


def _from_json(body: bytearray) -> Any:
    """Return the content of JSON; NaN becomes null, and a byte order mark is ignored."""
    try:
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            if b"NaN" not in body and not body.startswith(_BYTE_ORDER_MARK):
                raise
            plain = body.removeprefix(_BYTE_ORDER_MARK)
            return orjson.loads(_STRING_OR_NAN.sub(lambda found: b"null" if found[0] == b"NaN" else found[0], plain))
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is no JSON: {str(error)[:200]}; {EXPECTED}") from error
