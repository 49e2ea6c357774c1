"""Cloud Storage on loopback: the JSON API, and downloads of the XML API, for Google's, Beam's and TensorFlow's clients.

Objects are in memory. What is not implemented is refused, and so is what the service refuses. The rules, by their marks
in the code:

    names      cloud.google.com/storage/docs/objects, "Object names"
    json       cloud.google.com/storage/docs/json_api/v1: names in a path are percent-encoded, also "/"
    lists      .../json_api/v1/objects/list: at most 1,000 items and prefixes a page
    fields     cloud.google.com/storage/docs/json_api, "Partial response": only the fields asked for are sent
    resumable  cloud.google.com/storage/docs/performing-resumable-uploads: chunks are multiples of 256 KiB but the last
    batch      cloud.google.com/storage/docs/batch: at most 100 calls, no uploads and downloads
    if         cloud.google.com/storage/docs/request-preconditions
    hashes     cloud.google.com/storage/docs/data-validation: a checksum sent with an upload is verified
    compose    cloud.google.com/storage/docs/composite-objects: at most 32 sources
    rate       cloud.google.com/storage/quotas: one write a second to the same object name. The service "might" answer
               429, and here such writes are only counted
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import itertools
import json
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.parser import BytesHeaderParser
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import google_crc32c

CHUNK = 256 << 10
PAGE = 1000
LIST_PARAMETERS = {"prefix", "delimiter", "pageToken", "maxResults", "projection", "versions", "fields"}
# Kinds of requests, for counting.
LOOK_UP, READ, LIST, START, WRITE, COPY, DELETE, BATCH, BUCKET = (
    "look up",
    "read",
    "list",
    "start of an upload",
    "write",
    "copy",
    "delete",
    "batch",
    "bucket",
)


class Refused(Exception):
    """An error as the service writes it."""

    def __init__(self, code: int, message: str, reason: str):
        super().__init__(message)
        self.code, self.message, self.reason = code, message, reason


@dataclass(frozen=True)
class Object:
    """One generation of an object; ``properties`` are those that the client set."""

    content: bytes
    generation: int
    properties: Mapping[str, Any]
    created: datetime.datetime
    updated: datetime.datetime
    md5: str
    crc32c: str
    metageneration: int = 1


@dataclass
class Session:
    """A resumable upload."""

    bucket: str
    name: str
    properties: dict[str, Any]
    query: Mapping[str, str]
    length: int | None
    received: bytearray = field(default_factory=bytearray)
    finished: Object | None = None


@dataclass(frozen=True)
class Request:
    """A request that was answered; those in a batch count as well."""

    kind: str
    name: str
    code: int
    bytes: int


@dataclass(frozen=True)
class Answer:
    """A response."""

    code: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = BUCKET
    name: str = ""

    @classmethod
    def json(cls, content: Mapping[str, Any], query: Mapping[str, str], kind: str, name: str = "") -> Answer:
        content = _only(content, query["fields"]) if "fields" in query else content  # rule: fields
        return cls(200, json.dumps(content).encode(), {"Content-Type": "application/json"}, kind, name)


class CloudStorage:
    """Buckets, and servers that answer for them.

    Args:
        token: The access token that every request must carry; None takes requests of anybody.

    Attributes:
        requests: All that were answered so far.
        hurried: By object, how often it was written within a second of the last time.
    """

    def __init__(self, token: str | None = None) -> None:
        self.buckets: dict[str, dict[str, Object]] = {}
        self.requests: list[Request] = []
        self.hurried: Counter[str] = Counter()
        self._bucket_properties: dict[str, dict[str, Any]] = {}
        self._token = token
        self._sessions: dict[str, Session] = {}
        self._generations = itertools.count(time.time_ns() // 1000)
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def serve(
        self, port: int = 0, certificate: tuple[Path, Path] | None = None, address: str = "localhost"
    ) -> Iterator[str]:
        """Serve until the block ends, over TLS with a certificate and its key; yield the URL."""
        scheme = "https" if certificate else "http"
        server = ThreadingHTTPServer((address, port), _handler(self, scheme))
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            # The handshake belongs to the thread of the connection, not to the one that accepts.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"{scheme}://{address}:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()

    def create_bucket(self, name: str, location: str = "US") -> None:
        """Make a bucket; one that is there stays as it is."""
        self.buckets.setdefault(name, {})
        self._bucket_properties.setdefault(name, {"location": location.upper()})

    def read(self, address: str) -> bytes:
        """Return the content of gs://bucket/name."""
        bucket, _, name = address.removeprefix("gs://").partition("/")
        return self.buckets[bucket][name].content

    def addresses(self, prefix: str = "gs://") -> list[str]:
        """Return the addresses of all objects that begin with a prefix."""
        found = (f"gs://{bucket}/{name}" for bucket, objects in self.buckets.items() for name in objects)
        return sorted(address for address in found if address.startswith(prefix))

    def answer(self, method: str, url: str, headers: Mapping[str, str], body: bytes, base: str) -> Answer:
        """Answer a request.

        Args:
            method: Such as "GET".
            url: Path and query, or a whole URL.
            headers: Of the request.
            body: Of the request.
            base: Scheme and host that the client has asked, for addresses in the answer.
        """
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        is_xml = re.match(r"/(storage|upload|download|batch)/", parts.path) is None
        is_media = is_xml or query.get("alt") == "media"
        with self._lock:
            try:
                if self._token and headers.get("Authorization") != f"Bearer {self._token}":
                    raise Refused(
                        401, "Anonymous caller does not have access to the Google Cloud Storage bucket.", "required"
                    )
                answer = self._routed(method, parts.path, query, headers, body, base)
            except Refused as error:
                answer = _refusal(error, is_xml, is_media)
            self.requests.append(Request(answer.kind, answer.name, answer.code, len(body) + len(answer.body)))
        return answer

    def _routed(
        self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], body: bytes, base: str
    ) -> Answer:
        bucket, name = r"/b/(?P<bucket>[^/]+)", r"/o/(?P<name>[^/]+)"  # rule: json
        target = r"/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>[^/]+)"
        routes: dict[str, Callable[..., Answer]] = {
            "POST /batch/storage/v1": self._batch,
            "(GET|POST) /storage/v1/b": self._buckets,
            f"(GET|PATCH|DELETE) /storage/v1{bucket}": self._bucket,
            f"GET /storage/v1{bucket}/storageLayout": self._layout,
            f"GET /storage/v1{bucket}/iam/testPermissions": self._permissions,
            f"GET /storage/v1{bucket}/o": self._list,
            f"(GET|PATCH|DELETE) (?:/download)?/storage/v1{bucket}{name}": self._object,
            f"POST /storage/v1{bucket}{name}/compose": self._compose,
            f"POST /storage/v1{bucket}{name}/(?P<how>rewriteTo|copyTo){target}": self._copy,
            f"(POST|PUT|DELETE) /upload/storage/v1{bucket}/o": self._upload,
            # XML API: gcs_file_system.cc reads so, LoadBufferFromGCS.
            "GET /(?!storage/|upload/|download/|batch/)(?P<bucket>[^/]+)/(?P<name>.+)": self._media,
        }
        for route, handler in routes.items():
            match = re.fullmatch(route, f"{method} {path}")
            if match:
                values = {key: unquote(value) for key, value in match.groupdict().items()}
                return handler(method, query, headers, body, base, **values)
        raise Refused(501, f"the fake has no {method} {path}", "notImplemented")

    # Buckets.

    def _objects(self, bucket: str) -> dict[str, Object]:
        if bucket not in self.buckets:
            raise Refused(404, "The specified bucket does not exist.", "notFound")
        return self.buckets[bucket]

    def _resource_of_bucket(self, name: str) -> dict[str, Any]:
        return {
            "kind": "storage#bucket",
            "id": name,
            "name": name,
            "projectNumber": "1",
            **self._bucket_properties[name],
        }

    def _buckets(self, method: str, query: dict[str, str], _: Any, body: bytes, __: str) -> Answer:
        if method == "GET":
            items = [self._resource_of_bucket(name) for name in sorted(self.buckets)]
            return Answer.json({"kind": "storage#buckets", "items": items}, query, BUCKET)
        properties = json.loads(body)
        name = properties.pop("name")
        if name in self.buckets:
            raise Refused(
                409, "Your previous request to create the named bucket succeeded and you already own it.", "conflict"
            )
        self.create_bucket(name)
        self._bucket_properties[name] |= {**properties, "location": properties.get("location", "US").upper()}
        return Answer.json(self._resource_of_bucket(name), query, BUCKET, name)

    def _bucket(self, method: str, query: dict[str, str], _: Any, body: bytes, __: str, bucket: str) -> Answer:
        objects = self._objects(bucket)
        if method == "DELETE":
            if objects:
                raise Refused(409, "The bucket you tried to delete is not empty.", "conflict")
            del self.buckets[bucket], self._bucket_properties[bucket]
            return Answer(204)
        if method == "PATCH":
            self._bucket_properties[bucket] |= json.loads(body)
        return Answer.json(self._resource_of_bucket(bucket), query, BUCKET, bucket)

    def _layout(self, _: str, query: dict[str, str], *__: Any, bucket: str) -> Answer:
        """Answer gcs_file_system.cc, IsBucketHnsEnabled: folders of this bucket are prefixes of names."""
        self._objects(bucket)
        return Answer.json({"bucket": bucket, "hierarchicalNamespace": {"enabled": False}}, query, BUCKET, bucket)

    def _permissions(self, _: str, query: dict[str, str], *__: Any, bucket: str) -> Answer:
        self._objects(bucket)
        return Answer.json({"permissions": [query["permissions"]]}, query, BUCKET, bucket)

    def _list(self, _: str, query: dict[str, str], *__: Any, bucket: str) -> Answer:
        unknown = query.keys() - LIST_PARAMETERS - {"alt", "prettyPrint"}
        if unknown:
            raise Refused(501, f"the fake does not list by {sorted(unknown)}", "notImplemented")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        most = min(int(query.get("maxResults", PAGE)), PAGE)  # rule: lists
        entries: dict[str, dict[str, Any] | None] = {}
        for name, item in sorted(self._objects(bucket).items(), key=lambda pair: pair[0].encode()):
            if name.startswith(prefix):
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    entries[name] = _resource(bucket, name, item)
                else:
                    entries[name[: cut + len(delimiter)]] = None
        page = [entry for entry in entries if entry.encode() > after.encode()]
        answer: dict[str, Any] = {"kind": "storage#objects"}
        items = [entries[entry] for entry in page[:most] if entries[entry]]
        prefixes = [entry for entry in page[:most] if not entries[entry]]
        answer |= {key: value for key, value in (("items", items), ("prefixes", prefixes)) if value}
        if len(page) > most:
            answer["nextPageToken"] = base64.urlsafe_b64encode(page[most - 1].encode()).decode()
        return Answer.json(answer, query, LIST, f"{bucket}/{prefix}")

    # Objects.

    def _found(self, bucket: str, name: str, query: Mapping[str, str]) -> Object:
        found = self._objects(bucket).get(name)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise Refused(404, f"No such object: {bucket}/{name}", "notFound")
        return found

    def _object(
        self, method: str, query: dict[str, str], headers: Any, body: bytes, base: str, bucket: str, name: str
    ) -> Answer:
        if method == "GET" and query.get("alt") == "media":
            return self._media(method, query, headers, body, base, bucket, name)
        kind = DELETE if method == "DELETE" else WRITE if method == "PATCH" else LOOK_UP
        try:
            found = self._found(bucket, name, query)
            _require_conditions(query, found)
        except Refused as error:
            return replace(_refusal(error, False, False), kind=kind, name=f"{bucket}/{name}")
        if method == "DELETE":
            del self.buckets[bucket][name]
            return Answer(204, kind=DELETE, name=f"{bucket}/{name}")
        if method == "PATCH":
            found = replace(
                found,
                properties={**found.properties, **json.loads(body)},
                metageneration=found.metageneration + 1,
                updated=_now(),
            )
            self.buckets[bucket][name] = found
        return Answer.json(_resource(bucket, name, found), query, kind, f"{bucket}/{name}")

    def _media(
        self, _: str, query: dict[str, str], headers: Mapping[str, str], __: bytes, ___: str, bucket: str, name: str
    ) -> Answer:
        found = self._found(bucket, name, query)
        _require_conditions(query, found)
        size, content = len(found.content), found.content
        sent = {
            "Content-Type": found.properties.get("contentType", "application/octet-stream"),
            "ETag": _etag(found),
            "Last-Modified": format_datetime(found.updated, usegmt=True),
            "X-Goog-Generation": str(found.generation),
            "X-Goog-Metageneration": str(found.metageneration),
            "X-Goog-Stored-Content-Length": str(size),
            "X-Goog-Hash": f"crc32c={found.crc32c},md5={found.md5}",
        }
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range", ""))
        if not span:
            return Answer(200, content, sent, READ, f"{bucket}/{name}")
        first = int(span[1]) if span[1] else max(0, size - int(span[2]))
        last = min(int(span[2]), size - 1) if span[1] and span[2] else size - 1
        if first >= size:
            return Answer(416, b"", {"Content-Range": f"bytes */{size}"}, READ, f"{bucket}/{name}")
        sent["Content-Range"] = f"bytes {first}-{last}/{size}"
        return Answer(206, content[first : last + 1], sent, READ, f"{bucket}/{name}")

    def _insert(
        self, bucket: str, name: str, content: bytes, properties: dict[str, Any], query: Mapping[str, str]
    ) -> Object:
        objects = self._objects(bucket)
        _require_name(name)
        _require_conditions(query, objects.get(name))
        now = _now()
        new = Object(content, next(self._generations), properties, now, now, _md5(content), _crc32c(content))
        for kind, calculated in (("md5Hash", new.md5), ("crc32c", new.crc32c)):  # rule: hashes
            if properties.pop(kind, calculated) != calculated:
                raise Refused(400, f"Provided {kind} doesn't match calculated {kind} {calculated!r}.", "invalid")
        if name in objects and (now - objects[name].created).total_seconds() < 1:  # rule: rate
            self.hurried[f"gs://{bucket}/{name}"] += 1
        objects[name] = new
        return new

    def _upload(
        self, method: str, query: dict[str, str], headers: Mapping[str, str], body: bytes, base: str, bucket: str
    ) -> Answer:
        if "upload_id" in query:
            return self._upload_to_session(method, query, headers, body)
        kind, content = query.get("uploadType"), body
        properties: dict[str, Any] = {}
        if kind == "media":
            properties["contentType"] = headers.get("Content-Type", "application/octet-stream")
        elif kind == "multipart":
            properties, content = _related(headers["Content-Type"], body)
        elif kind == "resumable":
            properties = json.loads(body or b"{}")
            properties.setdefault("contentType", headers.get("X-Upload-Content-Type", "application/octet-stream"))
        else:
            raise Refused(400, f"Invalid upload type: {kind}", "invalid")
        name = query.get("name") or properties.pop("name", "")
        properties.pop("name", None)
        if kind != "resumable":
            new = self._insert(bucket, name, content, properties, query)
            return Answer.json(_resource(bucket, name, new), query, WRITE, f"{bucket}/{name}")
        self._objects(bucket)
        _require_name(name)
        length = headers.get("X-Upload-Content-Length")
        upload_id = hashlib.sha256(f"{len(self._sessions)}{name}".encode()).hexdigest()[:32]
        self._sessions[upload_id] = Session(bucket, name, properties, query, int(length) if length else None)
        location = f"{base}/upload/storage/v1/b/{quote(bucket)}/o?uploadType=resumable&upload_id={upload_id}"
        return Answer(200, b"", {"Location": location, "X-GUploader-UploadID": upload_id}, START, f"{bucket}/{name}")

    def _upload_to_session(self, method: str, query: dict[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        session = self._sessions.get(query["upload_id"])
        if session is None:
            raise Refused(404, "No such upload session.", "notFound")
        address = f"{session.bucket}/{session.name}"
        if method == "DELETE":
            del self._sessions[query["upload_id"]]
            return Answer(499, kind=DELETE, name=address)
        if session.finished is None:
            total = _received(session, headers.get("Content-Range"), body)
            if total is None or len(session.received) < total:
                so_far = {"Range": f"bytes=0-{len(session.received) - 1}"} if session.received else {}
                return Answer(308, b"", so_far, WRITE, address)
            if session.length not in (None, total):
                raise Refused(400, f"X-Upload-Content-Length was {session.length}, and {total} bytes came", "invalid")
            content = bytes(session.received)
            session.finished = self._insert(session.bucket, session.name, content, session.properties, session.query)
            session.received.clear()
        return Answer.json(_resource(session.bucket, session.name, session.finished), session.query, WRITE, address)

    def _compose(self, _: str, query: dict[str, str], __: Any, body: bytes, ___: str, bucket: str, name: str) -> Answer:
        # The service takes single quotes, which gcs_file_system.cc sends (AppendObject).
        ask = json.loads(body.replace(b"'", b'"'))
        if not 1 <= len(ask["sourceObjects"]) <= 32:  # rule: compose
            raise Refused(400, "The number of source components must be between 1 and 32.", "invalid")
        content = b""
        for source in ask["sourceObjects"]:
            found = self._found(bucket, source["name"], {})
            _require_conditions({key: str(value) for key, value in source.get("objectPrecondition", {}).items()}, found)
            content += found.content
        new = self._insert(bucket, name, content, ask.get("destination", {}), query)
        return Answer.json(_resource(bucket, name, new), query, COPY, f"{bucket}/{name}")

    def _copy(
        self,
        _: str,
        query: dict[str, str],
        __: Any,
        body: bytes,
        ___: str,
        bucket: str,
        name: str,
        how: str,
        to_bucket: str,
        to_name: str,
    ) -> Answer:
        found = self._found(
            bucket, name, {"generation": query["sourceGeneration"]} if "sourceGeneration" in query else {}
        )
        _require_conditions(query, found, "ifSource")
        given = json.loads(body or b"{}")
        new = self._insert(to_bucket, to_name, found.content, given or dict(found.properties), query)
        resource, size = _resource(to_bucket, to_name, new), str(len(new.content))
        if how == "rewriteTo":
            resource = {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": size,
                "objectSize": size,
                "done": True,
                "resource": resource,
            }
        return Answer.json(resource, query, COPY, f"{to_bucket}/{to_name}")

    def _batch(self, _: str, __: dict[str, str], headers: Mapping[str, str], body: bytes, base: str) -> Answer:
        parts = _parts(headers["Content-Type"], body)
        if len(parts) > 100:  # rule: batch
            raise Refused(400, f"The batch request has {len(parts)} calls; at most 100 are allowed.", "badRequest")
        lines = []
        for part in parts:
            _, _, call = part.replace(b"\r\n", b"\n").partition(b"\n\n")
            head, _, content = call.partition(b"\n\n")
            first, _, more = head.partition(b"\n")
            method, url, _ = first.decode().split(" ")
            if "/upload/" in url or "/download/" in url or "alt=media" in url:  # rule: batch
                raise Refused(400, "Uploads and downloads are not supported in a batch.", "badRequest")
            inner = dict(BytesHeaderParser().parsebytes(more).items())
            answer = self.answer(method, url, {**headers, **inner}, content, base)
            lines += ["--batch", "Content-Type: application/http", "", f"HTTP/1.1 {answer.code} {_phrase(answer.code)}"]
            lines += [f"{key}: {value}" for key, value in answer.headers.items()]
            lines += [f"Content-Length: {len(answer.body)}", "", answer.body.decode()]
        content = "\r\n".join([*lines, "--batch--", ""]).encode()
        return Answer(200, content, {"Content-Type": "multipart/mixed; boundary=batch"}, BATCH)


def _handler(storage: CloudStorage, scheme: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            base = f"{scheme}://{self.headers['Host']}"
            answer = storage.answer(self.command, self.path, self.headers, self._body(), base)
            self.send_response(answer.code)
            for key, value in answer.headers.items():
                self.send_header(key, value)
            if answer.code != 204:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def log_message(self, *_: object) -> None:
            pass

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    return Handler


def _resource(bucket: str, name: str, found: Object) -> dict[str, Any]:
    """Return an object's metadata: cloud.google.com/storage/docs/json_api/v1/objects."""
    return {
        "storageClass": "STANDARD",
        "contentType": "application/octet-stream",
        **found.properties,
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{found.generation}",
        "name": name,
        "bucket": bucket,
        "generation": str(found.generation),
        "metageneration": str(found.metageneration),
        "size": str(len(found.content)),
        "md5Hash": found.md5,
        "crc32c": found.crc32c,
        "etag": _etag(found),
        "timeCreated": _time(found.created),
        "updated": _time(found.updated),
    }


def _received(session: Session, span: str | None, body: bytes) -> int | None:
    """Add a chunk to a session; return the bytes of the whole object, None if unknown yet. Rule: resumable."""
    if span is None:
        session.received[:] = body
        return len(body)
    match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", span)
    if not match:
        raise Refused(400, f"Invalid Content-Range: {span}", "invalid")
    total = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return total
    first, last, known = int(match[1]), int(match[2]), len(session.received)
    if first > known:
        raise Refused(400, f"The upload offset is {first}, which exceeds the uploaded size of {known}.", "badRequest")
    if len(body) != last - first + 1:
        raise Refused(400, f"{len(body)} bytes came, and Content-Range says {span}", "badRequest")
    if (total is None or last + 1 < total) and len(body) % CHUNK:
        raise Refused(400, f"{len(body)} bytes are no multiple of {CHUNK}, and not the last.", "badRequest")
    session.received[first:] = body
    return total


def _require_name(name: str) -> None:
    """Refuse what is no name of an object. Rule: names."""
    if not name or len(name.encode()) > 1024 or name in (".", "..") or name.startswith(".well-known/acme-challenge/"):
        raise Refused(400, f"Invalid object name: {name!r}", "invalid")
    if "\r" in name or "\n" in name:
        raise Refused(400, f"Disallowed unicode characters present in object name {name!r}", "invalid")


def _require_conditions(query: Mapping[str, str], found: Object | None, prefix: str = "if") -> None:
    """Refuse a request whose preconditions do not hold; no object is generation 0. Rule: if."""
    actual = {
        "Generation": str(found.generation if found else 0),
        "Metageneration": str(found.metageneration if found else 0),
    }
    for kind, value in actual.items():
        if query.get(f"{prefix}{kind}Match", value) != value or query.get(f"{prefix}{kind}NotMatch") == value:
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")


def _refusal(error: Refused, is_xml: bool, is_media: bool) -> Answer:
    """Return an error as JSON, as XML, or as plain text where a download by JSON API fails."""
    if is_xml:
        code = {404: "NoSuchKey", 401: "AuthenticationRequired"}.get(error.code, error.reason)
        text = f"<Error><Code>{code}</Code><Message>{error.message}</Message></Error>"
        return Answer(
            error.code,
            f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode(),
            {"Content-Type": "application/xml; charset=UTF-8"},
            READ,
        )
    if is_media:
        return Answer(error.code, error.message.encode(), {"Content-Type": "text/html; charset=UTF-8"}, READ)
    detail = {"message": error.message, "domain": "global", "reason": error.reason}
    content = {"error": {"code": error.code, "message": error.message, "errors": [detail]}}
    return Answer(error.code, json.dumps(content).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _only(content: Mapping[str, Any], fields: str) -> dict[str, Any]:
    """Return the fields asked for, such as "items/name,nextPageToken" or "items(name,size)"."""
    chosen: dict[str, Any] = {}
    for name, one, several in re.findall(r"([^,()/]+)(?:/([^,()]+)|\(([^()]*)\))?", fields):
        if name not in content:
            continue
        parts = [part.strip() for part in (one or several).split(",") if part]
        value = content[name]
        chosen[name] = [{key: item[key] for key in parts if key in item} for item in value] if parts else value
    return chosen


def _related(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return metadata and content of an upload with uploadType=multipart."""
    metadata, media = _parts(content_type, body)
    _, _, properties = metadata.partition(b"\r\n\r\n")
    head, _, content = media.partition(b"\r\n\r\n")
    kind = BytesHeaderParser().parsebytes(head.lstrip()).get("Content-Type", "application/octet-stream")
    return {"contentType": kind, **json.loads(properties)}, content


def _parts(content_type: str, body: bytes) -> list[bytes]:
    """Return the parts of a multipart body as they are; the parsers of the standard library change line ends."""
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    if not match:
        raise Refused(400, f"no boundary in {content_type}", "invalid")
    border = re.escape(match[1].encode())
    return re.split(rb"(?:\A|\r?\n)--" + border + rb"(?:--)?(?:\r?\n|\Z)", body)[1:-1]


def _phrase(code: int) -> str:
    return BaseHTTPRequestHandler.responses.get(code, ("", ""))[0]  # type: ignore[call-overload]


def _etag(found: Object) -> str:
    return base64.b64encode(f"{found.generation}/{found.metageneration}".encode()).decode()


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content).digest()).decode()


def _crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _time(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
