"""The trace of some steps, and TensorBoard's profile plug-in, which shows it."""

import dataclasses
import gzip
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from pipeline.training import strategy
from pipeline.training.input_pipeline import read
from pipeline.training.loop import Fit
from tests.training.processes import free_ports
from tests.training.records import DECODER, SETTINGS, functional, write

pytestmark = pytest.mark.slow


def answer(address: str) -> object:
    with urllib.request.urlopen(address, timeout=300) as response:
        body = response.read()
    # The plug-in packs its answers whatever was accepted.
    return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)


def once_answered(address: str, seconds: float = 600) -> object:
    end = time.monotonic() + seconds
    while True:
        try:
            return answer(address)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def test_tensorboard_shows_the_trace_of_the_steps_that_profile_names(tmp_path):
    distribution = strategy.choose("one_device")
    pattern = write(tmp_path / "rows", 200)
    with distribution.strategy.scope():
        model = functional()
    splits = [read([pattern], DECODER, cache="memory", on_cpu=True) for _ in range(2)]
    folder = tmp_path / "output/model run"
    settings = dataclasses.replace(SETTINGS, profile=(5, 8))
    Fit(model, *splits, settings, distribution, seed=1, logs=str(folder)).run()
    (trace,) = folder.glob("plugins/profile/*/*.xplane.pb")

    (port,) = free_ports(1)
    program = Path(sys.executable).with_name("tensorboard")
    command = [str(program), "--logdir", str(tmp_path / "output"), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tensorboard:
        try:
            data = f"http://127.0.0.1:{port}/data"
            assert once_answered(f"{data}/plugins_listing")["profile"]["enabled"]
            (run,) = once_answered(f"{data}/plugin/profile/runs")
            assert run == f"model run/{trace.parent.name}"
            query = f"run={run.replace(' ', '%20')}&tag=trace_viewer@"
            hosts = answer(f"{data}/plugin/profile/hosts?{query}")
            assert [host["hostname"] for host in hosts] == [trace.name.removesuffix(".xplane.pb")]
        finally:
            tensorboard.terminate()
