"""The digests of the base images: looked up once, kept in a lock, passed to every build."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from google.api_core import exceptions

from tools import base_images, build_image

INDEX = "application/vnd.oci.image.index.v1+json"


def as_json(content: dict) -> bytes:
    return json.dumps(content).encode()


CONFIG = as_json({"architecture": "amd64"})
MANIFEST = as_json({"config": {"digest": "sha256:config"}})
# One for each platform, as Docker Hub has it for its own images.
PLATFORMS = as_json({"manifests": [{"platform": {"architecture": "amd64"}, "digest": "sha256:amd64"}]})
DIGEST = hashlib.sha256(PLATFORMS).hexdigest()
NAME = "python:3.11-slim-trixie"


class Registry(BaseHTTPRequestHandler):
    """Docker's HTTP API V2 for one image.

    A client that does not accept an index gets the manifest of one platform under a tag, whose digest is another one
    (distribution.github.io/distribution/spec/api, "Pulling an image manifest").
    """

    def do_GET(self) -> None:
        repository = "/v2/library/python"
        platforms = PLATFORMS if INDEX in self.headers.get("Accept", "") else MANIFEST
        content = {
            "/v2/": b"{}",
            f"{repository}/manifests/3.11-slim-trixie": platforms,
            f"{repository}/manifests/sha256:amd64": MANIFEST,
            f"{repository}/blobs/sha256:config": CONFIG,
        }.get(self.path)
        self.send_response(200 if content else 404)
        self.end_headers()
        self.wfile.write(content or b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("localhost", 0), Registry)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def lock(tmp_path, monkeypatch):
    monkeypatch.setattr(base_images, "LOCK", tmp_path / "base-images.lock")
    return tmp_path / "base-images.lock"


def test_the_digest_of_a_tag_goes_into_the_lock_and_the_others_stay(registry, lock):
    lock.write_text("apache/beam_python3.11_sdk:2.77.0@sha256:1234\n")
    assert base_images.look_up([NAME], registry) == [
        "apache/beam_python3.11_sdk:2.77.0@sha256:1234",
        f"{NAME}@sha256:{DIGEST}",
    ]
    assert lock.read_text().splitlines() == list(base_images.read().values())


def test_an_image_that_does_not_exist_leaves_the_lock_as_it_was(registry, lock):
    lock.write_text(f"{NAME}@sha256:1234\n")
    with pytest.raises(exceptions.NotFound):
        base_images.look_up([NAME, "python:2.0"], registry)
    assert lock.read_text() == f"{NAME}@sha256:1234\n"


def test_a_build_takes_the_digests_of_the_lock_without_a_network(lock):
    names = base_images.names()
    lock.write_text("".join(f"{name}@sha256:{number}\n" for number, name in enumerate(names.values())))
    bases = build_image.base_images_by_digest(dry_run=False)
    assert bases == {argument: f"{name}@sha256:{n}" for n, (argument, name) in enumerate(names.items())}
    (root, tasks, *_) = build_image.commands("docker", "r/i:1", "cpu", bases)
    for command in (root, tasks):
        assert f"--build-arg=PYTHON_IMAGE={bases['PYTHON_IMAGE']}" in command
    substitutions = build_image.commands("gcloud", "r/i:1", "cpu", bases)[0][4]
    assert f"_BEAM_IMAGE={bases['BEAM_IMAGE']}" in substitutions


def test_a_dry_run_asks_nobody_and_writes_nothing(lock):
    assert build_image.base_images_by_digest(dry_run=True) == base_images.names()
    assert not lock.exists()
