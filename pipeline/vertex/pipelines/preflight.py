"""Looks at all that a run on Vertex AI needs, before anything is paid for; what is wrong is listed together."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import aiplatform_v1 as v1

from pipeline.data import files
from pipeline.data.location import locate, query_of
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.packaging import fingerprints
from pipeline.settings.config import PipelineConfig
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import PASSING, SECONDS, Cloud
from pipeline.vertex.endpoints.endpoint import push_of, shares
from pipeline.vertex.pipelines.capacity import Finding, machines, quota

# Labels of the image, written by the Dockerfile.
FINGERPRINT_LABEL = "pipeline.library-fingerprint"
VERSIONS_LABEL = "pipeline.lock-sha256"
# Multi-regions and the regions in them: a bucket there is as good as one in the region.
MULTI_REGIONS = {"us": "US", "europe": "EU", "asia": "ASIA"}
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
)
# One of the roles of each is enough.
ROLES = {
    "run jobs": ("roles/aiplatform.user", "roles/aiplatform.admin", "roles/editor", "roles/owner"),
    "read and write the bucket": (
        "roles/storage.objectAdmin",
        "roles/storage.objectUser",
        "roles/storage.admin",
        "roles/editor",
        "roles/owner",
    ),
}
ROLES_FOR_DATAFLOW = {
    "be a Dataflow worker": ("roles/dataflow.worker", "roles/editor", "roles/owner"),
    "start Dataflow jobs": ("roles/dataflow.developer", "roles/dataflow.admin", "roles/editor", "roles/owner"),
}
ROLES_FOR_BIGQUERY = {
    "run queries": (
        "roles/bigquery.jobUser",
        "roles/bigquery.user",
        "roles/bigquery.admin",
        "roles/editor",
        "roles/owner",
    ),
}

ROLES_FOR_ENDPOINT = {
    "read the endpoint's errors and latencies": (
        "roles/monitoring.viewer",
        "roles/monitoring.editor",
        "roles/monitoring.admin",
        "roles/viewer",
        "roles/editor",
        "roles/owner",
    ),
}


def check(config: PipelineConfig, vertex: Vertex, connect: Callable[[], Cloud]) -> list[Finding]:
    """Looks at everything.

    Args:
        config: WHAT is to run.
        vertex: Where.
        connect: Makes the way to Google Cloud; raises UserError when there are no credentials.
    """
    try:
        cloud = connect()
    except UserError as error:
        text, _, remedy = str(error).partition(": ")
        return [Finding("credentials", "wrong", text, remedy)]
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "APIs": lambda: _apis(config, vertex, cloud),
        "bucket": lambda: _bucket(vertex, cloud),
        "service account": lambda: _service_account(config, vertex, cloud),
        "image": lambda: _image(vertex, cloud),
        "machines": lambda: machines(vertex, cloud),
        "quota": lambda: quota(vertex, cloud),
        "data": lambda: _data(config, cloud),
    }
    if vertex.endpoint:
        checks["endpoint"] = functools.partial(_endpoint, vertex, vertex.endpoint, cloud)
    if vertex.webhook_secret:
        checks["webhook"] = functools.partial(_webhook, vertex.webhook_secret, cloud)
    with ThreadPoolExecutor(len(checks)) as pool:
        several = list(pool.map(lambda item: _looked(*item), checks.items()))
    return [Finding("credentials", "ok", f"{cloud.caller}"), *(finding for some in several for finding in some)]


def _looked(what: str, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What a check finds, and why it could not look further."""
    found = []
    try:
        for finding in look():
            found.append(finding)  # those before an error count
    except exceptions.Forbidden as error:
        found.append(Finding(what, "unsure", f"you may not look: {_text(error)}"))
    except (exceptions.GoogleAPICallError, GoogleAuthError, *PASSING) as error:
        found.append(Finding(what, "unsure", f"no answer: {_text(error)}"))
    return found


def _apis(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    wanted = ["aiplatform", "storage", "compute"]
    if vertex.endpoint:
        wanted.append("monitoring")
    if vertex.webhook_secret:
        wanted.append("secretmanager")
    if "pkg.dev/" in vertex.image:
        wanted.append("artifactregistry")
    if vertex.dataflow:
        wanted.append("dataflow")
    if config.data.query_source:
        wanted.append("bigquery")
    parent = f"projects/{vertex.project}"
    names = "&".join(f"names={parent}/services/{name}.googleapis.com" for name in wanted)
    answer = cloud.ask("serviceusage", f"v1/{parent}/services:batchGet?{names}")
    off = [one["name"].rpartition("/")[2] for one in answer.get("services", []) if one.get("state") != "ENABLED"]
    if off:
        remedy = f"gcloud services enable {' '.join(off)} --project={vertex.project}"
        yield Finding("APIs", "wrong", f"not enabled: {', '.join(off)}", remedy)
    else:
        yield Finding("APIs", "ok", ", ".join(wanted))


def _bucket(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    try:
        bucket = cloud.storage().get_bucket(vertex.bucket, timeout=30)
    except exceptions.NotFound:
        remedy = f"gcloud storage buckets create gs://{vertex.bucket} --location={vertex.region}"
        yield Finding("bucket", "wrong", f"gs://{vertex.bucket} does not exist", remedy)
        return
    location = (bucket.location or "").upper()
    if location in (vertex.region.upper(), MULTI_REGIONS.get(vertex.region.partition("-")[0])):
        yield Finding("bucket", "ok", f"gs://{vertex.bucket} in {location.lower()}")
    else:
        yield Finding(
            "bucket",
            "wrong",
            f"gs://{vertex.bucket} is in {location.lower()}, the jobs are to run in {vertex.region}",
            f"take --region {location.lower()}, or a bucket in {vertex.region}: "
            f"gcloud storage buckets create gs://NAME --location={vertex.region}",
        )


def _service_account(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    account = vertex.service_account
    if account is None:
        yield Finding(
            "service account", "ok", "the project's default; name one with --service-account to allow it less"
        )
        return
    address = f"v1/projects/-/serviceAccounts/{account}"
    try:
        cloud.ask("iam", address)
    except exceptions.NotFound:
        name = account.partition("@")[0]
        remedy = f"gcloud iam service-accounts create {name} --project={vertex.project}"
        yield Finding("service account", "wrong", f"{account} does not exist", remedy)
        return
    act_as = "iam.serviceAccounts.actAs"
    answer = cloud.ask("iam", f"{address}:testIamPermissions", {"permissions": [act_as]})
    member = f"serviceAccount:{account}"
    may_act = act_as in answer.get("permissions", [])
    if not may_act:
        yield Finding(
            "service account",
            "wrong",
            f"you may not let jobs act as {account}",
            f"gcloud iam service-accounts add-iam-policy-binding {account} --member=user:YOU "
            "--role=roles/iam.serviceAccountUser",
        )
    policy = cloud.ask("cloudresourcemanager", f"v1/projects/{vertex.project}:getIamPolicy", {})
    has = {one["role"] for one in policy.get("bindings", []) if member in one.get("members", [])}
    wanted = ROLES | (ROLES_FOR_DATAFLOW if vertex.dataflow else {})
    wanted = wanted | (ROLES_FOR_BIGQUERY if config.data.query_source else {})
    wanted = wanted | (ROLES_FOR_ENDPOINT if vertex.endpoint else {})
    lacks = {purpose: roles[0] for purpose, roles in wanted.items() if not has & set(roles)}
    for purpose, role in lacks.items():
        # It may have it all the same: from the bucket, a group, a folder, or by a role of the project's own.
        yield Finding(
            "service account",
            "unsure",
            f"no role in the project lets {account} {purpose}",
            f"gcloud projects add-iam-policy-binding {vertex.project} --member={member} --role={role}",
        )
    if may_act and not lacks:
        yield Finding("service account", "ok", account)


def _image(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    host, _, rest = vertex.image.partition("/")
    name, reference = rest.split("@", 1) if "@" in rest else rest.rsplit(":", 1)
    # As docker does it: a registry on this machine is asked without TLS.
    address = f"{'http' if host.startswith('localhost') else 'https'}://{host}/v2/{name}"
    build = f"make image IMAGE={vertex.image}"
    try:
        manifest = cloud.ask_url(f"{address}/manifests/{reference}", accept=MANIFESTS)
        if "manifests" in manifest:  # one for each platform
            platforms = {one.get("platform", {}).get("architecture"): one["digest"] for one in manifest["manifests"]}
            if "amd64" not in platforms:
                yield Finding("image", "wrong", f"{vertex.image} is not for x86-64, which Vertex AI runs", build)
                return
            manifest = cloud.ask_url(f"{address}/manifests/{platforms['amd64']}", accept=MANIFESTS)
        config = cloud.ask_url(f"{address}/blobs/{manifest['config']['digest']}")
    except exceptions.NotFound:
        yield Finding("image", "wrong", f"{vertex.image} does not exist", build)
        return
    labels: Mapping[str, str] = config.get("config", {}).get("Labels") or {}
    differ = []
    if labels.get(VERSIONS_LABEL) != fingerprints.lock_digest():
        differ.append("other package versions than requirements.lock")
    if labels.get(FINGERPRINT_LABEL) != fingerprints.library_fingerprint():
        differ.append("another state of pipeline/ than here")
    if differ:
        yield Finding("image", "wrong", f"{vertex.image} holds {' and '.join(differ)}", build)
    else:
        yield Finding("image", "ok", f"{vertex.image}, the same packages and library as here")


def _data(config: PipelineConfig, cloud: Cloud) -> Iterator[Finding]:
    data = config.data
    if data.query_source:
        body = {"query": query_of(data), "useLegacySql": False, "dryRun": True}
        try:
            answer = cloud.ask("bigquery", f"bigquery/v2/projects/{cloud.project}/queries", body)
        except exceptions.ClientError as error:
            yield Finding(
                "data", "wrong", f"BigQuery: {_text(error)}", "correct the query or table in the config's data.path"
            )
            return
        yield Finding("data", "ok", f"BigQuery, {int(answer.get('totalBytesProcessed', 0)) / 1e6:,.1f} MB to read")
        return
    folder, patterns = locate(data)
    if not is_remote(folder):
        yield Finding("data", "ok", f"{folder} on this machine, uploaded with the job")
        return
    if not folder.startswith("gs://"):
        yield Finding("data", "unsure", f"{folder} is not on Google Cloud")
        return
    bucket, _, prefix = folder.removeprefix("gs://").partition("/")
    prefix = f"{prefix.rstrip('/')}/" if prefix else ""
    try:
        names = [
            blob.name.removeprefix(prefix) for blob in cloud.storage().list_blobs(bucket, prefix=prefix, timeout=30)
        ]
    except exceptions.NotFound:
        yield Finding(
            "data", "wrong", f"gs://{bucket} does not exist", "correct data.path in the config, or give --data"
        )
        return
    without = [pattern for pattern in patterns.values() if not any(_matches(name, pattern) for name in names)]
    if without:
        looked = ", ".join(f"{folder}/{pattern}" for pattern in without)
        yield Finding("data", "wrong", f"nothing matches {looked}", "correct data.path and data.splits, or give --data")
    else:
        yield Finding("data", "ok", f"{folder}, {len(names)} objects")


def _endpoint(vertex: Vertex, settings: Endpoint, cloud: Cloud) -> Iterator[Finding]:
    name = settings.resource_name(vertex.project, vertex.region)
    try:
        there = cloud.client(v1.EndpointServiceClient).get_endpoint(name=name, timeout=SECONDS)
    except exceptions.NotFound:
        if settings.is_resource_name:
            remedy = "correct endpoint.name, or give an id such as late-flights there, under which a push makes one"
            yield Finding("endpoint", "wrong", f"{name} does not exist", remedy)
        else:
            yield Finding("endpoint", "ok", f"{name} will be made")
        return
    push = push_of(there)
    if push and push.until > time.time():
        remedy = "wait for it, or end it with python vertex_runner.py --rollback"
        yield Finding("endpoint", "unsure", f"{push.holder} is deploying to {name}", remedy)
    else:
        yield Finding("endpoint", "ok", f"{name}, {shares(there)}")


def _webhook(secret: str, cloud: Cloud) -> Iterator[Finding]:
    try:
        cloud.ask("secretmanager", f"v1/{secret}")
    except exceptions.NotFound:
        _, project, _, name, *_ = secret.split("/")
        remedy = f"gcloud secrets create {name} --project={project} --data-file=FILE"
        yield Finding("webhook", "wrong", f"there is no secret {secret}", remedy)
        return
    yield Finding("webhook", "ok", f"{secret}, which the service account of the tasks must be allowed to read")


def _matches(name: str, pattern: str) -> bool:
    # "*" stands for text within one name, as in pipeline.data.files.
    parts = (
        re.escape(files.wildcard(pattern)).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    )
    return bool(re.fullmatch(parts, name))


def _text(error: Exception) -> str:
    text = str(getattr(error, "message", None) or error)
    return (text.splitlines() or [type(error).__name__])[0][:300]
