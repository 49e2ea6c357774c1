"""A receiver of webhooks, which checks signatures as Standard Webhooks wants it."""

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

KEY = b"0123456789abcdef0123"
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver(http.server.ThreadingHTTPServer):
    """Answers with the given codes in turn, then 204, and keeps what it gets.

    Attributes:
        got: Headers and body of each message.
        may_answer: Event that answers wait for.
    """

    def __init__(self, *codes: int, hangs: bool = False):
        self.codes = list(codes)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.may_answer = threading.Event()
        if not hangs:
            self.may_answer.set()
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/runs"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.server.may_answer.wait()
        self.send_response(self.server.codes.pop(0) if self.server.codes else 204)
        self.send_header("Location", self.server.url)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@contextlib.contextmanager
def receiving(*codes: int, hangs: bool = False) -> Iterator[Receiver]:
    """Starts a receiver; one that hangs answers nothing until the end of the block."""
    receiver = Receiver(*codes, hangs=hangs)
    threading.Thread(target=receiver.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        receiver.shutdown()
        receiver.server_close()


def verified(got: tuple[dict[str, str], bytes], key: bytes) -> dict[str, Any]:
    """The body of a message whose signature is right."""
    headers, body = got
    message = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    # As far as Standard Webhooks' own libraries let the two clocks differ.
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300
    return json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
