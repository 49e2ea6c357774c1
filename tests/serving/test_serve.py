"""The command: a server of its own process, told to end, and the way back."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

from pipeline.model.versions import Versions
from tests.serving.command import COMMAND, ROOT, ask, serve
from tests.serving.conftest import ROWS, expected, push


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    versions = Versions(tmp_path_factory.mktemp("serving") / "flights")
    push(versions, 10, bias=0)
    push(versions, 11, bias=1)
    return versions


@pytest.fixture(scope="module")
def server(versions: Versions) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """As Vertex AI starts it: everything in variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {
        "AIP_HTTP_PORT": str(port),
        "AIP_STORAGE_URI": str(versions.path(11)),
        "AIP_HEALTH_ROUTE": "/v1/endpoints/1/deployedModels/2",
        "AIP_PREDICT_ROUTE": "/v1/endpoints/1/deployedModels/2:predict",
    }
    process = subprocess.Popen(COMMAND, cwd=ROOT, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "answers at http://0.0.0.0" in line, line
    yield process, f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.mark.slow
def test_vertex_ais_variables_say_what_is_served_and_where(server):
    _, address = server
    with urllib.request.urlopen(f"{address}/v1/endpoints/1/deployedModels/2", timeout=300) as health:
        assert health.status == 200
    answer = ask(f"{address}/v1/endpoints/1/deployedModels/2:predict", {"instances": ROWS, "parameters": {}})
    assert [row["probability"] for row in answer["predictions"]] == pytest.approx([expected(row, 1) for row in ROWS])
    # The name is that of the folder of versions, for TensorFlow Serving's calls.
    assert len(ask(f"{address}/v1/models/flights:predict", {"instances": ROWS})["predictions"]) == 3


@pytest.mark.slow
def test_a_taken_port_is_said_before_anything_is_loaded(server, versions):
    port = server[1].rpartition(":")[2]
    second = serve("--model", versions.folder, "--port", port, "--host", "0.0.0.0", "--no-token")
    assert second.returncode == 1
    assert re.fullmatch(
        rf"pipeline serve: cannot listen on 0.0.0.0, port {port}: .* choose another .*\n", second.stderr
    )


@pytest.mark.slow
def test_told_to_end_it_answers_what_is_under_way_and_ends_with_0(server):
    process, address = server
    many = {"instances": [{"carrier": "UA", "distance": 1}] * 9_000}
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as half:
        body = json.dumps(many).encode()
        path = "/v1/endpoints/1/deployedModels/2:predict"
        half.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:-10])
        # An answer to another request proves that the server has begun to read this one.
        ask(f"{address}{path}", {"instances": ROWS})
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        half.sendall(body[-10:])
        assert half.recv(20).startswith(b"HTTP/1.1 200 OK")
        while half.recv(1 << 20):
            pass
    assert process.wait(300) == 0


@pytest.mark.slow
def test_a_rollback_says_what_it_would_do_does_it_and_can_be_undone(tmp_path):
    folder = tmp_path / "flights"
    for number in ("10", "11"):
        (folder / number).mkdir(parents=True)
        (folder / number / "saved_model.pb").touch()
    (folder / "11/manifest.json").write_text('{"pushed_at": "2026-11-21", "metrics": {"auc": 0.71234}}')

    dry = serve("--model", folder, "--rollback", "--dry-run")
    assert dry.returncode == 0
    assert "taken back     11 (pushed 2026-11-21, auc 0.7123); would be kept in" in dry.stdout
    assert "Nothing was changed" in dry.stdout
    assert Versions(folder).numbers() == [10, 11]

    done = serve("--model", folder, "--rollback")
    assert "taken back     11 (pushed 2026-11-21, auc 0.7123); is kept in" in done.stdout
    assert "served instead 10" in done.stdout
    assert Versions(folder).numbers() == [10]

    again = serve("--model", folder, "--rollback")
    assert again.returncode == 1
    assert again.stderr.startswith(f"pipeline serve: no previous version in {folder}: there is 10 only")

    assert "put back       11" in serve("--model", folder, "--restore").stdout
    assert serve("--model", folder, "--list").stdout == "10\n11 (pushed 2026-11-21, auc 0.7123)  latest\n"


@pytest.mark.slow
def test_without_a_version_it_ends_with_one_sentence(tmp_path):
    nothing = serve("--model", tmp_path / "flights")
    assert nothing.returncode == 1
    assert "nothing pushed yet; run python local_runner.py" in nothing.stderr
    assert nothing.stderr.count("\n") == 1
    (tmp_path / "flights/7/variables").mkdir(parents=True)
    half = serve("--model", tmp_path / "flights")
    assert "only 7, without saved_model.pb" in half.stderr
