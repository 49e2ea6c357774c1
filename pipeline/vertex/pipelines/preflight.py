"""Check all that a run on Vertex AI needs, before anything is paid for; list together what is wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.data import files
from pipeline.data.location import locate, query_of
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.packaging import fingerprints
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import FAILURES, SECONDS, Cloud, first_line
from pipeline.vertex.endpoints.endpoint import push_of, shares
from pipeline.vertex.pipelines.capacity import Finding, check_machines, check_quota

# Labels of the image, written by the Dockerfile.
FINGERPRINT_LABEL = "pipeline.library-fingerprint"
VERSIONS_LABEL = "pipeline.lock-sha256"
# Multi-regions and the regions in them: a bucket there is as good as one in the region.
MULTI_REGIONS = {"us": "US", "europe": "EU", "asia": "ASIA"}
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
)
# Roles that allow a purpose, each of which is enough; so are editor and owner.
ROLES = {
    "run jobs": ("roles/aiplatform.user", "roles/aiplatform.admin"),
    "read and write the bucket": ("roles/storage.objectAdmin", "roles/storage.objectUser", "roles/storage.admin"),
}
ROLES_FOR_DATAFLOW = {
    "be a Dataflow worker": ("roles/dataflow.worker",),
    "start Dataflow jobs": ("roles/dataflow.developer", "roles/dataflow.admin"),
}
ROLES_FOR_BIGQUERY = {"run queries": ("roles/bigquery.jobUser", "roles/bigquery.user", "roles/bigquery.admin")}
ROLES_FOR_ENDPOINT = {
    "read the endpoint's errors and latencies": (
        "roles/monitoring.viewer",
        "roles/monitoring.editor",
        "roles/monitoring.admin",
        "roles/viewer",
    ),
}


def check(config: PipelineConfig, vertex: Vertex, connect: Callable[[], Cloud]) -> list[Finding]:
    """Check everything; ``connect`` raises UserError when there are no credentials."""
    try:
        cloud = connect()
    except UserError as error:
        text, _, remedy = str(error).partition(": ")
        return [Finding("wrong", text, remedy, "credentials")]
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "APIs": lambda: _apis(config, vertex, cloud),
        "bucket": lambda: _bucket(vertex, cloud),
        "service account": lambda: _service_account(config, vertex, cloud),
        "image": lambda: _image(vertex, cloud),
        "machines": lambda: check_machines(vertex, cloud),
        "quota": lambda: check_quota(vertex, cloud),
        "data": lambda: _data(config, cloud),
        "endpoint": lambda: _endpoint(vertex, cloud),
        "webhook": lambda: _webhook(vertex, cloud),
    }
    with ThreadPoolExecutor(len(checks)) as pool:
        results = list(pool.map(lambda item: _findings(*item), checks.items()))
    return [Finding("ok", cloud.caller, "", "credentials"), *(finding for findings in results for finding in findings)]


def _findings(subject: str, run_check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Return the findings of a check, and why it could not look further."""
    findings = []
    try:
        for finding in run_check():
            findings.append(finding)  # those before an error count
    except exceptions.Forbidden as error:
        findings.append(Finding("unsure", f"you may not look: {first_line(error)}"))
    except FAILURES as error:
        findings.append(Finding("unsure", f"no answer: {first_line(error)}"))
    return [replace(finding, subject=subject) for finding in findings]


def _apis(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    needed = ["aiplatform", "storage", "compute"]
    if vertex.endpoint:
        needed.append("monitoring")
    if vertex.webhook_secret:
        needed.append("secretmanager")
    if "pkg.dev/" in vertex.image:
        needed.append("artifactregistry")
    if vertex.dataflow:
        needed.append("dataflow")
    if config.data.query_source:
        needed.append("bigquery")
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
    location = (bucket.location or "").upper()
    if location in (vertex.region.upper(), MULTI_REGIONS.get(vertex.region.partition("-")[0])):
        yield Finding("ok", f"gs://{vertex.bucket} in {location.lower()}")
    else:
        yield Finding(
            "wrong",
            f"gs://{vertex.bucket} is in {location.lower()}, the jobs are to run in {vertex.region}",
            f"take --region {location.lower()}, or a bucket in {vertex.region}: "
            f"gcloud storage buckets create gs://NAME --location={vertex.region}",
        )


def _service_account(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    account = vertex.service_account
    if account is None:
        yield Finding("ok", "the project's default; name one with --service-account to allow it less")
        return
    address = f"v1/projects/-/serviceAccounts/{account}"
    try:
        cloud.request("iam", address)
    except exceptions.NotFound:
        name = account.partition("@")[0]
        remedy = f"gcloud iam service-accounts create {name} --project={vertex.project}"
        yield Finding("wrong", f"{account} does not exist", remedy)
        return
    act_as = "iam.serviceAccounts.actAs"
    response = cloud.request("iam", f"{address}:testIamPermissions", {"permissions": [act_as]})
    may_act = act_as in response.get("permissions", [])
    if not may_act:
        yield Finding(
            "wrong",
            f"you may not let jobs act as {account}",
            f"gcloud iam service-accounts add-iam-policy-binding {account} --member=user:YOU "
            "--role=roles/iam.serviceAccountUser",
        )
    policy = cloud.request("cloudresourcemanager", f"v1/projects/{vertex.project}:getIamPolicy", {})
    member = f"serviceAccount:{account}"
    granted = {binding["role"] for binding in policy.get("bindings", []) if member in binding.get("members", [])}
    needed = ROLES | (ROLES_FOR_DATAFLOW if vertex.dataflow else {})
    needed = needed | (ROLES_FOR_BIGQUERY if config.data.query_source else {})
    needed = needed | (ROLES_FOR_ENDPOINT if vertex.endpoint else {})
    missing = {
        purpose: roles[0] for purpose, roles in needed.items() if not granted & {*roles, "roles/editor", "roles/owner"}
    }
    for purpose, role in missing.items():
        # It may be allowed all the same: by the bucket, a group, a folder, or a role of the project's own.
        yield Finding(
            "unsure",
            f"no role in the project lets {account} {purpose}",
            f"gcloud projects add-iam-policy-binding {vertex.project} --member={member} --role={role}",
        )
    if may_act and not missing:
        yield Finding("ok", account)


def _image(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    host, _, rest = vertex.image.partition("/")
    name, reference = rest.split("@", 1) if "@" in rest else rest.rsplit(":", 1)
    # As docker does it: a registry on this machine is asked without TLS.
    address = f"{'http' if host.startswith('localhost') else 'https'}://{host}/v2/{name}"
    build = f"make image IMAGE={vertex.image}"
    try:
        manifest = cloud.request_url(f"{address}/manifests/{reference}", accept=MANIFESTS)
        if "manifests" in manifest:  # one for each platform
            digests = {
                entry.get("platform", {}).get("architecture"): entry["digest"] for entry in manifest["manifests"]
            }
            if "amd64" not in digests:
                yield Finding("wrong", f"{vertex.image} is not for x86-64, which Vertex AI runs", build)
                return
            manifest = cloud.request_url(f"{address}/manifests/{digests['amd64']}", accept=MANIFESTS)
        config = cloud.request_url(f"{address}/blobs/{manifest['config']['digest']}")
    except exceptions.NotFound:
        yield Finding("wrong", f"{vertex.image} does not exist", build)
        return
    labels = config.get("config", {}).get("Labels") or {}
    differences = []
    if labels.get(VERSIONS_LABEL) != fingerprints.lock_digest():
        differences.append("other package versions than requirements.lock")
    if labels.get(FINGERPRINT_LABEL) != fingerprints.library_fingerprint():
        differences.append("another state of pipeline/ than here")
    if differences:
        yield Finding("wrong", f"{vertex.image} holds {' and '.join(differences)}", build)
    else:
        yield Finding("ok", f"{vertex.image}, the same packages and library as here")


def _data(config: PipelineConfig, cloud: Cloud) -> Iterator[Finding]:
    data = config.data
    if data.query_source:
        body = {"query": query_of(data), "useLegacySql": False, "dryRun": True}
        try:
            response = cloud.request("bigquery", f"bigquery/v2/projects/{cloud.project}/queries", body)
        except exceptions.ClientError as error:
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
        f"{folder}/{pattern}" for pattern in patterns.values() if not any(_matches(name, pattern) for name in names)
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
    secret = vertex.webhook_secret
    if secret is None:
        return
    try:
        cloud.request("secretmanager", f"v1/{secret}")
    except exceptions.NotFound:
        _, project, _, name, *_ = secret.split("/")
        remedy = f"gcloud secrets create {name} --project={project} --data-file=FILE"
        yield Finding("wrong", f"there is no secret {secret}", remedy)
        return
    yield Finding("ok", f"{secret}, which the service account of the tasks must be allowed to read")


def _matches(name: str, pattern: str) -> bool:
    return bool(re.fullmatch(files.regular_expression(files.wildcard(pattern)), name))
