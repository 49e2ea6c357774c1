"""What a run needs on Google Cloud: tables, and checks of permissions, roles, machines and quotas.

A policy shows what is granted in one place. A group, a folder, the organization or a custom role may grant the same,
which is not visible from here: a role that is not found is no more than "unsure".
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple
from urllib.parse import quote, urlencode

from google.api_core import exceptions

from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import Cloud, is_googles

SUBMIT = ("aiplatform.pipelineJobs.create", "aiplatform.pipelineJobs.get", "aiplatform.pipelineJobs.list")
# To delete is to write over a file that was cut short.
UPLOAD = ("storage.objects.create", "storage.objects.delete", "storage.objects.get")
# Roles, without "roles/" before them.
BASIC = ("editor", "owner")
WRITE = ("storage.objectUser", "storage.objectAdmin", "storage.admin")
USE_ACCOUNT = ("iam.serviceAccountUser", *BASIC)
MONITORING = ("monitoring.viewer", "monitoring.editor", "monitoring.admin", "viewer", *BASIC)
IMAGES = (*(f"artifactregistry.{role}" for role in ("reader", "writer", "repoAdmin", "admin")), *BASIC)
# An editor may not: cloud.google.com/secret-manager/docs/access-control
SECRETS = ("secretmanager.secretAccessor", "secretmanager.admin", "owner")
# By default the policy of a bucket gives this role to the editors of the project, and its members are those who have a
# basic role of the project: cloud.google.com/storage/docs/access-control/iam-roles#basic-roles-modifiable
OF_EDITORS = "storage.legacyBucketOwner"
MEMBERS = {"editor": "projectEditor", "owner": "projectOwner", "viewer": "projectViewer"}
REPOSITORY, SECRET = "projects/{2}/locations/{3}/repositories/{1}", "projects/{2}/secrets/{1}"
GRANT_IN_REPOSITORY = "artifacts repositories add-iam-policy-binding {1} --location={3} --project={2}"
# Kinds of places with a policy, such as ("bucket", "my-bucket"): name in messages, service, name at the service, and
# gcloud command that grants.
KINDS = {
    "project": ("the project", "cloudresourcemanager", "projects/{1}", "projects add-iam-policy-binding {1}"),
    "bucket": ("gs://{1}", "storage", "", "storage buckets add-iam-policy-binding gs://{1}"),
    "account": ("{1}", "iam", "projects/{2}/serviceAccounts/{1}", "iam service-accounts add-iam-policy-binding {1}"),
    "secret": ("the secret {1}", "secretmanager", SECRET, "secrets add-iam-policy-binding {1} --project={2}"),
    "repository": ("the repository {1}", "artifactregistry", REPOSITORY, GRANT_IN_REPOSITORY),
}
NAME, SERVICE, RESOURCE, GRANT = range(4)
Place = tuple[str, ...]
IMAGE = r"([^/]+)-docker\.pkg\.dev/((?:[^/]+\.[^/]+/)?[^/]+)/([^/]+)/.+"  # region, project with its domain, repository
MORE_QUOTA = "ask for more at https://console.cloud.google.com/iam-admin/quotas, or take fewer machines"
TRAINING, SPOT, SERVING = "custom_model_training", "custom_model_training_preemptible", "custom_model_serving"
# Accelerators and machine types, the end of the names of their metrics, and the beginnings that are known: as Google's
# samples have them (GoogleCloudPlatform/vertex-ai-samples, notebook_util/common_util.py) and
# cloud.google.com/vertex-ai/docs/training/schedule-jobs-dws#quota
METRICS = (
    (r"NVIDIA_(H100|H100_MEGA|H200)_\d+GB", r"nvidia_\1_gpus", (TRAINING, SPOT, SERVING)),
    (r"NVIDIA_(?:TESLA_)?((?!H\d00_)\w+)", r"nvidia_\1_gpus", (TRAINING, SPOT, SERVING)),
    (r"(TPU_V\d)", r"\1", (TRAINING, SPOT, SERVING)),
    (r"ct5lp-hightpu-(?P<count>\d)t", "tpu_v5e", (TRAINING, SPOT)),
    (r"(?:n1|e2)-(?:standard|highmem|highcpu)-(?P<count>\d+)", "cpus", (TRAINING, SPOT)),
    (r"(n2|c2)-(?:standard|highmem|highcpu)-(?P<count>\d+)", r"\1_cpus", (TRAINING,)),
)


class Finding(NamedTuple):
    """The result of one check; "unsure", which cannot be determined or is only a warning, does not stop a run."""

    state: Literal["ok", "wrong", "unsure"]
    text: str
    remedy: str = ""
    subject: str = ""  # what was checked, such as "bucket"


class Need(NamedTuple):
    """A row of the table of what a run needs."""

    purpose: str
    place: Place  # empty: the run does not need it
    roles: tuple[str, ...] = ()  # each is enough for the account of the jobs; the first is the one to grant
    api: str = ""
    permissions: tuple[str, ...] = ()  # that the caller needs


def needs_of(config: PipelineConfig, vertex: Vertex, account: str = "") -> list[Need]:
    """Return the table of what a run needs whose jobs are ``account``."""
    data, dataflow, endpoint, project = config.data, vertex.dataflow, vertex.endpoint, ("project", vertex.project)
    on_dataflow, on_endpoint, by_query = (project if used else () for used in (dataflow, endpoint, data.query_source))
    other = data.path.removeprefix("gs://").partition("/")[0]
    is_other = data.path.startswith("gs://") and not data.query_source and other != vertex.bucket
    # gcr.io is Artifact Registry, too: cloud.google.com/artifact-registry/docs/transition/transition-from-gcr
    is_pulled = any(is_googles(f"https://{user.image}") for user in (vertex, dataflow, endpoint) if user)
    image = re.fullmatch(IMAGE, dataflow.image if dataflow else "")
    repository = ("repository", image[3], image[2].replace("/", ":"), image[1]) if image else ()
    secrets = [(version or "").split("/") for version in (vertex.webhook_url, vertex.webhook_secret)]
    address, secret = (("secret", parts[3], parts[1]) if len(parts) > 1 else () for parts in secrets)
    rows = [
        Need("run jobs", project, ("aiplatform.user", "aiplatform.admin", *BASIC), "aiplatform", SUBMIT),
        Need("read and write the bucket", ("bucket", vertex.bucket), WRITE, "storage", UPLOAD),
        Need("find machines", project, (), "compute"),
        Need("pull images", project if is_pulled else (), (), "artifactregistry"),
        # cloud.google.com/dataflow/docs/concepts/security-and-permissions
        Need("be a Dataflow worker", on_dataflow, ("dataflow.worker", *BASIC), "dataflow"),
        Need("start Dataflow jobs", on_dataflow, ("dataflow.developer", "dataflow.admin", *BASIC)),
        # A worker pulls its image itself: cloud.google.com/dataflow/docs/guides/using-custom-containers
        Need("pull the image as a Dataflow worker", repository, IMAGES),
        # Beam keeps the answer of a query in a new dataset, so that to run jobs is not enough:
        # apache_beam.io.gcp.bigquery_tools, BigQueryWrapper.create_temporary_dataset
        Need("run queries", by_query, ("bigquery.user", "bigquery.admin", *BASIC), "bigquery"),
        Need(f"read gs://{other}", ("bucket", other) if is_other else (), ("storage.objectViewer", *WRITE)),
        Need("read the endpoint's errors and latencies", on_endpoint, MONITORING, "monitoring"),
        Need("read the webhook's address", address, SECRETS, "secretmanager"),
        Need("read the webhook's secret", secret, SECRETS, "secretmanager"),
    ]
    # Whoever starts something must be allowed to act as its account, also as itself: CustomJobSpec.service_account and
    # DeployedModel.service_account in aiplatform_v1, and of a Dataflow job its worker's account. A CustomJob that names
    # none is Vertex AI's own service agent.
    has_jobs = vertex.machines.training or vertex.machines.tuning
    started = {user.service_account for user in (vertex if has_jobs else None, endpoint) if user}
    started |= {dataflow.service_account or account} if dataflow else set()
    for email in sorted(filter(None, started)):
        purpose = f"act as {'itself' if email == account else email}, as the tasks do that start jobs"
        rows.append(Need(purpose, _account(email, vertex), USE_ACCOUNT))
    return [row for row in rows if row.place]


def machines_of(vertex: Vertex) -> Iterator[tuple[str, str, int, str | None, int]]:
    """Yield use, machine type, number of machines, and accelerator and number in each; use is "" without a quota."""
    for task in vertex.machines.tasks.values():
        yield TRAINING, "", 1, task.accelerator, task.accelerators
    for job in filter(None, (vertex.machines.training, vertex.machines.tuning)):
        yield SPOT if job.spot else TRAINING, job.machine_type, job.replicas, job.accelerator, job.accelerators
        if job.reduction_servers:
            yield "", job.reduction_machine_type, job.reduction_servers, None, 0
    if vertex.dataflow:
        yield "", vertex.dataflow.machine_type, 1, None, 0
    if one := vertex.endpoint:
        yield SERVING, one.machine_type, one.min_replicas, one.accelerator, one.accelerators


def check_caller(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check that whoever calls may upload and submit; Google answers that for certain."""
    is_allowed = True
    for need in (need for need in needs_of(config, vertex) if need.permissions):
        try:
            lacking = sorted(set(need.permissions) - _allowed(need.permissions, need.place, cloud))
        except exceptions.NotFound:  # as the check of the bucket says
            return
        if lacking:
            is_allowed = False
            where = vertex.project if need.place[0] == "project" else _text(need.place, NAME)
            yield Finding("wrong", f"you lack {', '.join(lacking)} in {where}", _grant(need, cloud.caller))
    if is_allowed:
        yield Finding("ok", f"submit jobs in {vertex.project}, write to gs://{vertex.bucket}")


def check_service_account(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check that the account of the jobs exists, that the caller may let them act as it, and that it has its roles."""
    problems = _problems(config, vertex, cloud)
    yield next(problems, Finding("ok", str(vertex.service_account)))
    yield from problems


def _problems(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    account = vertex.service_account or ""
    new = vertex.service_account or f"tfx-pipeline@{vertex.project}.iam.gserviceaccount.com"
    create = f"gcloud iam service-accounts create {new.partition('@')[0]} --project={vertex.project}"
    if not account:  # PipelineJob.service_account in aiplatform_v1
        number = cloud.request("cloudresourcemanager", f"v1/projects/{vertex.project}")["projectNumber"]
        account = f"{number}-compute@developer.gserviceaccount.com"
        remedy = f"{create}, then --service-account={new}: it gets the roles of this pipeline only"
        yield Finding("unsure", f"{account}, the project's default, is shared by all that runs in it", remedy)
    itself = Need("", _account(account, vertex), USE_ACCOUNT)
    try:
        description = cloud.request("iam", f"v1/{_text(itself.place, RESOURCE)}")
    except exceptions.NotFound:
        yield Finding("wrong", f"{account} does not exist", create)
        return
    if description.get("disabled"):
        yield Finding("wrong", f"{account} is disabled", f"gcloud iam service-accounts enable {account}")
    if not _allowed(("iam.serviceAccounts.actAs",), itself.place, cloud):
        yield Finding("wrong", f"you may not let jobs act as {account}", _grant(itself, cloud.caller))
    members = {f"serviceAccount:{account}", "allUsers", "allAuthenticatedUsers"}
    in_project = _granted(("project", vertex.project), members, cloud)
    members |= {f"{kind}:{vertex.project}" for role, kind in MEMBERS.items() if role in in_project[0]}
    for need in needs_of(config, vertex, account):
        here, looked_at, roles = None, "the project", set(need.roles)
        if roles and need.place[0] != "project":
            with contextlib.suppress(exceptions.Forbidden, exceptions.NotFound):
                here = _granted(need.place, members, cloud)
                looked_at += f" or {_text(need.place, NAME)}"
        if need.place[0] == "bucket":
            roles |= {OF_EDITORS} if here else set(BASIC)
        always, sometimes = (held | more for held, more in zip(in_project, here or (set(), set()), strict=True))
        if roles and not roles & always:
            which = "only a role with a condition" if roles & sometimes else "no role"
            text = f"{which} in {looked_at} lets {account} {need.purpose}"
            yield Finding("unsure", text, _grant(need, account))


def check_machines(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check that the region has the machines and accelerators; their combinations were checked with the table."""
    # cloud-tpu and the names of TPUs are Vertex AI's own; Compute Engine does not know them.
    types = {machine_type for _, machine_type, *_ in machines_of(vertex)} - {"", "cloud-tpu"}
    gpus = {gpu for *_, gpu, _ in machines_of(vertex) if gpu and not gpu.startswith("TPU")}
    names = [(name, "machineTypes") for name in sorted(types)]
    names += [(name.lower().replace("_", "-"), "acceleratorTypes") for name in sorted(gpus)]
    missing = []
    for name, kind in names:
        path = f"compute/v1/projects/{vertex.project}/aggregated/{kind}?{urlencode({'filter': f'name={name}'})}"
        items = [item for page in cloud.pages("compute", path) for item in page["items"].items()]
        zones = {zone.rpartition("/")[2] for zone, content in items if content.get(kind)}
        if not any(zone.startswith(f"{vertex.region}-") for zone in zones):
            regions = sorted({zone.rpartition("-")[0] for zone in zones})
            missing.append(f"{name} (in {', '.join(regions[:4]) or 'no region'})")
    if missing:
        remedy = "take another machine in the table of machines, or another --region"
        yield Finding("wrong", f"{vertex.region} does not have {'; '.join(missing)}", remedy)
    elif names:
        yield Finding("ok", ", ".join(sorted(name for name, _ in names)))


def check_quota(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check the limits of CPUs and accelerators in training jobs, and of accelerators on the endpoint.

    A limit is no promise: what else runs in the project counts, too, and the region may have no machine left.
    """
    needed: dict[str, int] = {}  # by metric, at a time: by one task or job after the other
    for metric, count in _metrics(vertex):
        needed[metric] = max(needed.get(metric, 0), count)
    for metric, count in needed.items():
        use, wanted = f"the job takes {count}", count
        if metric.startswith(SERVING):
            use, wanted = f"a version takes {count}, and the canary has two versions side by side", 2 * count
        # Without view=FULL a region is only there where its limit was changed.
        name = f"consumerQuotaMetrics/{quote(f'aiplatform.googleapis.com/{metric}', safe='')}?view=FULL"
        path = f"v1beta1/projects/{vertex.project}/services/aiplatform.googleapis.com/{name}"
        try:
            response = cloud.request("serviceusage", path)
        except exceptions.NotFound:
            yield Finding("unsure", f"no limit named {metric}")
            continue
        buckets = [one for limits in response.get("consumerQuotaLimits", []) for one in limits.get("quotaBuckets", [])]
        by_region = {one.get("dimensions", {}).get("region"): int(one.get("effectiveLimit", 0)) for one in buckets}
        limit = by_region.get(vertex.region, by_region.get(None))  # -1: there is no limit
        if limit is None:
            yield Finding("unsure", f"{metric} has no limit for {vertex.region}")
        elif 0 <= limit < wanted:
            text = f"{metric} is {limit} in {vertex.region}, {use}"
            yield Finding("wrong" if limit < count else "unsure", text, MORE_QUOTA)
        else:
            yield Finding("ok", f"{metric}: {wanted} of {limit if limit >= 0 else 'no limit'}")


def _metrics(vertex: Vertex) -> Iterator[tuple[str, int]]:
    for use, machine_type, replicas, accelerator, accelerators in machines_of(vertex):
        for name in (machine_type, accelerator or ""):
            for pattern, end, uses in METRICS:
                if use in uses and (found := re.fullmatch(pattern, name)):
                    each = int(found.groupdict().get("count", accelerators))
                    yield f"{use}_{found.expand(end).lower()}", replicas * each


def _allowed(permissions: Iterable[str], place: Place, cloud: Cloud) -> set[str]:
    if place[0] == "bucket":
        return set(cloud.storage().bucket(place[1]).test_iam_permissions(list(permissions), timeout=30))
    path = f"v1/{_text(place, RESOURCE)}:testIamPermissions"
    return set(cloud.request(_text(place, SERVICE), path, {"permissions": permissions}).get("permissions", []))


def _granted(place: Place, members: set[str], cloud: Cloud) -> tuple[set[str], set[str]]:
    """Return the roles that the policy of a place gives to members, and those that it gives under a condition."""
    # Version 3 is the one that has conditions; older ones write them into the names of roles.
    if place[0] == "bucket":
        bindings = cloud.storage().bucket(place[1]).get_iam_policy(requested_policy_version=3, timeout=30).bindings
    else:
        query = "" if place[0] == "project" else "?options.requestedPolicyVersion=3"
        body = {"project": {"options": {"requestedPolicyVersion": 3}}, "account": {}}.get(place[0])
        path = f"v1/{_text(place, RESOURCE)}:getIamPolicy{query}"
        bindings = cloud.request(_text(place, SERVICE), path, body).get("bindings", [])
    ours = [binding for binding in bindings if members & set(binding.get("members", []))]
    always = {binding["role"].removeprefix("roles/") for binding in ours if not binding.get("condition")}
    return always, {binding["role"].removeprefix("roles/") for binding in ours if binding.get("condition")}


def _text(place: Place, which: int) -> str:
    return KINDS[place[0]][which].format(*place)


def _grant(need: Need, email: str) -> str:
    member = f"serviceAccount:{email}" if "@" in email else "user:YOU"
    return f"gcloud {_text(need.place, GRANT)} --member={member} --role=roles/{need.roles[0]}"


def _account(email: str, vertex: Vertex) -> Place:
    # With its project, not with "-", which answers "forbidden" if the account does not exist:
    # google.iam.admin.v1.GetServiceAccountRequest.name
    found = re.fullmatch(r"(?:([^-@]+)[^@]*@developer|([^@]+)@appspot|[^@]+@(.+)\.iam)\.gserviceaccount\.com", email)
    project = next(filter(None, found.groups())) if found else vertex.project
    if found and "." in project:  # of a domain: name.example.com is example.com:name
        project = ":".join(reversed(project.split(".", 1)))
    return "account", email, project
