"""Require the token; without one, accept local programs only and no web page."""

import asyncio
import functools
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass
class Guard:
    """ASGI application that checks token, Host and Origin before another application.

    A web page whose name was pointed to 127.0.0.1 (DNS rebinding) sends another Host, and a form elsewhere another
    Origin. No ``token`` or empty ``hosts``: no such check. ``cut_off`` counts requests that were cancelled before their
    answer.
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
