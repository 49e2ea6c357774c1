"""Check what the caller may do, and what the service account of the jobs may, as far as policies tell it.

A policy tells what is granted in one place. A group, a folder, the organization or a role of the project's own may
grant the same, which cannot be seen from here: a role that is not found is no more than "unsure".
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions

from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines.finding import Finding

ACT_AS = "iam.serviceAccounts.actAs"
SUBMIT = ("aiplatform.pipelineJobs.create", "aiplatform.pipelineJobs.get", "aiplatform.pipelineJobs.list")
# To delete is to write over a file that was cut short.
UPLOAD = ("storage.objects.create", "storage.objects.delete", "storage.objects.get")
BASIC = ("roles/editor", "roles/owner")
WRITE_OBJECTS = ("roles/storage.objectUser", "roles/storage.objectAdmin", "roles/storage.admin")
# An editor of the project may use a bucket by the bucket's own policy, which by default has this role for editors:
# cloud.google.com/storage/docs/access-control/iam-roles#basic-roles-modifiable
OF_EDITORS = "roles/storage.legacyBucketOwner"
READ_IMAGES = (
    "roles/artifactregistry.reader",
    "roles/artifactregistry.writer",
    "roles/artifactregistry.repoAdmin",
    "roles/artifactregistry.admin",
)
EVERYBODY = frozenset({"allUsers", "allAuthenticatedUsers"})


@dataclass(frozen=True)
class Place:
    """Something with a policy.

    Attributes:
        name: Such as "gs://my-bucket".
        grant: Command of gcloud that adds to its policy.
        policy: Returns it.
    """

    name: str
    grant: str
    policy: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Need:
    """Permissions that an account needs.

    Attributes:
        purpose: Such as "run jobs".
        roles: Each of them is enough; the first is the one to give.
        place: Where it may be granted, beside the project; None: nowhere else.
    """

    purpose: str
    roles: tuple[str, ...]
    place: Place | None = None


def check_caller(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check that whoever calls may upload and submit; Google answers that for certain."""
    path = f"v1/projects/{vertex.project}:testIamPermissions"
    granted = cloud.request("cloudresourcemanager", path, {"permissions": SUBMIT}).get("permissions", [])
    missing = sorted(set(SUBMIT) - set(granted))
    if missing:
        remedy = (
            f"gcloud projects add-iam-policy-binding {vertex.project} --member={_caller(cloud)} "
            "--role=roles/aiplatform.user"
        )
        yield Finding("wrong", f"you lack {', '.join(missing)} in {vertex.project}", remedy)
    try:
        bucket = cloud.storage().bucket(vertex.bucket)
        not_allowed = sorted(set(UPLOAD) - set(bucket.test_iam_permissions(list(UPLOAD), timeout=30)))
    except exceptions.NotFound:  # as the check of the bucket says
        return
    if not_allowed:
        remedy = f"{_bucket(vertex.bucket, cloud).grant} --member={_caller(cloud)} --role={WRITE_OBJECTS[0]}"
        yield Finding("wrong", f"you lack {', '.join(not_allowed)} in gs://{vertex.bucket}", remedy)
    if not missing and not not_allowed:
        yield Finding("ok", f"submit jobs in {vertex.project}, write to gs://{vertex.bucket}")


def check_service_account(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check that the account of the jobs exists, that the caller may let them act as it, and that it has its roles."""
    is_in_order = True
    for finding in _problems(config, vertex, cloud):
        is_in_order = False
        yield finding
    if is_in_order:
        yield Finding("ok", str(vertex.service_account))


def _problems(config: PipelineConfig, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    account = vertex.service_account or default_account(vertex, cloud)
    new = vertex.service_account or f"tfx-pipeline@{vertex.project}.iam.gserviceaccount.com"
    create = f"gcloud iam service-accounts create {new.partition('@')[0]} --project={vertex.project}"
    if vertex.service_account is None:
        text = f"{account}, the project's default, is shared by all that runs in it"
        yield Finding(
            "unsure", text, f"{create}, then --service-account={new}: it gets the roles of this pipeline only"
        )
    name = _account_name(account, vertex.project)
    try:
        description = cloud.request("iam", f"v1/{name}")
    except exceptions.NotFound:
        yield Finding("wrong", f"{account} does not exist", create)
        return
    if description.get("disabled"):
        yield Finding("wrong", f"{account} is disabled", f"gcloud iam service-accounts enable {account}")
    response = cloud.request("iam", f"v1/{name}:testIamPermissions", {"permissions": [ACT_AS]})
    if ACT_AS not in response.get("permissions", []):
        grant = _account(account, vertex, cloud).grant
        remedy = f"{grant} --member={_caller(cloud)} --role=roles/iam.serviceAccountUser"
        yield Finding("wrong", f"you may not let jobs act as {account}", remedy)
    yield from _missing_roles(account, needs_of(config, vertex, cloud, account), vertex, cloud)


def needs_of(config: PipelineConfig, vertex: Vertex, cloud: Cloud, account: str) -> Iterator[Need]:
    """Yield what the account of the jobs must be allowed."""
    yield Need("run jobs", ("roles/aiplatform.user", "roles/aiplatform.admin", *BASIC))
    yield Need("read and write the bucket", WRITE_OBJECTS, _bucket(vertex.bucket, cloud))
    if config.data.query_source:
        # Beam keeps the answer of a query in a dataset of its own, so that to run jobs is not enough:
        # apache_beam.io.gcp.bigquery_tools, BigQueryWrapper.create_temporary_dataset
        yield Need("run queries", ("roles/bigquery.user", "roles/bigquery.admin", *BASIC))
    else:
        other = config.data.path.removeprefix("gs://").partition("/")[0]
        if config.data.path.startswith("gs://") and other != vertex.bucket:
            yield Need(f"read gs://{other}", ("roles/storage.objectViewer", *WRITE_OBJECTS), _bucket(other, cloud))
    if vertex.dataflow:
        # cloud.google.com/dataflow/docs/concepts/security-and-permissions
        yield Need("be a Dataflow worker", ("roles/dataflow.worker", *BASIC))
        yield Need("start Dataflow jobs", ("roles/dataflow.developer", "roles/dataflow.admin", *BASIC))
        repository = _repository(vertex.dataflow.image, cloud)
        if repository:
            # A worker pulls its image itself: cloud.google.com/dataflow/docs/guides/using-custom-containers
            yield Need("pull the image as a Dataflow worker", (*READ_IMAGES, *BASIC), repository)
    if vertex.endpoint:
        monitoring = ("roles/monitoring.viewer", "roles/monitoring.editor", "roles/monitoring.admin", "roles/viewer")
        yield Need("read the endpoint's errors and latencies", (*monitoring, *BASIC))
    for what, version in (("address", vertex.webhook_url), ("secret", vertex.webhook_secret)):
        if not version:
            continue
        # An editor may not: cloud.google.com/secret-manager/docs/access-control
        readers = ("roles/secretmanager.secretAccessor", "roles/secretmanager.admin", "roles/owner")
        yield Need(f"read the webhook's {what}", readers, _secret(version, cloud))
    for other in sorted(_acted_as(vertex, account)):
        purpose = f"act as {'itself' if other == account else other}, as the tasks do that start jobs"
        yield Need(purpose, ("roles/iam.serviceAccountUser", *BASIC), _account(other, vertex, cloud))


def default_account(vertex: Vertex, cloud: Cloud) -> str:
    """Return the service account of a PipelineJob that names none: PipelineJob.service_account in aiplatform_v1."""
    number = cloud.request("cloudresourcemanager", f"v1/projects/{vertex.project}")["projectNumber"]
    return f"{number}-compute@developer.gserviceaccount.com"


def _acted_as(vertex: Vertex, account: str) -> set[str]:
    """Return the accounts that the tasks, which are ``account``, start something as.

    Whoever starts it must be allowed to act as them, also as themselves: CustomJobSpec.service_account and
    DeployedModel.service_account in aiplatform_v1, and of a Dataflow job its worker's account. A CustomJob that names
    none is Vertex AI's own service agent.
    """
    accounts = set()
    if vertex.service_account and (vertex.machines.training or vertex.machines.tuning):
        accounts.add(vertex.service_account)
    if vertex.dataflow:
        accounts.add(vertex.dataflow.service_account or account)
    if vertex.endpoint and vertex.endpoint.service_account:
        accounts.add(vertex.endpoint.service_account)
    return accounts


def _missing_roles(account: str, needs: Iterator[Need], vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    members = {f"serviceAccount:{account}", *EVERYBODY}
    # Version 3 is the one that has conditions; older ones write them into the names of roles.
    path = f"v1/projects/{vertex.project}:getIamPolicy"
    policy = cloud.request("cloudresourcemanager", path, {"options": {"requestedPolicyVersion": 3}})
    in_project, with_condition = _granted(policy, members)
    # In the policies of buckets, those who have a basic role of the project are members by that.
    kinds = {"roles/editor": "projectEditor", "roles/owner": "projectOwner", "roles/viewer": "projectViewer"}
    members |= {f"{kind}:{vertex.project}" for role, kind in kinds.items() if role in in_project}
    for need in needs:
        places, granted, conditional, roles = ["the project"], set(in_project), set(with_condition), set(need.roles)
        grant = f"gcloud projects add-iam-policy-binding {vertex.project}"
        if need.place:
            grant = need.place.grant
            try:
                here, here_with_condition = _granted(need.place.policy(), members)
            except (exceptions.Forbidden, exceptions.NotFound):
                roles |= {*BASIC} if need.place.name.startswith("gs://") else set()
            else:
                places.append(need.place.name)
                roles |= {OF_EDITORS} if need.place.name.startswith("gs://") else set()
                granted |= here
                conditional |= here_with_condition
        if granted & roles:
            continue
        looked_at = " or ".join(places)
        text = f"no role in {looked_at} lets {account} {need.purpose}"
        if conditional & roles:
            text = f"only a role with a condition in {looked_at} lets {account} {need.purpose}"
        yield Finding("unsure", text, f"{grant} --member=serviceAccount:{account} --role={need.roles[0]}")


def _granted(policy: Mapping[str, Any], members: set[str]) -> tuple[set[str], set[str]]:
    """Return the roles that members have, and those that they have under a condition."""
    always: set[str] = set()
    sometimes: set[str] = set()
    for binding in policy.get("bindings", []):
        if members & set(binding.get("members", [])):
            (sometimes if binding.get("condition") else always).add(binding["role"])
    return always, sometimes


def _bucket(name: str, cloud: Cloud) -> Place:
    def policy() -> Mapping[str, Any]:
        bucket = cloud.storage().bucket(name)
        return {"bindings": bucket.get_iam_policy(requested_policy_version=3, timeout=30).bindings}

    return Place(f"gs://{name}", f"gcloud storage buckets add-iam-policy-binding gs://{name}", policy)


def _account(account: str, vertex: Vertex, cloud: Cloud) -> Place:
    path = f"v1/{_account_name(account, vertex.project)}:getIamPolicy?options.requestedPolicyVersion=3"
    grant = f"gcloud iam service-accounts add-iam-policy-binding {account}"
    return Place(account, grant, lambda: cloud.request("iam", path, {}))


def _account_name(account: str, project: str) -> str:
    """Return the resource name of a service account, with the project that it is in.

    Not with "-" in place of the project, which answers "forbidden" where there is no such account:
    google.iam.admin.v1.GetServiceAccountRequest.name
    """
    name, _, domain = account.partition("@")
    if domain == "developer.gserviceaccount.com":
        project = name.partition("-")[0]
    elif domain == "appspot.gserviceaccount.com":
        project = name
    elif domain.endswith(".iam.gserviceaccount.com"):
        project = domain.removesuffix(".iam.gserviceaccount.com")
        if "." in project:  # of a domain: name.example.com is example.com:name
            short, _, organization = project.partition(".")
            project = f"{organization}:{short}"
    return f"projects/{project}/serviceAccounts/{account}"


def _repository(image: str, cloud: Cloud) -> Place | None:
    """Return the repository of Artifact Registry that an image is in; None: it is elsewhere."""
    host, _, path = image.partition("/")
    if not host.endswith("-docker.pkg.dev"):
        return None
    parts = path.split("/")
    if "." in parts[0]:  # of a domain
        parts[:2] = [f"{parts[0]}:{parts[1]}"]
    location, project, repository = host.removesuffix("-docker.pkg.dev"), parts[0], parts[1]
    name = f"v1/projects/{project}/locations/{location}/repositories/{repository}:getIamPolicy"
    grant = (
        f"gcloud artifacts repositories add-iam-policy-binding {repository} --location={location} --project={project}"
    )
    return Place(
        f"the repository {repository}",
        grant,
        lambda: cloud.request("artifactregistry", f"{name}?options.requestedPolicyVersion=3"),
    )


def _secret(version: str, cloud: Cloud) -> Place:
    _, project, _, name, *_ = version.split("/")
    path = f"v1/projects/{project}/secrets/{name}:getIamPolicy?options.requestedPolicyVersion=3"
    grant = f"gcloud secrets add-iam-policy-binding {name} --project={project}"
    return Place(f"the secret {name}", grant, lambda: cloud.request("secretmanager", path))


def _caller(cloud: Cloud) -> str:
    account = getattr(cloud.credentials, "service_account_email", None)
    return f"serviceAccount:{account}" if account else "user:YOU"
