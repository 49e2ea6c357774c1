"""Limit who connects, idle connections and headers, and send each answer in one write."""

import asyncio
import functools
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
CONNECTIONS = 1_000
HEADERS = 100
HEADER_BYTES = 64 << 10
HEADER_SECONDS = 10.0
# Requests of a connection that wait for the answer to one before them. uvicorn stops reading at the first, but what it
# has read by then may hold 7,000.
PIPELINED = 16


class _InOne:
    """Join the writes of one turn of the event loop: separate writes of headers and body take a quarter longer."""

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write at the end of this turn."""
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._write)
        self._parts.append(data)

    def close(self) -> None:
        """Close behind what was written."""
        self._write()
        self._transport.close()

    def _write(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class Connection(HttpToolsProtocol):
    """A connection of uvicorn, whose own limits apply only after the headers."""

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self._header_bytes = self._number_of_headers = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._in_body = self._body_came = False
        self._bytes_beside_body = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are too many connections."""
        super().connection_made(_InOne(transport))  # type: ignore[arg-type]
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._expect_no_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; close the connection after too much data or time."""
        if self._deadline is None and self.cycle is not None and self.cycle.response_complete and self.cycle.more_body:
            self.transport.close()  # a body that no request waits for
            return
        super().data_received(data)
        if self._deadline is not None:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES:
                self._refuse_headers()
        elif self._in_body:
            self._count_beside_body(len(data))
        elif self.cycle is not None and self.cycle.response_complete and not self.transport.is_closing():
            # Empty lines begin no message, but uvicorn has ended its own wait for one.
            self._expect_headers()

    def on_message_begin(self) -> None:
        """Expect headers; of the first message they were expected before."""
        super().on_message_begin()
        if self._deadline is None:
            self._expect_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; reject one behind a body (a trailer)."""
        if self._in_body:
            raise ValueError("a header behind a body")  # uvicorn answers 400 and closes
        self._number_of_headers += 1
        if self._number_of_headers <= HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer."""
        self._expect_no_headers()
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("too many pipelined requests")  # as above
        if self._number_of_headers > HEADERS:
            self._refuse_headers()
        else:
            super().on_headers_complete()
        self._header_bytes = self._number_of_headers = self._bytes_beside_body = 0
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """Read on."""
        self._body_came = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a message."""
        self._in_body = False
        super().on_message_complete()

    def _count_beside_body(self, number: int) -> None:
        """Reject many bytes outside a body: httptools keeps a trailer until it ends, and copies it with each part."""
        self._bytes_beside_body = 0 if self._body_came else self._bytes_beside_body + number
        self._body_came = False
        if self._bytes_beside_body > HEADER_BYTES:
            self._refuse_headers()

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, lambda: self.transport.close())

    def _expect_no_headers(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_headers(self) -> None:
        self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
        self.transport.close()


@dataclass
class Guard:
    """ASGI application that checks token, Host and Origin before another application.

    A web page whose name was pointed to 127.0.0.1 (DNS rebinding) sends another Host, and a form elsewhere another
    Origin.
    """

    app: ASGIApp
    token: str | None = None
    hosts: Collection[str] = ()
    open_paths: Collection[str] = ()
    cut_off: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an error, or let the application answer."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        try:
            await (refusal or self.app)(scope, receive, send)
        except asyncio.CancelledError:
            self.cut_off += scope["type"] == "http"
            raise

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if self.token is not None and scope["path"] not in self.open_paths:
            given = headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                expected = "expected the header Authorization: Bearer, with this server's token"
                return JSONResponse({"error": expected}, 401, {"WWW-Authenticate": "Bearer"})
        if self.hosts:
            host, origin = headers.get("host", ""), headers.get("origin")
            if _name(host) not in self.hosts:
                names = ", ".join(sorted(self.hosts))
                return JSONResponse(
                    {"error": f"this server is not {host[:100]!r}: it answers {names}; see --no-token"}, 403
                )
            if origin is not None and origin.partition("://")[2] != host:
                return JSONResponse(
                    {"error": f"pages of {origin[:100]!r} may not ask this server; see --no-token"}, 403
                )
        return None


@functools.lru_cache(1_000)
def _name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
