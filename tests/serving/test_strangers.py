"""Untrusted requests to a server in a separate process: silence, floods, invalid input and forbidden access."""

import contextlib
import json
import os
import random
import socket
import stat
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.model.versions import Versions
from tests.serving.conftest import ROWS, push

ROOT = Path(__file__).resolve().parents[2]
PATH = "/v1/models/flights:predict"
TOKEN = "0123456789abcdef0123456789abcdef"
AFTERWARDS = 20  # health checks behind the requests that are tested
SECONDS = 300.0  # without an answer, after which a server hangs, on a busy machine too


@contextlib.contextmanager
def serving(versions: Versions, *arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a server for a folder of versions; yield its process and port."""
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", "serve", "--model", versions.folder, "--port", "0", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        for line in process.stderr:
            if "answers at" in line:
                break
        yield process, int(line.partition("http://")[2].partition(":")[2].partition("/")[0])
        process.kill()


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    versions = Versions(tmp_path_factory.mktemp("serving") / "flights")
    push(versions, 10, bias=0)
    return versions


@pytest.fixture(scope="module")
def server(versions: Versions) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with serving(versions) as found:
        yield found


def ask(port: int, path: str = "/health", body: object = None, headers: str = "", host: str = "localhost") -> bytes:
    """Return the complete response to a request."""
    text = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(text)}\r\n{headers}\r\n"
    )
    return exchange(port, head.encode() + text)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SECONDS)


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes to a server; return its response until it closes the connection."""
    answer = b""
    with connect(port) as connection, contextlib.suppress(OSError):
        connection.sendall(request)
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def memory(process: subprocess.Popen) -> int:
    """Return the resident memory of a process, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


@pytest.mark.slow
def test_an_answer_comes_in_one_piece_and_answers_to_requests_at_once_in_their_order(server):
    _, port = server
    body = json.dumps({"instances": ROWS[:1]})
    head = f"HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    request = f"POST {PATH} {head}\r\n{body}".encode()
    with connect(port) as connection:
        for _ in range(50):
            connection.sendall(request)
            piece = connection.recv(1 << 16)
            assert piece.startswith(b"HTTP/1.1 200"), piece
            assert piece.endswith(b"}]}"), piece
        last = f"POST {PATH}/no {head}Connection: close\r\n\r\n{body}".encode()
        connection.sendall(request + request + last)
        answers = b""
        while piece := connection.recv(1 << 16):
            answers += piece
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"404"], answers


def is_closed_despite_empty_lines(port: int) -> bool:
    """Return whether a server closes a connection on which only empty lines follow a request."""
    with connect(port) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        connection.settimeout(1)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                connection.sendall(b"\r\n")
                if connection.recv(1) == b"":
                    return True
            except TimeoutError:
                pass
            except OSError:
                return True
    return False


@pytest.fixture(scope="module")
def closed_despite_empty_lines(server) -> Iterator[Future[bool]]:
    """Start the check in the background, in parallel to other tests."""
    with ThreadPoolExecutor(1) as checking:
        yield checking.submit(is_closed_despite_empty_lines, server[1])


@pytest.mark.slow
@pytest.mark.usefixtures("closed_despite_empty_lines")
def test_silence_and_floods_cost_little_and_health_answers_at_once(server):
    process, port = server
    before = memory(process)
    with contextlib.ExitStack() as open_connections:
        silent = [open_connections.enter_context(connect(port)) for _ in range(250)]
        unfinished = [open_connections.enter_context(connect(port)) for _ in range(60)]
        for connection in unfinished:
            connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n".encode())
            with contextlib.suppress(OSError):
                connection.settimeout(5)
                connection.sendall(bytes(6_000_000))

        def flood() -> None:
            line = b"x-filler: " + b"x" * 1000 + b"\r\n"
            for _ in range(50):
                with contextlib.suppress(OSError), connect(port) as connection:
                    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + line * 1000)

        floods = [threading.Thread(target=flood) for _ in range(4)]  # 200 MB of headers in all
        with health_watched(server) as seconds:
            for thread in floods:
                thread.start()
            for thread in floods:
                thread.join()
        assert max(seconds) < 1
        assert memory(process) - before < 600 << 20
        # Silence ends by itself.
        assert silent[0].recv(1) == b""


@pytest.mark.slow
def test_empty_lines_do_not_keep_a_connection(closed_despite_empty_lines):
    assert closed_despite_empty_lines.result()


@contextlib.contextmanager
def health_watched(server: tuple[subprocess.Popen[str], int]) -> Iterator[list[float]]:
    """Processor seconds that a server takes until it answers each health check during the block, and some after it.

    They measure what a check waits for, however slow the machine is. Another process checks, for this one is busy.
    """
    process, port = server
    code = (
        "import sys, time, urllib.request\n"
        "import psutil\n"
        "server = psutil.Process(int(sys.argv[1]))\n"
        "while True:\n"
        "    before = sum(server.cpu_times()[:2])\n"
        f"    urllib.request.urlopen('http://localhost:{port}/health', timeout={SECONDS}).read()\n"
        "    print(sum(server.cpu_times()[:2]) - before, flush=True)\n"
        "    time.sleep(0.02)\n"
    )
    seconds: list[float] = []
    command = [sys.executable, "-c", code, str(process.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as checking, ThreadPoolExecutor(1) as reader:
        assert checking.stdout
        checking.stdout.readline()
        reading = reader.submit(lambda lines: [seconds.append(float(line)) for line in lines], checking.stdout)
        try:
            yield seconds
            enough = len(seconds) + AFTERWARDS
            while len(seconds) < enough:
                assert not reading.done(), "health could no longer be checked"
                time.sleep(0.05)
        finally:
            checking.kill()


def post(port: int, body: bytes) -> bytes:
    """Post a body; return the status of the response."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return exchange(port, head.encode() + body)[9:12]


LISTS = b'{"instances":[' + b"[]," * 3_300_000 + b"[]]}"
KEYS = b'{"instances":[{' + b",".join(b'"%06d":0' % number for number in range(900_000)) + b"}]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "number"),
    [
        pytest.param(LISTS, 6, id="lists", marks=pytest.mark.long),
        pytest.param(KEYS, 6, id="keys", marks=pytest.mark.long),
        pytest.param(LISTS, 80, id="many"),
    ],
)
def test_while_whole_bodies_are_parsed_that_cost_most_health_answers(server, body, number):
    process, port = server
    before = memory(process)
    code = (
        "import gc, sys, time\n"
        "import orjson\n"
        "gc.disable()\n"
        "body = sys.stdin.buffer.read()\n"
        "started = time.process_time()\n"
        "orjson.loads(body)\n"
        "print(time.process_time() - started)\n"
    )
    to_load = float(subprocess.run([sys.executable, "-c", code], input=body, capture_output=True, check=True).stdout)
    with health_watched(server) as seconds, ThreadPoolExecutor(number) as strangers:
        statuses = set(strangers.map(lambda _: post(port, body), range(number)))
    assert statuses <= {b"400", b"413", b"503", b""}  # closed while it still sends, a client may see no answer
    assert memory(process) - before < 600 << 20
    # A check waits for one body at most, and no check for all of them.
    assert len(seconds) > number + AFTERWARDS
    assert max(seconds) < 1 + 4 * to_load
    assert statistics.median(seconds) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("trailer", [b"X: " + b"a" * (8 << 20), b"X: a\r\n" * (1 << 20), b"X: a\r\n\r\n"])
def test_trailers_are_refused_however_long_and_health_answers(server, trailer):
    process, port = server
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n"
    before = memory(process)
    with health_watched(server) as seconds, connect(port) as connection:
        try:
            connection.sendall(head.encode() + trailer)
            answer = connection.recv(1 << 16)
        except OSError:
            answer = b""  # closed while it still sends
    assert answer[9:12] in (b"400", b"431", b"")
    assert max(seconds) < 1
    assert memory(process) - before < 64 << 20


@pytest.mark.slow
def test_a_body_in_chunks_of_a_byte_is_read(server):
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in json.dumps({"instances": ROWS * 200}).encode())
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert exchange(server[1], head.encode() + body + b"0\r\n\r\n")[9:12] == b"200"


@pytest.mark.slow
def test_a_few_requests_at_once_are_answered_and_thousands_refused(server):
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert exchange(server[1], request * 9 + ask_last()).count(b"HTTP/1.1 200 OK") == 10
    with health_watched(server) as seconds, contextlib.ExitStack() as open_connections:
        for _ in range(40):
            connection = open_connections.enter_context(connect(server[1]))
            with contextlib.suppress(OSError):
                connection.sendall(request * 6_000)
    assert max(seconds) < 1


def ask_last() -> bytes:
    """Return a request after which the server closes the connection."""
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.slow
def test_a_websocket_is_not_opened(server):
    upgrade = "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    head = f"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\n{upgrade}\r\n"
    assert exchange(server[1], head.encode())[9:12] == b"200"


@pytest.mark.slow
def test_nonsense_is_never_an_error_of_the_server(server):
    _, port = server
    numbers = random.Random(1)
    good = json.dumps({"instances": ROWS}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: ".encode()
    statuses: dict[bytes, int] = {}
    for _ in range(10_000):
        body = bytearray(good)
        for _ in range(numbers.randint(1, 4)):
            place = numbers.randrange(len(body))
            body[place : place + numbers.randint(0, 3)] = numbers.randbytes(numbers.randint(0, 3))
        request = bytearray(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        if numbers.random() < 0.3:
            request[numbers.randrange(len(head))] = numbers.randrange(256)
        with connect(port) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            status = connection.recv(1 << 16)[9:12]
        statuses[status] = statuses.get(status, 0) + 1
    assert not [status for status in statuses if status.startswith(b"5")], statuses
    assert statuses[b"400"] > 1_000, statuses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        ("localhost", "", b"200"),
        ("127.0.0.1:8501", "", b"200"),
        ("[::1]:8501", "", b"200"),
        ("localhost", "Origin: http://localhost\r\n", b"200"),
        ("evil.example", "", b"403"),
        ("localhost.evil.example", "", b"403"),
        ("[", "", b"403"),
        ("localhost", "Origin: http://evil.example\r\n", b"403"),
        ("localhost", "Origin: null\r\n", b"403"),
        ("localhost", "Origin: http://[\r\n", b"403"),
    ],
)
def test_no_web_page_reaches_it(server, host, headers, status):
    assert ask(server[1], PATH, {"instances": ROWS}, headers, host)[9:12] == status


@pytest.mark.slow
def test_a_token_is_asked_for_but_of_health_checks(versions):
    with serving(versions, "--host", "0.0.0.0", PIPELINE_SERVE_TOKEN=TOKEN) as (_, port):
        body = {"instances": ROWS}
        answer = ask(port, PATH, body)
        assert answer[9:12] == b"401"
        assert b"www-authenticate: Bearer" in answer
        assert ask(port, PATH, body, f"Authorization: Bearer {TOKEN[:-1]}\r\n")[9:12] == b"401"
        assert ask(port, PATH, body, f"Authorization: Bearer {TOKEN}\r\n", host="models.example")[9:12] == b"200"
        assert ask(port)[9:12] == b"200"
        assert ask(port, "/metrics")[9:12] == b"401"


def refused(*arguments: object, **environment: str) -> str:
    """Why the server does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "serve", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_network_is_not_answered_by_accident(versions, tmp_path):
    model = ("--model", versions.folder)
    sentence = refused(*model, "--host", "0.0.0.0")
    assert "everybody in the network could ask. Set a token" in sentence
    assert len(sentence.splitlines()) == 1
    assert "16 or more" in refused(*model, PIPELINE_SERVE_TOKEN="short")
    assert "cannot be read" in refused(*model, "--token-file", tmp_path / "none")


@pytest.mark.slow
def test_the_log_of_requests_is_private_and_lacks_what_it_shall(versions, tmp_path):
    with serving(versions, "--request-log", tmp_path, "--log-without", "carrier") as (_, port):
        assert ask(port, PATH, {"instances": ROWS})[9:12] == b"200"
    (log,) = tmp_path.iterdir()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert [sorted(json.loads(line)["instance"]) for line in log.read_text().splitlines()] == [
        ["distance", "seats", "temp"]
    ] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        pytest.param("manifest.json", marks=pytest.mark.long),
        "saved_model.pb",
        pytest.param("variables/variables.index", marks=pytest.mark.long),
    ],
)
def test_of_a_damaged_version_it_says_why_at_once_and_serves_the_older_until_it_is_whole(tmp_path, file):
    versions = Versions(tmp_path / "flights")
    push(versions, 10, bias=0)
    damaged = push(versions, 11, bias=1) / file
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", "serve", "--model", versions.folder, "--port", "0"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        assert "11" in process.stderr.readline()
        line = process.stderr.readline()
        assert "version 10 answers" in line
        with damaged.open("ab") as file:  # at no moment damaged in another way; the folder's own time does not change
            file.write(whole[len(whole) // 2 :])
        assert "version 11 answers in place of 10" in process.stderr.readline()
        process.kill()


@pytest.mark.slow
def test_told_to_end_it_waits_as_long_as_it_may_and_says_what_it_cuts_off(versions):
    with serving(versions, "--grace-seconds", 1) as (process, port):
        with contextlib.ExitStack() as unfinished:
            for _ in range(3):
                half = unfinished.enter_context(connect(port))
                half.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode())
            assert ask(port)[9:12] == b"200"
            process.terminate()
            _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "ended; 3 requests under way were cut off after 1 s" in said
