"""Bodies under way: what they may weigh together, how many wait to be parsed, and what their JSON means."""

import asyncio
import gc
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pipeline.model.features import Refused
from pipeline.serving.bodies import LARGE, Bodies, Limits

LIMITS = Limits(body_bytes=1 << 20, instances=100, bytes_under_way=3 << 20, bytes_to_parse=1 << 20)


def request_of(*parts: bytes) -> Request:
    """A request whose body comes in parts."""
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else {"type": "http.request", "body": b"", "more_body": False}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


def parsed(body: bytes) -> Any:
    """What the JSON of a body is, which must not depend on its size."""

    async def both() -> list[Any]:
        bodies = Bodies(LIMITS)
        found = [
            await bodies.parse(bytearray(text), lambda content: content) for text in (body, body + b" " * 2 * LARGE)
        ]
        bodies.close()
        return found

    small, large = asyncio.run(both())
    assert repr(small) == repr(large)
    return small


def test_bodies_count_until_they_are_answered():
    async def ask() -> list[int]:
        bodies, answered = Bodies(LIMITS), asyncio.Event()

        async def one() -> int:
            try:
                async with bodies.read(request_of(bytes(500_000), bytes(500_000))):
                    await answered.wait()
                return 200
            except HTTPException as error:
                return error.status_code

        asked = [asyncio.create_task(one()) for _ in range(5)]
        await asyncio.sleep(0.1)
        answered.set()
        return [*await asyncio.gather(*asked), await one()]

    assert sorted(asyncio.run(ask())) == [200, 200, 200, 200, 503, 503]


def test_above_some_large_bodies_those_that_would_wait_to_be_parsed_are_refused():
    async def ask() -> list[Any]:
        bodies = Bodies(LIMITS)
        large = [bodies.parse(bytearray(b"[" + b" " * 400_000 + b"]"), len) for _ in range(5)]
        found = await asyncio.gather(*large, bodies.parse(bytearray(b"[]"), len), return_exceptions=True)
        return [getattr(result, "status_code", result) for result in found]

    assert asyncio.run(ask()) == [0, 0, 503, 503, 503, 0]


def test_a_large_body_leaves_the_collector_as_it_was_and_nothing_of_a_refused_one():
    kept: list[Any] = []

    def check(content: Any) -> None:
        kept.append(gc.isenabled())
        try:
            raise ValueError(len(content))
        except ValueError as error:
            raise Refused(0, "no") from error

    async def ask() -> BaseException | None:
        try:
            await Bodies(LIMITS).parse(bytearray(b"[" + b"[]," * LARGE + b"[]]"), check)
        except Refused as refused:
            return refused
        return None

    refused = asyncio.run(ask())
    assert refused is not None
    assert (refused.__cause__, refused.__context__) == (None, None)
    assert kept == [False]
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b'{"a": NaN, "b": "NaN", "c\\"NaN": [NaN]}', {"a": None, "b": "NaN", 'c"NaN': [None]}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b"[9223372036854775807, 18446744073709551615]", [2**63 - 1, 2**64 - 1]),
    ],
)
def test_json_is_read_as_python_reads_it_but_that_nan_is_null(body, content):
    assert parsed(body) == content


@pytest.mark.parametrize("body", [b"", b"[NaN", b"[Infinity]", b"-NaN", b"[1e400]", b'"\xff"', b"[" * 2_000, b'"NaN'])
def test_what_is_no_json_is_refused(body):
    with pytest.raises(HTTPException, match="the body is no JSON"):
        parsed(body)


def test_the_time_to_find_nan_is_linear_in_the_body():
    with pytest.raises(HTTPException, match="the body is no JSON"):
        parsed(b'[NaN, "' + b'\\"' * 400_000)
