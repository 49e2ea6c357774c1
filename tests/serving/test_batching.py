"""Requests that wait together, before a real model whose thread is busy with something else."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline.model.export_format import INPUTS
from pipeline.model.signatures import Signature, load
from pipeline.serving import batching
from pipeline.serving.batching import SHORT_SECONDS, Batcher, Overloaded
from pipeline.serving.request_log import RequestLog


@pytest.fixture(scope="module")
def signature(tmp_path_factory: pytest.TempPathFactory) -> Signature:
    """Doubles numbers, and refuses those below 0."""
    model = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="number")])
    def double(number):
        with tf.control_dependencies([tf.debugging.assert_greater_equal(number, 0.0)]):
            return {"probability": number * 2}

    folder = tmp_path_factory.mktemp("model") / "1"
    tf.saved_model.save(model, str(folder), signatures={"serving_default": double})
    (folder / INPUTS).parent.mkdir(exist_ok=True)
    (folder / INPUTS).write_text(json.dumps({"number": {"type": "floats", "required": True}}))
    return load(str(folder)).signatures["serving_default"]


@pytest.fixture
def busy() -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
    """A thread that is busy until the event."""
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(done.wait)
        yield pool, done
        done.set()


def answers(batcher: Batcher, done: threading.Event, numbers: list[float]) -> list[float | BaseException]:
    """Answers to requests of a row each that wait together."""

    async def ask(number: float) -> float:
        return float((await batcher.predict({"number": np.array([number], np.float32)}))["probability"][0])

    async def together() -> list[float | BaseException]:
        asked = [asyncio.ensure_future(ask(number)) for number in numbers]
        await asyncio.sleep(0.1)
        done.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(together())


def test_requests_that_wait_share_a_call(signature, busy):
    calls: list[int] = []
    pool, done = busy
    assert answers(Batcher(signature, pool, 100, calls.append), done, [1, 2, 3, 4]) == [2, 4, 6, 8]
    assert sorted(calls) in ([4], [1, 3])


def test_a_row_that_the_model_refuses_costs_the_others_nothing(signature, busy):
    pool, done = busy
    found = answers(Batcher(signature, pool, 100, lambda rows: None), done, [1, 2, -3, 4])
    assert [found[place] for place in (0, 1, 3)] == [2, 4, 8]
    assert isinstance(found[2], tf.errors.InvalidArgumentError)


def test_what_would_wait_too_long_is_refused_at_once(signature, busy):
    pool, done = busy
    found = answers(Batcher(signature, pool, 2, lambda rows: None), done, [1, 2, 3, 4, 5, 6])
    refused = [isinstance(one, Overloaded) for one in found]
    assert any(refused)
    assert [one for one, bad in zip(found, refused, strict=True) if not bad] == [
        2 * number for number, bad in zip(range(1, 7), refused, strict=True) if not bad
    ]


def test_short_calls_are_made_in_the_event_loop_and_long_ones_in_the_thread(signature, monkeypatch):
    threads: list[str] = []
    now = seconds = 0.0
    monkeypatch.setattr(batching, "time", SimpleNamespace(perf_counter=lambda: now))

    def double(columns):
        nonlocal now
        threads.append(threading.current_thread().name)
        now += seconds
        return {"probability": columns["number"] * 2}

    asked = dataclasses.replace(signature, function=double)

    async def ask(batcher: Batcher, rows: int, in_loop: bool = True) -> None:
        await batcher.predict({"number": np.ones(rows, np.float32)}, in_loop=in_loop)

    async def ask_all() -> None:
        nonlocal seconds
        batcher = Batcher(asked, pool, 100, lambda rows: None)
        await ask(batcher, 2)  # not known yet
        await ask(batcher, 2)
        await ask(batcher, 2, in_loop=False)
        await ask(batcher, 3)  # more than are known
        seconds = 2 * SHORT_SECONDS
        await ask(batcher, 3)  # the loop stands still once
        await ask(batcher, 3)
        await ask(batcher, 2)

    with ThreadPoolExecutor(1, thread_name_prefix="predict") as pool:
        asyncio.run(ask_all())
    in_thread = [name.startswith("predict") for name in threads]
    assert in_thread == [True, False, True, True, False, True, False]


@pytest.mark.parametrize(("share", "least", "most"), [(0, 0, 0), (0.1, 50, 160), (1, 1000, 1000)])
def test_the_share_of_the_rows_that_was_asked_for_is_logged(tmp_path: Path, share, least, most):
    RequestLog(tmp_path, share).add(7, [{"x": 1}] * 1000, [0.5] * 1000)
    assert least <= sum(len(file.read_text().splitlines()) for file in tmp_path.iterdir()) <= most
