"""Check the requirements of a run on Vertex AI before it costs money, and list every problem."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import google.auth.transport.requests
import requests
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.data import files
from pipeline.data.location import locate, query_of
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.packaging import fingerprints
from pipeline.settings.config import PipelineConfig
from pipeline.settings.endpoint import PIPELINE_IMAGE
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import FAILURES, LOOPBACK, SECONDS, Cloud, checked, first_line, is_googles, is_private
from pipeline.vertex.endpoints.endpoint import push_of, shares
from pipeline.vertex.pipelines import requirements
from pipeline.vertex.pipelines.requirements import Finding

# Labels of the image, written by the Dockerfile.
FINGERPRINT_LABEL = "pipeline.library-fingerprint"
VERSIONS_LABEL = "pipeline.lock-sha256"
# Regions of the predefined dual-regions; the description of a bucket has the regions of a configurable dual-region:
# cloud.google.com/storage/docs/locations
DUAL_REGIONS = {
    "ASIA1": ("ASIA-NORTHEAST1", "ASIA-NORTHEAST2"),
    "EUR4": ("EUROPE-NORTH1", "EUROPE-WEST4"),
    "EUR5": ("EUROPE-WEST1", "EUROPE-WEST2"),
    "EUR7": ("EUROPE-WEST2", "EUROPE-WEST3"),
    "EUR8": ("EUROPE-WEST3", "EUROPE-WEST6"),
    "NAM4": ("US-CENTRAL1", "US-EAST1"),
}
# Multi-regions by the continent in a region's name, and the regions of the continent that store none of their objects.
MULTI_REGIONS = {
    "ASIA": ("ASIA", {"ASIA-EAST2", "ASIA-SOUTHEAST2"}),
    "EUROPE": ("EU", {"EUROPE-WEST2", "EUROPE-WEST6"}),
    "US": ("US", set()),
}
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
)
ARCHITECTURE = "amd64"  # of Vertex AI's and Dataflow's machines
# Built from this code, the same with root as its user, or the user's custom image for an endpoint.
Kind = Literal["ours", "ours, as root", "another"]
ROOT = ("", "0", "root", "0:0", "root:root")


class Image(NamedTuple):
    """An image in a registry."""

    pinned: str  # its address with the digest in place of the tag, which always means the same image
    labels: Mapping[str, str] | None  # of the image for x86-64, if there is one
    user: str = ""  # that it runs as; empty: root


class Checked(NamedTuple):
    """Findings of all checks, and the settings with image digests, so that the checked images run."""

    findings: list[Finding]
    vertex: Vertex


def check(config: PipelineConfig, vertex: Vertex, connect: Callable[[], Cloud]) -> Checked:
    """Check everything; ``connect`` raises UserError when there are no credentials."""
    try:
        cloud = connect()
    except UserError as error:
        text, _, remedy = str(error).partition(": ")
        return Checked([Finding("wrong", text, remedy, "credentials")], vertex)
    pinned: dict[str, str] = {}
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "permissions": lambda: requirements.check_caller(config, vertex, cloud),
        "APIs": lambda: _apis(config, vertex, cloud),
        "bucket": lambda: _bucket(vertex, cloud),
        "service account": lambda: requirements.check_service_account(config, vertex, cloud),
        "image": lambda: _images(vertex, cloud, pinned),
        "machines": lambda: requirements.check_machines(vertex, cloud),
        "quota": lambda: requirements.check_quota(vertex, cloud),
        "data": lambda: _data(config, cloud),
        "endpoint": lambda: _endpoint(vertex, cloud),
        "webhook": lambda: _webhook(vertex, cloud),
    }
    with ThreadPoolExecutor(len(checks)) as pool:
        results = list(pool.map(lambda item: _findings(*item), checks.items()))
    findings = [Finding("ok", cloud.caller, "", "credentials"), *(finding for result in results for finding in result)]
    return Checked(findings, _with_images(vertex, pinned))


def _images_of(vertex: Vertex) -> dict[str, Kind]:
    images: dict[str, Kind] = {vertex.image: "ours"}
    if vertex.machines.tuning and vertex.machines.search_with == "vizier":
        images[vertex.image_as_root] = "ours, as root"
    if vertex.dataflow:
        images[vertex.dataflow.image] = "ours, as root"
    if vertex.endpoint and vertex.endpoint.image != PIPELINE_IMAGE:
        images.setdefault(vertex.endpoint.image, "another")
    return images


def _with_images(vertex: Vertex, addresses: Mapping[str, str]) -> Vertex:
    """Return the settings with other addresses of the images in ``_images_of``."""

    def other(image: str) -> str:
        return addresses.get(image, image)

    dataflow, endpoint = vertex.dataflow, vertex.endpoint
    return replace(
        vertex,
        image=other(vertex.image),
        root_image=other(vertex.image_as_root),
        dataflow=dataflow and replace(dataflow, image=other(dataflow.image)),
        endpoint=endpoint and replace(endpoint, image=other(endpoint.image)),
    )


def _findings(subject: str, run_check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    findings = []
    try:
        for finding in run_check():
            findings.append(finding)  # those before an error count
    except exceptions.Forbidden as error:
        findings.append(Finding("unsure", f"you may not look: {first_line(error)}"))
    except FAILURES as error:
        findings.append(Finding("unsure", f"no answer: {first_line(error)}"))
    return [finding._replace(subject=subject) for finding in findings]


def _apis(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    needed = list(dict.fromkeys(need.api for need in requirements.needs_of(config, vertex) if need.api))
    parent = f"projects/{vertex.project}"
    names = "&".join(f"names={parent}/services/{name}.googleapis.com" for name in needed)
    services = cloud.request("serviceusage", f"v1/{parent}/services:batchGet?{names}").get("services", [])
    off = [service["name"].rpartition("/")[2] for service in services if service.get("state") != "ENABLED"]
    if off:
        remedy = f"gcloud services enable {' '.join(off)} --project={vertex.project}"
        yield Finding("wrong", f"not enabled: {', '.join(off)}", remedy)
    else:
        yield Finding("ok", ", ".join(needed))


def _bucket(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    try:
        bucket = cloud.storage().get_bucket(vertex.bucket, timeout=30)
    except exceptions.NotFound:
        remedy = f"gcloud storage buckets create gs://{vertex.bucket} --location={vertex.region}"
        yield Finding("wrong", f"gs://{vertex.bucket} does not exist", remedy)
        return
    location, region = (bucket.location or "").upper(), vertex.region.upper()
    shown = location.lower()
    regions = bucket.data_locations or DUAL_REGIONS.get(location)
    multi_region, outside = MULTI_REGIONS.get(region.partition("-")[0], ("", set()))
    if regions:
        shown = f"{shown}, {' and '.join(regions).lower()}"
        # A zonal bucket has its zone there.
        is_near = any(place == region or place.startswith(f"{region}-") for place in regions)
    elif bucket.location_type == "dual-region":
        yield Finding("unsure", f"gs://{vertex.bucket} is in the dual-region {shown}, whose regions are not known here")
        return
    else:
        is_near = location == region or (location == multi_region and region not in outside)
    if is_near:
        yield Finding("ok", f"gs://{vertex.bucket} in {shown}")
    else:
        other = f"--region {location.lower()}" if bucket.location_type == "region" else "a region there"
        yield Finding(
            "wrong",
            f"gs://{vertex.bucket} is in {shown}, the jobs are to run in {vertex.region}",
            f"take {other}, or a bucket in {vertex.region}: "
            f"gcloud storage buckets create gs://NAME --location={vertex.region}",
        )


def _images(vertex: Vertex, cloud: Cloud, pinned: dict[str, str]) -> Iterator[Finding]:
    """Check the images, and note their addresses by digest in ``pinned``."""
    for address, kind in _images_of(vertex).items():
        build = f"make image IMAGE={vertex.image}"
        remedy = build if kind == "ours" else f"{build} builds it, too" if kind == "ours, as root" else "push it first"
        try:
            image = read_image(address, cloud)
        except exceptions.NotFound:
            yield Finding("wrong", f"{address} does not exist", remedy)
        except FAILURES as error:
            yield Finding("unsure", f"{address} cannot be looked at, jobs name it by its tag: {first_line(error)}")
        else:
            pinned[address] = image.pinned
            problems = list(_problems_of(image, kind))
            if problems:
                yield Finding("wrong", f"{address} {' and '.join(problems)}", remedy)
            else:
                same = "" if kind == "another" else ", the same packages and library as here"
                yield Finding("ok", f"{address}{same}")


def _problems_of(image: Image, kind: Kind) -> Iterator[str]:
    if image.labels is None:
        yield "is not for x86-64, which Vertex AI runs"
        return
    if kind == "another":
        return
    if image.labels.get(VERSIONS_LABEL) != fingerprints.lock_digest():
        yield "holds other package versions than here"
    if image.labels.get(FINGERPRINT_LABEL) != fingerprints.library_fingerprint():
        yield "holds another state of pipeline/ than here"
    if kind == "ours, as root" and image.user not in ROOT:
        yield f"runs as {image.user}, not as root"


def _data(config: PipelineConfig, cloud: Cloud) -> Iterator[Finding]:
    data = config.data
    if data.query_source:
        body = {"query": query_of(data), "useLegacySql": False, "dryRun": True}
        try:
            response = cloud.request("bigquery", f"bigquery/v2/projects/{cloud.project}/queries", body)
        except (exceptions.BadRequest, exceptions.NotFound) as error:
            remedy = "correct the query or table in the config's data.path"
            yield Finding("wrong", f"BigQuery: {first_line(error)}", remedy)
            return
        yield Finding("ok", f"BigQuery, {int(response.get('totalBytesProcessed', 0)) / 1e6:,.1f} MB to read")
        return
    folder, patterns = locate(data)
    if not is_remote(folder):
        yield Finding("ok", f"{folder} on this machine, uploaded with the job")
        return
    if not folder.startswith("gs://"):
        yield Finding("unsure", f"{folder} is not on Google Cloud")
        return
    bucket, _, prefix = folder.removeprefix("gs://").partition("/")
    prefix = f"{prefix.rstrip('/')}/" if prefix else ""
    try:
        blobs = list(cloud.storage().list_blobs(bucket, prefix=prefix, timeout=30))
    except exceptions.NotFound:
        yield Finding("wrong", f"gs://{bucket} does not exist", "correct data.path in the config, or give --data")
        return
    names = [blob.name.removeprefix(prefix) for blob in blobs]
    missing = [
        f"{folder}/{pattern}"
        for pattern in patterns.values()
        if not any(
            re.fullmatch(files.regular_expression(files.wildcard(one)), name)
            for one in files.with_partitions(pattern)
            for name in names
        )
    ]
    if missing:
        remedy = "correct data.path and data.splits, or give --data"
        yield Finding("wrong", f"nothing matches {', '.join(missing)}", remedy)
    else:
        yield Finding("ok", f"{folder}, {len(names)} objects")


def _endpoint(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    settings = vertex.endpoint
    if settings is None:
        return
    name = settings.resource_name(vertex.project, vertex.region)
    try:
        endpoint = cloud.client(v1.EndpointServiceClient).get_endpoint(name=name, timeout=SECONDS)
    except exceptions.NotFound:
        if settings.is_resource_name:
            remedy = "correct endpoint.name, or give an id such as late-flights there, under which a push makes one"
            yield Finding("wrong", f"{name} does not exist", remedy)
        else:
            yield Finding("ok", f"{name} will be made")
        return
    push = push_of(endpoint)
    if push and push.until > time.time():
        remedy = "wait for it, or end it with python vertex_runner.py rollback"
        yield Finding("unsure", f"{push.holder} is deploying to {name}", remedy)
    else:
        yield Finding("ok", f"{name}, {shares(endpoint)}")


def _webhook(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    for secret in filter(None, (vertex.webhook_url, vertex.webhook_secret)):
        _, project, _, name, *_ = secret.split("/")
        arguments = f"{name} --project={project} --data-file=FILE"
        try:
            state = cloud.request("secretmanager", f"v1/{secret}").get("state")
        except exceptions.NotFound:
            yield Finding("wrong", f"there is no secret {secret}", f"gcloud secrets create {arguments}")
            continue
        if state == "ENABLED":
            yield Finding("ok", secret)
        else:
            yield Finding("wrong", f"{secret} is {str(state).lower()}", f"gcloud secrets versions add {arguments}")


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
