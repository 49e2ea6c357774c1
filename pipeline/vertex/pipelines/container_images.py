"""Ask a registry about an image: Docker's HTTP API V2, as the Open Container Initiative's distribution-spec has it.

Google's access token goes to Google's registries only; requests to others have none.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
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


class Image(NamedTuple):
    """An image in a registry."""

    pinned: str  # its address with the digest in place of the tag, which always means the same image
    labels: Mapping[str, str] | None  # of the image for x86-64, if there is one
    user: str = ""  # that it runs as; empty: root


def read_image(address: str, cloud: Cloud) -> Image:
    """Return what a registry has under an address such as "europe-docker.pkg.dev/project/repository/image:tag"."""
    host, _, rest = address.partition("/")
    name, _, digest = rest.partition("@")
    tagged, colon, tag = name.rpartition(":")
    if colon:
        name = tagged
    # As docker does it: without TLS for a registry on this machine.
    root = f"{'http' if urlsplit(f'//{host}').hostname in LOOPBACK else 'https'}://{host}"
    with requests.Session() as session:
        token = _token(session, root, name, cloud)

        def get(path: str, accept: str = "*/*") -> requests.Response:
            """Return a manifest or a blob; requests drops the token where a blob is elsewhere."""
            headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
            return checked(_answer(session, f"{root}/v2/{name}/{path}", headers=headers))

        response = get(f"manifests/{digest or tag}", MANIFESTS)
        # A digest is the SHA-256 of the manifest's bytes; a registry's own header cannot be more right than that.
        pinned = f"{host}/{name}@sha256:{hashlib.sha256(response.content).hexdigest()}"
        manifest = response.json()
        if "manifests" in manifest:  # one for each platform
            digests = {
                entry.get("platform", {}).get("architecture"): entry["digest"] for entry in manifest["manifests"]
            }
            if ARCHITECTURE not in digests:
                return Image(pinned, None)
            manifest = get(f"manifests/{digests[ARCHITECTURE]}", MANIFESTS).json()
        config = get(f"blobs/{manifest['config']['digest']}").json()
    if config.get("architecture") != ARCHITECTURE:
        return Image(pinned, None)
    settings = config.get("config", {})
    return Image(pinned, settings.get("Labels") or {}, settings.get("User", ""))


def _token(session: requests.Session, root: str, name: str, cloud: Cloud) -> str | None:
    """Return a token for reading the repository ``name`` of a registry; None: the registry wants none.

    distribution.github.io/distribution/spec/auth/token; the user's name is Artifact Registry's for access tokens:
    cloud.google.com/artifact-registry/docs/docker/authentication#token
    """
    response = _answer(session, f"{root}/v2/")
    challenge = response.headers.get("WWW-Authenticate", "")
    if response.status_code != requests.codes.unauthorized or not challenge.lower().startswith("bearer "):
        return None
    values = dict(re.findall(r'(\w+)="?([^",]*)"?', challenge))
    realm = values.get("realm", "")
    query = {"scope": f"repository:{name}:pull"}
    if "service" in values:
        query["service"] = values["service"]
    user = None
    # Of both: a stranger's registry could name Google's realm and take the token that comes back.
    if is_googles(root) and is_googles(realm):
        if not cloud.credentials.valid:
            cloud.credentials.refresh(google.auth.transport.requests.Request())
        user = ("oauth2accesstoken", cloud.credentials.token)
    if not is_private(realm):
        raise exceptions.Unauthorized(f"{root} wants a token from {realm!r}, which is not over TLS")
    content = checked(_answer(session, realm, params=query, auth=user)).json()
    return str(content.get("token") or content["access_token"])


def _answer(session: requests.Session, url: str, **more: Any) -> requests.Response:
    try:
        return session.get(url, timeout=SECONDS, **more)
    except requests.RequestException as error:
        raise exceptions.ServiceUnavailable(str(error)) from error
