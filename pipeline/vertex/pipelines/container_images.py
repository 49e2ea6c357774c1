"""Ask a registry about an image: Docker's HTTP API V2, as the Open Container Initiative's distribution-spec has it.

Google's access token is shown to Google's registries only; others are asked without one.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import google.auth.transport.requests
import requests
from google.api_core import exceptions

from pipeline.vertex.cloud import LOOPBACK, SECONDS, Cloud, checked, is_googles, is_private

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
)
ARCHITECTURE = "amd64"  # of Vertex AI's and Dataflow's machines


@dataclass(frozen=True)
class Image:
    """An image in a registry.

    Attributes:
        pinned: Its address with the digest in place of the tag, which always means the same image.
        labels: Of the image for x86-64; None: there is none for it.
        user: That it runs as; empty: root.
    """

    pinned: str
    labels: Mapping[str, str] | None
    user: str = ""


def read_image(address: str, cloud: Cloud) -> Image:
    """Return what a registry has under an address such as "europe-docker.pkg.dev/project/repository/image:tag".

    Raises:
        GoogleAPICallError: there is none, or the registry refuses.
    """
    host, _, rest = address.partition("/")
    name, _, digest = rest.partition("@")
    tagged, colon, tag = name.rpartition(":")
    if colon:
        name = tagged
    with _Registry(host, name, cloud) as registry:
        response = registry.get(f"manifests/{digest or tag}", MANIFESTS)
        # A digest is the SHA-256 of the manifest's bytes; a registry's own header cannot be more right than that.
        pinned = f"{host}/{name}@sha256:{hashlib.sha256(response.content).hexdigest()}"
        manifest = response.json()
        if "manifests" in manifest:  # one for each platform
            digests = {
                entry.get("platform", {}).get("architecture"): entry["digest"] for entry in manifest["manifests"]
            }
            if ARCHITECTURE not in digests:
                return Image(pinned, None)
            manifest = registry.get(f"manifests/{digests[ARCHITECTURE]}", MANIFESTS).json()
        config = registry.get(f"blobs/{manifest['config']['digest']}").json()
    if config.get("architecture") != ARCHITECTURE:
        return Image(pinned, None)
    settings = config.get("config", {})
    return Image(pinned, settings.get("Labels") or {}, settings.get("User", ""))


class _Registry:
    """One repository of a registry, with the token that it gives out for reading."""

    def __init__(self, host: str, name: str, cloud: Cloud):
        # As docker does it: a registry on this machine is asked without TLS.
        self._host = f"{'http' if urlsplit(f'//{host}').hostname in LOOPBACK else 'https'}://{host}"
        self._name = name
        self._cloud = cloud
        self._session = requests.Session()
        self._token: str | None = None

    def __enter__(self) -> "_Registry":
        try:
            self._token = self._new_token()
        except BaseException:
            self._session.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def get(self, path: str, accept: str = "*/*") -> requests.Response:
        """Return a manifest or a blob; requests drops the token where a blob is elsewhere."""
        headers = {"Accept": accept}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return checked(self._answer(f"{self._host}/v2/{self._name}/{path}", headers=headers))

    def _new_token(self) -> str | None:
        """Return a token for reading the repository; None: the registry wants none.

        distribution.github.io/distribution/spec/auth/token; the user's name is Artifact Registry's for access tokens:
        cloud.google.com/artifact-registry/docs/docker/authentication#token
        """
        response = self._answer(f"{self._host}/v2/")
        challenge = response.headers.get("WWW-Authenticate", "")
        if response.status_code != requests.codes.unauthorized or not challenge.lower().startswith("bearer "):
            return None
        values = dict(re.findall(r'(\w+)="?([^",]*)"?', challenge))
        realm = values.get("realm", "")
        query = {"scope": f"repository:{self._name}:pull"}
        if "service" in values:
            query["service"] = values["service"]
        user = None
        # Of both: a stranger's registry could name Google's realm and take the token that comes back.
        if is_googles(self._host) and is_googles(realm):
            credentials = self._cloud.credentials
            if not credentials.valid:
                credentials.refresh(google.auth.transport.requests.Request())
            user = ("oauth2accesstoken", credentials.token)
        if not is_private(realm):
            raise exceptions.Unauthorized(f"{self._host} wants a token from {realm!r}, which is not over TLS")
        content = checked(self._answer(realm, params=query, auth=user)).json()
        return str(content.get("token") or content["access_token"])

    def _answer(self, url: str, **more: Any) -> requests.Response:
        try:
            return self._session.get(url, timeout=SECONDS, **more)
        except requests.RequestException as error:
            raise exceptions.ServiceUnavailable(str(error)) from error
