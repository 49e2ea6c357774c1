"""Cloud Storage on loopback: the JSON API, and downloads of the XML API, for Google's, Beam's and TensorFlow's clients.

Objects are in memory. What is not implemented is refused, and so is what the service refuses. The rules, by their marks
in the code:

    names      cloud.google.com/storage/docs/objects, "Object names"
    json       cloud.google.com/storage/docs/request-endpoints, "Encoding URL path parts": names are encoded, also "/"
    lists      cloud.google.com/storage/docs/json_api/v1/objects/list: at most 1,000 items and prefixes a page
    fields     cloud.google.com/storage/docs/json_api, "Partial response": only the fields asked for are sent
    resumable  cloud.google.com/storage/docs/performing-resumable-uploads: chunks are multiples of 256 KiB but the last
    batch      cloud.google.com/storage/docs/batch: at most 100 calls, no uploads and downloads
    if         cloud.google.com/storage/docs/request-preconditions
    hashes     cloud.google.com/storage/docs/data-validation: a checksum sent with an upload is verified
    compose    cloud.google.com/storage/docs/composite-objects: at most 32 sources
    roles      cloud.google.com/storage/docs/access-control/iam-roles: roles/storage.objectAdmin, which the tasks have,
               is without storage.buckets.get
    rate       cloud.google.com/storage/quotas: one write a second to the same object name. The service "might" answer
               429; here such writes are counted, and refused where the test wants it
"""

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
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import google_crc32c

from tests.fakes.storage_wire import Answer, Call, Refused, batch, calls, related

CHUNK = 256 << 10
PAGE = 1000
LIST_PARAMETERS = {"prefix", "delimiter", "pageToken", "maxResults", "projection", "versions", "fields"}
# Kinds of requests, by what they are answered with.
LOOK_UP, READ, LIST, START, WRITE, COPY, DELETE = "look up", "read", "list", "start", "write", "copy", "delete"
BATCH, BUCKET = "batch", "bucket"


@dataclass(frozen=True)
class Object:
    """One generation of an object; ``properties`` are those that the client has set."""

    bucket: str
    name: str
    content: bytes
    generation: int
    properties: Mapping[str, Any]
    created: datetime.datetime
    updated: datetime.datetime
    md5: str
    crc32c: str
    metageneration: int = 1

    @property
    def etag(self) -> str:
        """Return what changes with the object."""
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    def resource(self) -> dict[str, Any]:
        """Return the metadata: cloud.google.com/storage/docs/json_api/v1/objects."""
        return {
            "storageClass": "STANDARD",
            "contentType": "application/octet-stream",
            **self.properties,
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "size": str(len(self.content)),
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": self.etag,
            "timeCreated": self.created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "updated": self.updated.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }


@dataclass
class Session:
    """A resumable upload."""

    bucket: str
    name: str
    properties: dict[str, Any]
    query: Mapping[str, str]
    length: str | None
    received: bytearray = field(default_factory=bytearray)
    finished: Object | None = None


@dataclass(frozen=True)
class Request:
    """A request that was answered; those in a batch count as well."""

    kind: str
    path: str
    code: int


class CloudStorage:
    """Buckets, and servers that answer for them.

    Args:
        token: The access token that every request must carry; None takes requests of anybody.
        bucket_reader: Whether the caller has storage.buckets.get.
        throttles: Whether an object that is written twice in a second is refused the second time.

    Attributes:
        requests: All that were answered so far.
        hurried: By address, how often an object was written within a second of the last time.
    """

    def __init__(self, token: str | None = None, bucket_reader: bool = True, throttles: bool = False) -> None:
        self.buckets: dict[str, dict[str, Object]] = {}
        self.requests: list[Request] = []
        self.hurried: Counter[str] = Counter()
        self._bucket_properties: dict[str, dict[str, Any]] = {}
        self._token, self._bucket_reader, self._throttles = token, bucket_reader, throttles
        self._sessions: dict[str, Session] = {}
        self._generations = itertools.count(time.time_ns() // 1000)
        self._lock = threading.RLock()
        bucket, name = r"/b/(?P<bucket>[^/]+)", r"/o/(?P<name>[^/]+)"  # rule: json
        target = r"/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>[^/]+)"
        self._routes: dict[str, tuple[str, Callable[..., Answer]]] = {
            "POST /batch/storage/v1": (BATCH, self._batch),
            f"(GET|PATCH|DELETE) /storage/v1{bucket}": (BUCKET, self._bucket),
            f"GET /storage/v1{bucket}/storageLayout": (BUCKET, self._layout),
            f"GET /storage/v1{bucket}/iam/testPermissions": (BUCKET, self._permissions),
            f"GET /storage/v1{bucket}/o": (LIST, self._list),
            f"GET (?:/download)?/storage/v1{bucket}{name}": (LOOK_UP, self._get),
            f"PATCH /storage/v1{bucket}{name}": (WRITE, self._patch),
            f"DELETE /storage/v1{bucket}{name}": (DELETE, self._delete),
            f"POST /storage/v1{bucket}{name}/compose": (COPY, self._compose),
            f"POST /storage/v1{bucket}{name}/(?P<how>rewriteTo|copyTo){target}": (COPY, self._copy),
            f"(POST|PUT|DELETE) /upload/storage/v1{bucket}/o": (WRITE, self._upload),
            # XML API: so gcs_file_system.cc reads (LoadBufferFromGCS).
            "GET /(?!storage/|upload/|download/|batch/)(?P<bucket>[^/]+)/(?P<name>.+)": (READ, self._media),
        }

    @contextlib.contextmanager
    def serve(self, port: int = 0, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
        """Serve on localhost until the block ends, over TLS with a certificate and its key; yield the URL."""
        scheme = "https" if certificate else "http"
        server = ThreadingHTTPServer(("localhost", port), _handler(self, scheme))
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            # The handshake belongs to the thread of the connection, not to the one that accepts.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"{scheme}://localhost:{server.server_address[1]}"
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
        """Answer a request, for a path with its query or a whole URL; ``base`` as in ``Call``."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        call = Call(method, parts.path, query, headers, body, base)
        with self._lock:
            kind = BUCKET
            try:
                if self._token and headers.get("Authorization") != f"Bearer {self._token}":
                    raise Refused(401, "Anonymous caller does not have access to the bucket.", "required")
                for route, (kind, handler) in self._routes.items():  # noqa: B007
                    if match := re.fullmatch(route, f"{method} {call.path}"):
                        break
                else:
                    raise Refused(501, f"the fake has no {method} {call.path}", "notImplemented")
                kind = READ if query.get("alt") == "media" else START if _starts(query) else kind
                answer = handler(call, **{key: unquote(value) for key, value in match.groupdict().items()})
            except Refused as error:
                answer = error.answer(call)
            self.requests.append(Request(kind, unquote(call.path), answer.code))
        return answer

    # Buckets.

    def _objects(self, bucket: str) -> dict[str, Object]:
        if bucket not in self.buckets:
            raise Refused(404, "The specified bucket does not exist.", "notFound")
        return self.buckets[bucket]

    def _resource(self, bucket: str) -> dict[str, Any]:
        own = self._bucket_properties[bucket]
        return {"kind": "storage#bucket", "id": bucket, "name": bucket, "projectNumber": "1", **own}

    def _bucket(self, call: Call, bucket: str) -> Answer:
        if not self._bucket_reader:  # rule: roles
            raise Refused(403, "The caller does not have storage.buckets.get access to the bucket.", "forbidden")
        objects = self._objects(bucket)
        if call.method == "DELETE":
            if objects:
                raise Refused(409, "The bucket you tried to delete is not empty.", "conflict")
            del self.buckets[bucket], self._bucket_properties[bucket]
            return Answer(204)
        if call.method == "PATCH":
            self._bucket_properties[bucket] |= json.loads(call.body)
        return Answer.json(self._resource(bucket), call)

    def _layout(self, call: Call, bucket: str) -> Answer:
        """Answer gcs_file_system.cc, IsBucketHnsEnabled: folders of this bucket are prefixes of names."""
        self._objects(bucket)
        return Answer.json({"bucket": bucket, "hierarchicalNamespace": {"enabled": False}}, call)

    def _permissions(self, call: Call, bucket: str) -> Answer:
        self._objects(bucket)
        return Answer.json({"permissions": [call.query["permissions"]]}, call)

    def _list(self, call: Call, bucket: str) -> Answer:
        unknown = call.query.keys() - LIST_PARAMETERS - {"alt", "prettyPrint"}
        if unknown:
            raise Refused(501, f"the fake does not list by {sorted(unknown)}", "notImplemented")
        prefix, delimiter = call.query.get("prefix", ""), call.query.get("delimiter", "")
        after = base64.urlsafe_b64decode(call.query.get("pageToken", ""))
        most = min(int(call.query.get("maxResults", PAGE)), PAGE)  # rule: lists
        entries: dict[str, Object | None] = {}
        for name, item in sorted(self._objects(bucket).items(), key=lambda pair: pair[0].encode()):
            if name.startswith(prefix):
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                entries[name if cut < 0 else name[: cut + len(delimiter)]] = item if cut < 0 else None
        left = [(name, item) for name, item in entries.items() if name.encode() > after]
        items = [item.resource() for _, item in left[:most] if item]
        prefixes = [name for name, item in left[:most] if not item]
        token = base64.urlsafe_b64encode(left[most - 1][0].encode()).decode() if len(left) > most else None
        found = {"items": items, "prefixes": prefixes, "nextPageToken": token}
        return Answer.json({"kind": "storage#objects"} | {key: value for key, value in found.items() if value}, call)

    # Objects.

    def _found(self, bucket: str, name: str, query: Mapping[str, str]) -> Object:
        found = self._objects(bucket).get(name)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise Refused(404, f"No such object: {bucket}/{name}", "notFound")
        _require_conditions(query, found)
        return found

    def _get(self, call: Call, bucket: str, name: str) -> Answer:
        if call.query.get("alt") == "media":
            return self._media(call, bucket, name)
        return Answer.json(self._found(bucket, name, call.query).resource(), call)

    def _patch(self, call: Call, bucket: str, name: str) -> Answer:
        found = self._found(bucket, name, call.query)
        found = replace(
            found,
            properties={**found.properties, **json.loads(call.body)},
            metageneration=found.metageneration + 1,
            updated=_now(),
        )
        self.buckets[bucket][name] = found
        return Answer.json(found.resource(), call)

    def _delete(self, call: Call, bucket: str, name: str) -> Answer:
        self._found(bucket, name, call.query)
        del self.buckets[bucket][name]
        return Answer(204)

    def _media(self, call: Call, bucket: str, name: str) -> Answer:
        found = self._found(bucket, name, call.query)
        size = len(found.content)
        headers = {
            "Content-Type": found.properties.get("contentType", "application/octet-stream"),
            "ETag": found.etag,
            "Last-Modified": format_datetime(found.updated, usegmt=True),
            "X-Goog-Generation": str(found.generation),
            "X-Goog-Metageneration": str(found.metageneration),
            "X-Goog-Stored-Content-Length": str(size),
            "X-Goog-Hash": f"crc32c={found.crc32c},md5={found.md5}",
        }
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", call.headers.get("Range", ""))
        if not span:
            return Answer(200, found.content, headers)
        first = int(span[1]) if span[1] else max(0, size - int(span[2]))
        last = min(int(span[2]), size - 1) if span[1] and span[2] else size - 1
        if first >= size:
            return Answer(416, b"", {"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return Answer(206, found.content[first : last + 1], headers)

    def _insert(
        self, bucket: str, name: str, content: bytes, properties: dict[str, Any], query: Mapping[str, str]
    ) -> Object:
        objects = self._objects(bucket)
        _require_name(name)
        _require_conditions(query, objects.get(name))
        md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
        crc32c = base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()
        for kind, calculated in (("md5Hash", md5), ("crc32c", crc32c)):  # rule: hashes
            if properties.pop(kind, calculated) != calculated:
                raise Refused(400, f"Provided {kind} doesn't match calculated {kind} {calculated!r}.")
        now = _now()
        if name in objects and (now - objects[name].created).total_seconds() < 1:  # rule: rate
            self.hurried[f"gs://{bucket}/{name}"] += 1
            if self._throttles:
                raise Refused(429, f"The object {bucket}/{name} exceeded the rate limit.", "rateLimitExceeded")
        objects[name] = Object(
            bucket, name, content, next(self._generations), properties, now, now, md5=md5, crc32c=crc32c
        )
        return objects[name]

    def _upload(self, call: Call, bucket: str) -> Answer:
        if "upload_id" in call.query:
            return self._upload_to_session(call)
        kind, content = call.query.get("uploadType"), call.body
        properties: dict[str, Any] = {}
        if kind == "media":
            properties["contentType"] = call.headers.get("Content-Type", "application/octet-stream")
        elif kind == "multipart":
            properties, content = related(call)
        elif kind == "resumable":
            properties = {"contentType": call.headers.get("X-Upload-Content-Type", "application/octet-stream")}
            properties |= json.loads(call.body or b"{}")
        else:
            raise Refused(400, f"Invalid upload type: {kind}")
        name = call.query.get("name") or properties.get("name", "")
        properties.pop("name", None)
        if kind != "resumable":
            return Answer.json(self._insert(bucket, name, content, properties, call.query).resource(), call)
        self._objects(bucket)
        _require_name(name)
        number = hashlib.sha256(f"{len(self._sessions)}{name}".encode()).hexdigest()[:32]
        length = call.headers.get("X-Upload-Content-Length")
        self._sessions[number] = Session(bucket, name, properties, call.query, length)
        location = f"{call.base}/upload/storage/v1/b/{quote(bucket)}/o?uploadType=resumable&upload_id={number}"
        return Answer(200, b"", {"Location": location, "X-GUploader-UploadID": number})

    def _upload_to_session(self, call: Call) -> Answer:
        session = self._sessions.get(call.query["upload_id"])
        if session is None:
            raise Refused(404, "No such upload session.", "notFound")
        if call.method == "DELETE":
            del self._sessions[call.query["upload_id"]]
            return Answer(499)
        if session.finished is None:
            total = _receive(session, call.headers.get("Content-Range"), call.body)
            if total is None or len(session.received) < total:
                so_far = {"Range": f"bytes=0-{len(session.received) - 1}"} if session.received else {}
                return Answer(308, b"", so_far)
            if session.length not in (None, str(total)):
                raise Refused(400, f"X-Upload-Content-Length was {session.length}, and {total} bytes came.")
            content = bytes(session.received)
            session.finished = self._insert(session.bucket, session.name, content, session.properties, session.query)
            session.received.clear()
        return Answer.json(session.finished.resource(), call)

    def _compose(self, call: Call, bucket: str, name: str) -> Answer:
        # The service takes single quotes, which gcs_file_system.cc sends (AppendObject).
        request = json.loads(call.body.replace(b"'", b'"'))
        if not 1 <= len(request["sourceObjects"]) <= 32:  # rule: compose
            raise Refused(400, "The number of source components must be between 1 and 32.")
        content = b""
        for source in request["sourceObjects"]:
            conditions = {key: str(value) for key, value in source.get("objectPrecondition", {}).items()}
            content += self._found(bucket, source["name"], conditions).content
        new = self._insert(bucket, name, content, request.get("destination", {}), call.query)
        return Answer.json(new.resource(), call)

    def _copy(self, call: Call, bucket: str, name: str, how: str, to_bucket: str, to_name: str) -> Answer:
        names = {"sourceGeneration": "generation", "ifSourceGenerationMatch": "ifGenerationMatch"}
        of_source = {names[key]: value for key, value in call.query.items() if key in names}
        found = self._found(bucket, name, of_source)
        properties = json.loads(call.body or b"{}") or dict(found.properties)
        new = self._insert(to_bucket, to_name, found.content, properties, call.query)
        size = str(len(new.content))
        rewritten = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        return Answer.json({**rewritten, "resource": new.resource()} if how == "rewriteTo" else new.resource(), call)

    def _batch(self, call: Call) -> Answer:
        return batch([self.answer(*inner, call.base) for inner in calls(call)])


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


def _starts(query: Mapping[str, str]) -> bool:
    return query.get("uploadType") == "resumable" and "upload_id" not in query


def _receive(session: Session, span: str | None, body: bytes) -> int | None:
    """Add a chunk to a session; return the bytes of the whole object, None if unknown yet. Rule: resumable."""
    if span is None:
        session.received[:] = body
        return len(body)
    match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", span)
    if not match:
        raise Refused(400, f"Invalid Content-Range: {span}")
    total = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return total
    first, last = int(match[1]), int(match[2])
    if first > len(session.received):
        raise Refused(400, f"The upload offset is {first}, and {len(session.received)} bytes are here.", "badRequest")
    if len(body) != last - first + 1:
        raise Refused(400, f"{len(body)} bytes came, and Content-Range says {span}.", "badRequest")
    if (total is None or last + 1 < total) and len(body) % CHUNK:
        raise Refused(400, f"{len(body)} bytes are no multiple of {CHUNK}, and not the last.", "badRequest")
    session.received[first:] = body
    return total


def _require_name(name: str) -> None:
    """Refuse what is no name of an object. Rule: names."""
    if not name or len(name.encode()) > 1024 or name in (".", "..") or name.startswith(".well-known/acme-challenge/"):
        raise Refused(400, f"Invalid object name: {name!r}")
    if "\r" in name or "\n" in name:
        raise Refused(400, f"Disallowed unicode characters present in object name {name!r}")


def _require_conditions(query: Mapping[str, str], found: Object | None) -> None:
    """Refuse a request whose preconditions do not hold; no object is generation 0. Rule: if."""
    generation, metageneration = (found.generation, found.metageneration) if found else (0, 0)
    for kind, actual in (("Generation", str(generation)), ("Metageneration", str(metageneration))):
        if query.get(f"if{kind}Match", actual) != actual or query.get(f"if{kind}NotMatch") == actual:
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
