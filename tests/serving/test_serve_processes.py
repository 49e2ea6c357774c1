"""A server of two processes: one address, one set of metrics, one end."""

import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest
from tensorflow_serving.apis import get_model_status_pb2, model_service_pb2_grpc

from pipeline.model.versions import Versions
from tests.serving.command import COMMAND, ROOT, ask, serve
from tests.serving.conftest import ROWS, expected, push

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Versions, int]]:
    versions = Versions(tmp_path / "flights")
    push(versions, 10, bias=0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        grpc_port = free.getsockname()[1]
    command = [*COMMAND, "--model", str(versions.folder), "--port", "0", "--processes", "2"]
    command += ["--grpc-port", str(grpc_port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(3)]
    (address,) = re.findall(r"version 10 answers at (http://\S+)/v1/\S+ \(.*, 2 processes\)", "".join(lines))
    assert "".join(lines).count(f"gRPC calls are answered at 127.0.0.1:{grpc_port}") == 2, lines
    yield process, address, versions, grpc_port
    process.kill()
    process.wait()
    process.stderr.close()


def test_both_answer_and_their_metrics_are_one(server):
    process, address, versions, grpc_port = server
    predict = f"{address}/v1/models/flights:predict"

    def answers(_: int) -> list[float]:
        return [row["probability"] for row in ask(predict, {"instances": ROWS})["predictions"]]

    # Each request is a connection, which the system deals out.
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(answers, range(40)):
            assert found == pytest.approx([expected(row) for row in ROWS])
    with urllib.request.urlopen(f"{address}/metrics", timeout=300) as answer:
        metrics = answer.read().decode()
    assert re.search(r'^serve_requests_total\{status="200"\} 40\.0$', metrics, re.MULTILINE)
    assert re.search(rf"^serve_rows_total {40 * len(ROWS)}\.0$", metrics, re.MULTILINE)
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "flights"
    for _ in range(4):
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, timeout=300)
            assert status.model_version_status[0].version == 10
    push(versions, 11, bias=1)
    new = pytest.approx([expected(row, 1) for row in ROWS])
    end = time.monotonic() + 300
    while not all(answers(0) == new for _ in range(20)):
        assert time.monotonic() < end
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    assert "serve_model_version 10.0" in metrics


def test_one_that_dies_ends_the_server_with_a_sentence(server):
    process, *_ = server
    template, *_ = psutil.Process(process.pid).children()
    serving = template.children()
    assert len(serving) == 2
    serving[1].kill()
    assert process.wait(300) == 1
    said = process.stderr.read().splitlines()[-1]
    assert re.fullmatch(r"pipeline serve: process \d of 2: its process exited without an error message: .*", said)
    # One that nobody has asked about yet is a zombie.
    left = [one for one in (template, *serving) if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not left


def test_a_model_that_does_not_load_is_said_once(tmp_path):
    folder = push(Versions(tmp_path / "flights"), 10, bias=0)
    (folder / "saved_model.pb").write_bytes(b"broken")
    done = serve("--model", tmp_path / "flights", "--port", "0", "--processes", "2")
    assert done.returncode == 1
    assert len(re.findall("^pipeline serve: ", done.stderr, re.MULTILINE)) == 1
    assert "Traceback" not in done.stderr
