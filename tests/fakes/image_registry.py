"""Artifact Registry and another registry: Docker's HTTP API V2, for whoever looks at an image.

The rules, by their marks in the code:

    challenge  distribution.github.io/distribution/spec/auth/token: 401 with WWW-Authenticate names the realm that gives
               out tokens; Google's takes an access token as the password of oauth2accesstoken
               (cloud.google.com/artifact-registry/docs/docker/authentication#token)
    digest     github.com/opencontainers/distribution-spec, "Pulling manifests": the digest is that of the bytes
    accept     the same: a manifest is of a type that the client accepts
    index      github.com/opencontainers/image-spec, image-index.md: one manifest for each platform, and attestations
               for the platform "unknown"
    config     the same, config.md: architecture and os are required
    redirect   the same, "Pulling blobs": a registry may redirect; Google's does, to signed addresses of Cloud Storage,
               which refuse a second way to authenticate (cloud.google.com/storage/docs/access-control/signed-urls)
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN = "token"  # Google's access token
REGISTRY_TOKEN = "registry-token"
STRANGER = "https://registry.example.com"
# A registry that names Google's realm, to be given what that gives out.
THIEF = "https://thief.example.com"
DOWNLOADS = "https://storage.googleapis.com"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class Answer:
    """A response."""

    code: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, content: Mapping[str, Any], code: int = 200, **headers: str) -> "Answer":
        return cls(code, json.dumps(content).encode(), headers)


class ImageRegistry:
    """The images of ``project().images``, the same ones in every registry; on loopback nobody is asked for a token."""

    def __init__(self, project: Callable[[], Any]):
        self._project = project

    def answer(self, site: str, path: str, query: Mapping[str, list[str]], headers: Mapping[str, str]) -> Answer:
        """Answer a request to a registry, given by scheme and host."""
        authorization = headers.get("Authorization", "")
        if site == DOWNLOADS:
            if authorization:  # rule: redirect
                return Answer(400, b"Only one auth mechanism allowed")
            return self._blob(path.rpartition("/")[2])
        is_google = re.fullmatch(r"https://(gcr\.io|.+\.(gcr\.io|pkg\.dev))", site)
        if path == "/v2/token":
            return self._token(bool(is_google), query, authorization)
        if site.startswith("https://") and authorization != f"Bearer {REGISTRY_TOKEN}":  # rule: challenge
            realm = f"{'https://us-docker.pkg.dev' if site == THIEF else site}/v2/token"
            host = site.removeprefix("https://")
            challenge = f'Bearer realm="{realm}",service="{host}"'
            errors = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
            return Answer.json(errors, 401, **{"WWW-Authenticate": challenge})
        if path == "/v2/":
            return Answer.json({}, **{"Docker-Distribution-Api-Version": "registry/2.0"})
        found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", path)
        assert found, path
        if found[2] == "blobs":
            if is_google:  # rule: redirect
                location = f"{DOWNLOADS}/artifacts-downloads/{found[3]}?X-Goog-Signature=0"
                return Answer(302, b"", {"Location": location})
            return self._blob(found[3])
        return self._manifest(found[1], found[3], headers.get("Accept", ""))

    def _token(self, is_google: bool, query: Mapping[str, list[str]], authorization: str) -> Answer:
        password = base64.b64encode(f"oauth2accesstoken:{TOKEN}".encode()).decode()
        if is_google and authorization != f"Basic {password}":
            denied = {"errors": [{"code": "DENIED", "message": "Unauthenticated request."}]}
            return Answer.json(denied, 403)
        assert re.fullmatch(r"repository:.+:pull", query["scope"][0]), query
        return Answer.json({"token": REGISTRY_TOKEN, "expires_in": 3600})

    def _manifest(self, name: str, reference: str, accept: str) -> Answer:
        manifests = [self._manifests(image) for image in self._project().images if image.rpartition(":")[0] == name]
        if not reference.startswith("sha256:"):
            manifests = (
                [self._manifests(f"{name}:{reference}")] if f"{name}:{reference}" in self._project().images else []
            )
        contents = [content for group in manifests for content in group]
        if reference.startswith("sha256:"):
            contents = [content for content in contents if _digest(content) == reference]
        if not contents:
            return Answer.json({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}, 404)
        kind = json.loads(contents[0])["mediaType"]
        if kind not in accept:  # rule: accept
            return Answer.json({"errors": [{"code": "MANIFEST_UNKNOWN", "message": f"{kind} not accepted"}]}, 404)
        return Answer(200, contents[0], {"Content-Type": kind, "Docker-Content-Digest": _digest(contents[0])})

    def _blob(self, digest: str) -> Answer:
        for image in self._project().images:
            for config in self._configs(image).values():
                if _digest(config) == digest:
                    return Answer(200, config)
        return Answer.json({"errors": [{"code": "BLOB_UNKNOWN", "message": "blob unknown"}]}, 404)

    def _manifests(self, image: str) -> list[bytes]:
        """The manifests under a name and tag: the one that the tag means, and those that it is a list of."""
        singles = {
            platform: _json(
                {
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": {"mediaType": "x", "digest": _digest(config), "size": len(config)},
                    "layers": [],
                }
            )
            for platform, config in self._configs(image).items()
        }
        if image not in self._project().platforms:
            return list(singles.values())
        entries = [
            {"mediaType": MANIFEST, "digest": _digest(content), "platform": {"architecture": platform, "os": "linux"}}
            for platform, content in singles.items()
        ]
        unknown = {"architecture": "unknown", "os": "unknown"}  # rule: index
        entries.append({"mediaType": MANIFEST, "digest": f"sha256:{'0' * 64}", "platform": unknown})
        return [_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}), *singles.values()]

    def _configs(self, image: str) -> dict[str, bytes]:
        """The image's configuration by platform. Rule: config."""
        project = self._project()
        settings = {"Labels": project.images[image], "User": project.users.get(image, "")}
        return {
            platform: _json({"architecture": platform, "os": "linux", "config": settings})
            for platform in project.platforms.get(image, ("amd64",))
        }


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=3).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"  # rule: digest
