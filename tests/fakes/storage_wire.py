"""Requests, answers and errors of Cloud Storage on the wire; the marks of rules are those of ``cloud_storage``."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from http.server import BaseHTTPRequestHandler
from typing import Any

from requests.structures import CaseInsensitiveDict


@dataclass(frozen=True)
class Call:
    """A request: ``base`` is the scheme and host that the client has asked, for addresses in the answer."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    base: str


@dataclass(frozen=True)
class Answer:
    """A response."""

    code: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, content: Mapping[str, Any], call: Call) -> "Answer":
        """Return JSON with the fields that the request asks for. Rule: fields."""
        if "fields" in call.query:
            content = _only(content, call.query["fields"])
        return cls(200, json.dumps(content).encode(), {"Content-Type": "application/json; charset=UTF-8"})


class Refused(Exception):
    """An error, with the reason as the service names it."""

    def __init__(self, code: int, message: str, reason: str = "invalid"):
        super().__init__(message)
        self.code, self.message, self.reason = code, message, reason

    def answer(self, call: Call) -> Answer:
        """Return JSON; XML from the XML API, and plain text where a download by the JSON API fails."""
        if not re.match(r"/(storage|upload|download|batch)/", call.path):
            code = {404: "NoSuchKey", 401: "AuthenticationRequired", 403: "AccessDenied"}.get(self.code, self.reason)
            text = f"<Error><Code>{code}</Code><Message>{self.message}</Message></Error>"
            kind, text = "application/xml", f"<?xml version='1.0' encoding='UTF-8'?>{text}"
        elif call.query.get("alt") == "media":
            kind, text = "text/html", self.message
        else:
            detail = {"message": self.message, "domain": "global", "reason": self.reason}
            error = {"code": self.code, "message": self.message, "errors": [detail]}
            kind, text = "application/json", json.dumps({"error": error})
        return Answer(self.code, text.encode(), {"Content-Type": f"{kind}; charset=UTF-8"})


def _only(content: Mapping[str, Any], fields: str) -> dict[str, Any]:
    """Return the fields asked for, such as "items/name,nextPageToken" or "items(name,size)"."""
    chosen: dict[str, Any] = {}
    for name, one, several in re.findall(r"([^,()/]+)(?:/([^,()]+)|\(([^()]*)\))?", fields):
        parts = [part.strip() for part in (one or several).split(",") if part]
        if name in content:
            value = content[name]
            chosen[name] = [{key: item[key] for key in parts if key in item} for item in value] if parts else value
    return chosen


def related(call: Call) -> tuple[dict[str, Any], bytes]:
    """Return metadata and content of an upload with uploadType=multipart."""
    metadata, media = _parts(call)
    _, _, properties = metadata.partition(b"\r\n\r\n")
    head, _, content = media.partition(b"\r\n\r\n")
    kind = BytesHeaderParser().parsebytes(head.lstrip()).get("Content-Type", "application/octet-stream")
    return {"contentType": kind, **json.loads(properties)}, content


def calls(call: Call) -> list[tuple[str, str, Mapping[str, str], bytes]]:
    """Return method, URL, headers and body of every call in a batch. Rule: batch."""
    found = []
    for part in _parts(call):
        _, _, inner = part.replace(b"\r\n", b"\n").partition(b"\n\n")
        head, _, content = inner.partition(b"\n\n")
        first, _, headers = head.partition(b"\n")
        method, url, _ = first.decode().split(" ")
        if "/upload/" in url or "/download/" in url or "alt=media" in url:
            raise Refused(400, "Uploads and downloads are not supported in a batch.", "badRequest")
        own = BytesHeaderParser().parsebytes(headers)
        found.append((method, url, CaseInsensitiveDict({**call.headers, **own}), content))
    if len(found) > 100:
        raise Refused(400, f"The batch request has {len(found)} calls; at most 100 are allowed.", "badRequest")
    return found


def batch(answers: list[Answer]) -> Answer:
    """Return the answers to the calls of a batch as one."""
    lines: list[str] = []
    for answer in answers:
        phrase = BaseHTTPRequestHandler.responses.get(answer.code, ("",))[0]  # type: ignore[call-overload]
        lines += ["--batch", "Content-Type: application/http", "", f"HTTP/1.1 {answer.code} {phrase}"]
        lines += [f"{key}: {value}" for key, value in answer.headers.items()]
        lines += [f"Content-Length: {len(answer.body)}", "", answer.body.decode()]
    content = "\r\n".join([*lines, "--batch--", ""]).encode()
    return Answer(200, content, {"Content-Type": "multipart/mixed; boundary=batch"})


def _parts(call: Call) -> list[bytes]:
    """Return the parts of a multipart body as they are; the standard library's parsers change the ends of lines."""
    match = re.search(r'boundary="?([^";]+)"?', call.headers.get("Content-Type", ""))
    if not match:
        raise Refused(400, "Content-Type names no boundary.")
    border = re.escape(match[1].encode())
    return re.split(rb"(?:\A|\r?\n)--" + border + rb"(?:--)?(?:\r?\n|\Z)", call.body)[1:-1]
