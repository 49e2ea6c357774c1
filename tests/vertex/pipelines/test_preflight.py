"""Preflight: everything that would stop a run is found before money is spent, all of it together, with what to do."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from google.api_core import exceptions

from pipeline.errors import UserError
from pipeline.settings.config import Data
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Job, Machines
from pipeline.settings.target import Dataflow, Target
from pipeline.vertex.cloud import Cloud, is_googles, is_private
from pipeline.vertex.pipelines import capacity, preflight
from pipeline.vertex.pipelines.images import read_image
from pipeline.vertex.pipelines.preflight import Finding, check
from tests.fakes.google_cloud import BUCKET, NUMBER, PROJECT, REGION, GoogleCloud
from tests.fakes.image_registry import STRANGER, THIEF

pytestmark = pytest.mark.slow
DEFAULT_ACCOUNT = f"{NUMBER}-compute@developer.gserviceaccount.com"
ACCOUNT = f"pipeline@{PROJECT}.iam.gserviceaccount.com"
GPUS = Machines(training=Job("n1-standard-8", "NVIDIA_TESLA_T4", 2, replicas=2))


@pytest.fixture
def all_checked(config, vertex, there: GoogleCloud):
    """What preflight comes to; settings that are not those of a run in order are given."""

    def look(data: Data | None = None, **settings):
        return check(
            replace(config, data=data) if data else config,
            replace(vertex, **settings),
            lambda: Cloud.connect(PROJECT, REGION),
        )

    return look


@pytest.fixture
def checked(all_checked):
    """What preflight finds, by thing; the last of several about one thing."""

    def look(data: Data | None = None, **settings) -> dict[str, Finding]:
        return {finding.subject: finding for finding in all_checked(data, **settings).findings}

    return look


@pytest.fixture
def about_account(all_checked):
    """What preflight finds about the service account."""

    def look(data: Data | None = None, **settings) -> list[str]:
        findings = all_checked(data, **settings).findings
        return [finding.text for finding in findings if finding.subject == "service account"]

    return look


@pytest.fixture
def internet(there: GoogleCloud, vertex, monkeypatch) -> Callable[[str], str]:
    """Gives the image of ``vertex`` an address at a registry on the internet, which is led here."""
    for name, value in there.internet.items():
        monkeypatch.setenv(name, value)
    return lambda host: f"{host}/{vertex.image.partition('/')[2]}"


def wrong(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.state == "wrong"}


def test_where_everything_is_in_order_everything_is_ok(checked, vertex):
    findings = checked()
    assert {finding.state for finding in findings.values()} == {"ok"}
    assert list(findings) == ["credentials", "permissions", "APIs", "bucket", "service account", "image", "data"]
    assert findings["credentials"].text == "tester@demo.iam.gserviceaccount.com"
    assert findings["image"].text == f"{vertex.image}, the same packages and library as here"


def test_all_that_is_wrong_is_listed_together(checked, there: GoogleCloud):
    there.rest.project.apis -= {"aiplatform.googleapis.com"}
    there.rest.project.images.clear()
    findings = checked(bucket="not-there", service_account="other@demo.iam.gserviceaccount.com")
    assert wrong(findings) == {"APIs", "bucket", "service account", "image"}
    assert findings["APIs"].remedy == "gcloud services enable aiplatform.googleapis.com --project=demo"
    assert findings["bucket"].remedy == "gcloud storage buckets create gs://not-there --location=us-central1"
    assert findings["service account"].remedy == "gcloud iam service-accounts create other --project=demo"
    assert findings["image"].remedy.startswith("make image IMAGE=localhost:")


def test_an_endpoint_that_was_deleted_is_found_before_anything_is_paid(checked, there: GoogleCloud):
    named = Endpoint("projects/demo/locations/us-central1/endpoints/1234")
    findings = checked(endpoint=named)
    assert wrong(findings) == {"endpoint"}
    assert findings["endpoint"].text == f"{named.name} does not exist"
    assert findings["service account"].text.endswith("read the endpoint's errors and latencies")
    there.rest.project.apis -= {"monitoring.googleapis.com"}
    findings = checked(endpoint=Endpoint("late-flights"))
    assert findings["endpoint"].text == "projects/demo/locations/us-central1/endpoints/late-flights will be made"
    assert findings["APIs"].remedy == "gcloud services enable monitoring.googleapis.com --project=demo"


def test_the_secret_of_the_webhook_must_be_there(checked, there: GoogleCloud):
    secret = "projects/demo/secrets/hook/versions/latest"
    told = {"webhook_url": "https://hooks.example.com", "webhook_secret": secret}
    findings = checked(**told)
    assert wrong(findings) == {"webhook"}
    assert findings["webhook"].remedy == "gcloud secrets create hook --project=demo --data-file=FILE"
    there.rest.project.secrets[secret] = "x" * 20
    assert checked(**told)["webhook"].state == "ok"
    there.rest.project.disabled_secrets.add(secret)
    assert checked(**told)["webhook"].text == f"{secret} is disabled"
    there.rest.project.apis -= {"secretmanager.googleapis.com"}
    assert checked(**told)["APIs"].remedy == "gcloud services enable secretmanager.googleapis.com --project=demo"


def test_missing_credentials_are_named(checked, monkeypatch, tmp_path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    (finding,) = checked().values()
    assert (finding.subject, finding.state) == ("credentials", "wrong")
    assert finding.text == "no credentials for Google Cloud"
    assert "gcloud auth application-default login" in finding.remedy


def test_a_key_file_that_is_none_is_named(checked, monkeypatch, tmp_path):
    (tmp_path / "key.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    (finding,) = checked().values()
    assert finding.state == "wrong"


def test_expired_credentials_are_named(checked, there: GoogleCloud):
    there.rest.project.expired = True
    (finding,) = checked().values()
    assert (finding.subject, finding.state) == ("credentials", "wrong")
    assert "expired or revoked" in finding.text
    assert "gcloud auth application-default login" in finding.remedy


def test_a_bucket_in_another_region_is_refused(checked, there: GoogleCloud):
    there.create_bucket("bucket-in-europe-west4", "europe-west4")
    bucket = checked(bucket="bucket-in-europe-west4")["bucket"]
    assert bucket.state == "wrong"
    assert bucket.text == "gs://bucket-in-europe-west4 is in europe-west4, the jobs are to run in us-central1"
    assert bucket.remedy.startswith("take --region europe-west4, or a bucket in us-central1")


@pytest.mark.parametrize(
    ("region", "location", "data_locations", "state"),
    [
        ("us-central1", "US", (), "ok"),
        ("us-central1", "NAM4", (), "ok"),
        ("us-west1", "NAM4", (), "wrong"),
        ("europe-west4", "EUR4", (), "ok"),
        ("us-central1", "US", ("US-CENTRAL1", "US-WEST1"), "ok"),
        ("us-east1", "US", ("US-CENTRAL1", "US-WEST1"), "wrong"),
        ("europe-west4", "EU", (), "ok"),
        ("europe-west2", "EU", (), "wrong"),
        ("us-central1", "EU", (), "wrong"),
        ("asia-southeast2", "ASIA", (), "wrong"),
        ("us-central1", "NAM9", (), "unsure"),
    ],
)
def test_a_bucket_in_several_regions_is_as_good_as_one_in_one_of_them(
    region, location, data_locations, state, vertex, there: GoogleCloud
):
    there.create_bucket("wide", location, data_locations)
    cloud = Cloud.connect(PROJECT, region)
    (finding,) = preflight._bucket(replace(vertex, region=region, bucket="wide"), cloud)
    assert finding.state == state, finding


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("pipeline.lock-sha256", "holds other package versions than here"),
        ("pipeline.library-fingerprint", "holds another state of pipeline/ than here"),
    ],
)
def test_an_image_of_other_code_is_refused(label, expected, checked, vertex, there: GoogleCloud):
    there.rest.project.images[vertex.image.partition("/")[2]][label] = "0"
    image = checked()["image"]
    assert image.state == "wrong"
    assert expected in image.text
    assert image.remedy == f"make image IMAGE={vertex.image}"


def test_a_service_account_without_a_role_is_named_with_the_command_that_gives_it(checked, there: GoogleCloud):
    there.rest.project.roles.pop("roles/storage.objectAdmin")
    account = checked()["service account"]
    assert account.state == "unsure", "a group or the bucket may give it the role"
    assert account.text == (f"no role in the project or gs://demo-bucket lets {ACCOUNT} read and write the bucket")
    assert account.remedy == (
        "gcloud storage buckets add-iam-policy-binding gs://demo-bucket "
        "--member=serviceAccount:pipeline@demo.iam.gserviceaccount.com --role=roles/storage.objectUser"
    )


def test_who_may_not_act_as_the_service_account_is_told(checked, vertex, there: GoogleCloud):
    there.rest.project.denied.add(("iam.serviceAccounts.actAs", f"serviceAccounts/{vertex.service_account}"))
    assert "--role=roles/iam.serviceAccountUser" in checked()["service account"].remedy


def test_a_role_of_the_bucket_alone_is_enough_and_one_with_a_condition_is_not(checked, there: GoogleCloud):
    there.rest.project.roles.pop("roles/storage.objectAdmin")
    binding = {"role": "roles/storage.objectUser", "members": [f"serviceAccount:{ACCOUNT}"]}
    there.rest.project.policies["buckets/demo-bucket"] = [binding]
    assert checked()["service account"].state == "ok"
    binding["condition"] = {"title": "until May", "expression": "request.time < timestamp('2026-05-01T00:00:00Z')"}
    account = checked()["service account"]
    assert account.state == "unsure"
    assert account.text.startswith("only a role with a condition in the project or gs://demo-bucket lets")


def test_a_role_of_the_project_with_a_condition_is_named_as_one(about_account, there: GoogleCloud):
    there.rest.project.roles.pop("roles/aiplatform.user")
    condition = {"title": "until May", "expression": "request.time < timestamp('2026-05-01T00:00:00Z')"}
    user = {"role": "roles/aiplatform.user", "members": [f"serviceAccount:{ACCOUNT}", "group:ml@example.com"]}
    there.rest.project.policies["project"] = [{**user, "condition": condition}]
    assert about_account() == [f"only a role with a condition in the project lets {ACCOUNT} run jobs"]
    there.rest.project.policies["project"] = [{**user, "members": ["group:ml@example.com"]}]
    assert about_account() == [f"no role in the project lets {ACCOUNT} run jobs"], "who is in a group cannot be seen"


def test_an_editor_of_the_project_may_use_a_bucket_by_the_policy_that_new_buckets_have(checked, there: GoogleCloud):
    there.rest.project.roles = {"roles/editor": {f"serviceAccount:{ACCOUNT}"}}
    assert checked()["service account"].state == "ok"
    there.rest.project.policies["buckets/demo-bucket"] = []
    account = checked()["service account"]
    assert account.state == "unsure"
    assert account.text.endswith("read and write the bucket")
    there.rest.project.denied.add(("storage.buckets.getIamPolicy", "buckets/demo-bucket"))
    assert checked()["service account"].state == "ok", "what may not be read does not count against it"


def test_where_the_project_s_policy_may_not_be_read_that_is_told(checked, there: GoogleCloud):
    there.rest.project.denied.add(("resourcemanager.projects.getIamPolicy", "project"))
    account = checked()["service account"]
    assert account.state == "unsure"
    assert account.text.startswith("you may not look: ")


def test_the_default_account_is_asked_like_any_other_and_its_use_is_a_warning(all_checked, there: GoogleCloud):
    def look() -> list[tuple[str, str]]:
        findings = all_checked(service_account=None).findings
        return [(finding.state, finding.text) for finding in findings if finding.subject == "service account"]

    warning = ("unsure", f"{DEFAULT_ACCOUNT}, the project's default, is shared by all that runs in it")
    assert look() == [warning, ("wrong", f"{DEFAULT_ACCOUNT} does not exist")]
    there.rest.project.accounts.add(DEFAULT_ACCOUNT)
    there.rest.project.denied.add(("iam.serviceAccounts.actAs", f"serviceAccounts/{DEFAULT_ACCOUNT}"))
    assert look() == [
        warning,
        ("wrong", f"you may not let jobs act as {DEFAULT_ACCOUNT}"),
        ("unsure", f"no role in the project lets {DEFAULT_ACCOUNT} run jobs"),
        ("unsure", f"no role in the project or gs://demo-bucket lets {DEFAULT_ACCOUNT} read and write the bucket"),
    ]
    there.rest.project.denied.clear()
    there.rest.project.roles["roles/editor"] = {f"serviceAccount:{DEFAULT_ACCOUNT}"}
    assert look() == [warning]


def test_a_disabled_account_is_named(checked, there: GoogleCloud):
    there.rest.project.disabled.add(ACCOUNT)
    account = checked()["service account"]
    assert (account.state, account.text) == ("wrong", f"{ACCOUNT} is disabled")


def test_an_account_that_starts_jobs_must_be_allowed_to_act_as_itself(about_account, there: GoogleCloud):
    assert about_account() == [ACCOUNT]
    act_as = f"no role in the project or {ACCOUNT} lets {ACCOUNT} act as itself, as the tasks do that start jobs"
    machines = Machines(training=Job("n1-standard-8"))
    assert about_account(machines=machines) == [act_as]
    assert about_account(machines=Machines(tuning=Job("n1-standard-8"), search_with="vizier")) == [act_as]
    of_itself = [{"role": "roles/iam.serviceAccountUser", "members": [f"serviceAccount:{ACCOUNT}"]}]
    there.rest.project.policies[f"serviceAccounts/{ACCOUNT}"] = of_itself
    assert about_account(machines=machines) == [ACCOUNT]


def test_an_account_that_deploys_must_be_allowed_to_act_as_that_of_the_model(about_account, there: GoogleCloud):
    model = f"model@{PROJECT}.iam.gserviceaccount.com"
    there.rest.project.accounts.add(model)
    there.rest.project.roles["roles/monitoring.viewer"] = {f"serviceAccount:{ACCOUNT}"}
    assert about_account(endpoint=Endpoint("late-flights")) == [ACCOUNT]
    assert about_account(endpoint=Endpoint("late-flights", service_account=model)) == [
        f"no role in the project or {model} lets {ACCOUNT} act as {model}, as the tasks do that start jobs"
    ]


def test_the_account_of_dataflow_s_workers_must_be_allowed_to_pull_the_image(about_account, there: GoogleCloud):
    for role in ("dataflow.worker", "dataflow.developer", "iam.serviceAccountUser"):
        there.rest.project.roles[f"roles/{role}"] = {f"serviceAccount:{ACCOUNT}"}
    dataflow = Dataflow(
        PROJECT, REGION, f"gs://{BUCKET}/temp", "us-central1-docker.pkg.dev/demo/pipelines/i:1", service_account=ACCOUNT
    )
    assert about_account(dataflow=dataflow) == [
        f"no role in the project or the repository pipelines lets {ACCOUNT} pull the image as a Dataflow worker"
    ]
    reader = [{"role": "roles/artifactregistry.reader", "members": [f"serviceAccount:{ACCOUNT}"]}]
    there.rest.project.policies["repositories/pipelines"] = reader
    assert about_account(dataflow=dataflow) == [ACCOUNT]


def test_the_account_must_be_allowed_to_read_data_in_another_bucket_and_the_secret_of_the_webhook(
    about_account, there: GoogleCloud
):
    there.create_bucket("rows", "us-central1")
    there.rest.project.roles = {"roles/aiplatform.user": {f"serviceAccount:{ACCOUNT}"}}
    writer = [{"role": "roles/storage.objectUser", "members": [f"serviceAccount:{ACCOUNT}"]}]
    there.rest.project.policies["buckets/demo-bucket"] = writer
    secret = "projects/demo/secrets/hook/versions/latest"
    there.rest.project.secrets[secret] = "x" * 20
    assert about_account(Data("gs://rows/flights"), webhook_url="https://a.example.com", webhook_secret=secret) == [
        f"no role in the project or gs://rows lets {ACCOUNT} read gs://rows",
        f"no role in the project or the secret hook lets {ACCOUNT} read the webhook's secret",
    ]


def test_who_calls_must_be_allowed_to_submit_and_to_upload(checked, there: GoogleCloud):
    assert checked()["permissions"].text == "submit jobs in demo, write to gs://demo-bucket"
    there.rest.project.denied.add(("storage.objects.create", "buckets/demo-bucket"))
    uploading = checked()["permissions"]
    assert (uploading.state, uploading.text) == ("wrong", "you lack storage.objects.create in gs://demo-bucket")
    assert uploading.remedy == (
        "gcloud storage buckets add-iam-policy-binding gs://demo-bucket "
        "--member=serviceAccount:tester@demo.iam.gserviceaccount.com --role=roles/storage.objectUser"
    )
    there.rest.project.denied = {("aiplatform.pipelineJobs.create", "project")}
    submitting = checked()["permissions"]
    assert (submitting.state, submitting.text) == ("wrong", "you lack aiplatform.pipelineJobs.create in demo")


def test_dataflow_and_bigquery_need_their_apis_and_roles(checked, about_account, vertex, there: GoogleCloud):
    there.rest.project.apis -= {"dataflow.googleapis.com", "bigquery.googleapis.com"}
    there.rest.project.machine_types = {"us-central1-a": {"n2-standard-4"}}
    # Beam makes a dataset for the answer of a query.
    there.rest.project.roles["roles/bigquery.jobUser"] = {f"serviceAccount:{ACCOUNT}"}
    dataflow = Dataflow(PROJECT, REGION, f"gs://{BUCKET}/temp", vertex.image)
    findings = checked(data=Data("bigquery://demo.flights.all"), dataflow=dataflow)
    assert findings["APIs"].text == "not enabled: dataflow.googleapis.com, bigquery.googleapis.com"
    assert findings["machines"].text == "n2-standard-4"
    assert findings["data"].text == "BigQuery: Not found: Table demo.flights.all"
    assert about_account(Data("bigquery://demo.flights.all"), dataflow=dataflow)[:3] == [
        f"no role in the project lets {ACCOUNT} run queries",
        f"no role in the project lets {ACCOUNT} be a Dataflow worker",
        f"no role in the project lets {ACCOUNT} start Dataflow jobs",
    ]
    there.rest.project.denied.add(("bigquery.jobs.create", "project"))
    assert checked(data=Data("bigquery://demo.flights.all"))["data"].state == "unsure"


def test_what_runs_is_the_image_that_was_looked_at(all_checked, checked, config, vertex, internet, there, tmp_path):
    image = internet("us-central1-docker.pkg.dev")
    there.rest.project.images[f"{image.partition('/')[2]}-root"] = there.rest.project.images[image.partition("/")[2]]
    dataflow = Dataflow(PROJECT, REGION, f"gs://{BUCKET}/temp", f"{image}-root")
    machines = Machines(training=Job("n1-standard-8"), tuning=Job("n1-standard-8"), search_with="vizier")
    pinned = all_checked(image=image, dataflow=dataflow, machines=machines).vertex
    for address in (pinned.image, pinned.image_as_root, pinned.dataflow.image):
        assert re.fullmatch(r"us-central1-docker\.pkg\.dev/demo/pipelines/tfx-pipeline@sha256:[0-9a-f]{64}", address)
    from pipeline.vertex.pipelines.compile import compile  # and TFX with it

    compile(config, Target.on_vertex(pinned, config.name, tmp_path / "upload"), tmp_path)
    job = (tmp_path / "pipeline_job.json").read_text()
    assert pinned.image in job
    assert f"--sdk_container_image={pinned.dataflow.image}" in job
    assert "tfx-pipeline:" not in job, "no tag is left"
    # A digest is one, too.
    assert checked(image=pinned.image)["image"].state == "ok"


def test_the_digest_is_that_of_the_tag_also_where_it_is_a_list_of_platforms(all_checked, internet, there: GoogleCloud):
    image = internet("gcr.io")
    path = image.partition("/")[2]
    single = all_checked(image=image).vertex.image
    there.rest.project.platforms[path] = ("arm64", "amd64")
    both = all_checked(image=image)
    assert {finding.state for finding in both.findings if finding.subject == "image"} == {"ok"}
    assert both.vertex.image != single
    there.rest.project.platforms[path] = ("arm64",)
    only_arm = all_checked(image=image)
    (finding,) = (finding for finding in only_arm.findings if finding.subject == "image")
    assert finding.text == f"{image} is not for x86-64, which Vertex AI runs"


def test_a_root_image_that_is_none_is_refused(checked, vertex, there: GoogleCloud):
    path = f"{vertex.image.partition('/')[2]}-root"
    there.rest.project.images[path] = there.rest.project.images[vertex.image.partition("/")[2]]
    there.rest.project.users[path] = "pipeline"
    dataflow = Dataflow(PROJECT, REGION, f"gs://{BUCKET}/temp", f"{vertex.image}-root")
    image = checked(dataflow=dataflow)["image"]
    assert image.state == "wrong"
    assert image.text.endswith("runs as pipeline, not as root")


def test_where_a_registry_does_not_show_the_image_the_job_names_it_by_its_tag(all_checked, internet, there):
    there.rest.project.expired = False
    image = internet("private.invalid")
    found = all_checked(image=image)
    (finding,) = (finding for finding in found.findings if finding.subject == "image")
    assert finding.state == "unsure"
    assert finding.text.startswith(f"{image} cannot be looked at, jobs name it by its tag: ")
    assert found.vertex.image == image


def test_google_s_token_is_shown_to_google_s_registries_over_tls_and_to_nobody_else(
    checked, vertex, internet, there: GoogleCloud
):
    def seen() -> set[str]:
        # Not what google-auth asks about the account, nor the services here.
        services = {f"http://localhost:{there.rest.port}", "https://iamcredentials.googleapis.com"}
        return there.rest.saw_token - services

    assert checked(image=internet("us-central1-docker.pkg.dev"))["image"].state == "ok"
    assert seen() == {"https://us-central1-docker.pkg.dev"}, "and not to the address of the blob"
    assert checked(image=internet("eu.gcr.io"))["image"].state == "ok"
    assert seen() == {"https://us-central1-docker.pkg.dev", "https://eu.gcr.io"}
    there.rest.saw_token.clear()
    assert checked(image=internet(STRANGER.removeprefix("https://")))["image"].state == "ok"
    assert checked(image=internet(THIEF.removeprefix("https://")))["image"].state == "unsure"
    assert seen() == set()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://us-central1-docker.pkg.dev/v2/", True),
        ("https://gcr.io/v2/", True),
        ("https://EU.gcr.io/v2/", True),
        ("https://iam.googleapis.com/", True),
        ("http://us-central1-docker.pkg.dev/v2/", False),
        ("https://us-central1-docker.pkg.dev.example.com/", False),
        ("https://us-central1-docker.pkg.dev@example.com/", False),
        ("https://notgcr.io/", False),
        ("https://example.com/gcr.io", False),
    ],
)
def test_only_hosts_of_google_over_tls_are_google_s(url, expected):
    assert is_googles(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://example.com", True),
        ("http://localhost:80/", True),
        ("http://127.0.0.1/", True),
        ("http://[::1]:5000/", True),
        ("http://localhost.evil.com/", False),
        ("http://localhost@evil.com/", False),
        ("http://127.0.0.1.evil.com/", False),
    ],
)
def test_only_this_machine_is_asked_without_tls(url, expected):
    assert is_private(url) == expected


def test_a_registry_on_this_machine_is_asked_without_tls_and_without_a_token(vertex, cloud, there: GoogleCloud):
    for host in ("localhost", "127.0.0.1"):
        read_image(vertex.image.replace("localhost", host), cloud)
    assert not any("127.0.0.1" in site for site in there.rest.saw_token)
    with pytest.raises(exceptions.ServiceUnavailable, match="HTTPSConnection"):
        read_image(vertex.image.replace("localhost", "localhost.evil.invalid"), cloud)


def test_an_address_of_a_service_without_tls_is_refused(there: GoogleCloud, monkeypatch):
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM", "http://iam.example.com/")
    with pytest.raises(UserError, match="IAM is http://iam.example.com/; expected an address that starts with https"):
        Cloud.connect(PROJECT, REGION)


def test_the_endpoint_s_machines_must_be_in_the_region_and_within_the_quota(all_checked, there: GoogleCloud):
    endpoint = Endpoint("late-flights", "g2-standard-8", "NVIDIA_L4", 1, min_replicas=2, max_replicas=4)

    def look() -> list[tuple[str, str, str]]:
        findings = all_checked(endpoint=endpoint).findings
        return [(f.subject, f.state, f.text) for f in findings if f.subject in ("machines", "quota")]

    there.rest.project.machine_types = {"europe-west4-a": {"g2-standard-8"}, "europe-west4-b": {"g2-standard-8"}}
    there.rest.project.accelerator_types = {"us-central1-a": {"nvidia-l4"}}
    metric = "custom_model_serving_nvidia_l4_gpus"
    for limit, state in ((1, "wrong"), (2, "unsure")):
        there.rest.project.quota = {metric: limit}
        taken = "a version takes 2, and the canary has two versions side by side"
        assert look() == [
            ("machines", "wrong", "us-central1 does not have g2-standard-8 (in europe-west4)"),
            ("quota", state, f"{metric} is {limit} in us-central1, {taken}"),
        ]
    there.rest.project.machine_types = {"asia-east1-a": set(), "us-central1-a": {"g2-standard-8"}}
    there.rest.project.quota = {metric: 4}
    assert look() == [("machines", "ok", "g2-standard-8, nvidia-l4"), ("quota", "ok", f"{metric}: 4 of 4")]


@pytest.mark.parametrize(
    ("job", "metric"),
    [
        (Job("n1-highmem-8"), "custom_model_training_cpus"),
        (Job("e2-standard-8", spot=True), "custom_model_training_preemptible_cpus"),
        (Job("n2-standard-8"), "custom_model_training_n2_cpus"),
        (Job("g2-standard-8", "NVIDIA_L4", 1), "custom_model_training_nvidia_l4_gpus"),
        (Job("g2-standard-8", "NVIDIA_L4", 1, spot=True), "custom_model_training_preemptible_nvidia_l4_gpus"),
        (Job("a2-highgpu-1g", "NVIDIA_TESLA_A100", 1), "custom_model_training_nvidia_a100_gpus"),
        (Job("a2-ultragpu-1g", "NVIDIA_A100_80GB", 1), "custom_model_training_nvidia_a100_80gb_gpus"),
        (Job("a3-highgpu-8g", "NVIDIA_H100_80GB", 8), "custom_model_training_nvidia_h100_gpus"),
        (Job("a3-megagpu-8g", "NVIDIA_H100_MEGA_80GB", 8), "custom_model_training_nvidia_h100_mega_gpus"),
        (
            Job("a3-ultragpu-8g", "NVIDIA_H200_141GB", 8, boot_disk_type="hyperdisk-balanced"),
            "custom_model_training_nvidia_h200_gpus",
        ),
        (Job("ct5lp-hightpu-4t", tpu_topology="2x2"), "custom_model_training_tpu_v5e"),
        (Job("cloud-tpu", "TPU_V3", 8), "custom_model_training_tpu_v3"),
    ],
)
def test_quotas_have_google_s_names(job, metric, vertex, cloud, there: GoogleCloud):
    there.rest.project.quota = {metric: 8}
    (finding,) = capacity.check_quota(replace(vertex, machines=Machines(training=job)), cloud)
    assert finding.state == "ok", finding
    there.rest.project.quota_regions = ("europe-west4",)
    (finding,) = capacity.check_quota(replace(vertex, machines=Machines(training=job)), cloud)
    assert finding.text.startswith(f"{metric} is 0 in us-central1, the job takes ")


def test_a_machine_that_the_region_does_not_have_is_named_with_where_it_is(checked, there: GoogleCloud):
    there.rest.project.machine_types = {"us-central1-a": {"n1-standard-8"}}
    there.rest.project.accelerator_types = {"europe-west4-b": {"nvidia-tesla-t4"}}
    there.rest.project.quota = {"custom_model_training_nvidia_t4_gpus": 8}
    findings = checked(machines=GPUS)
    assert findings["machines"].text == "us-central1 does not have nvidia-tesla-t4 (in europe-west4)"
    there.rest.project.accelerator_types["us-central1-c"] = {"nvidia-tesla-t4"}
    assert checked(machines=GPUS)["machines"].state == "ok"


def test_a_quota_that_is_too_small_is_named_and_one_that_may_not_be_read_is_no_obstacle(checked, there: GoogleCloud):
    there.rest.project.machine_types = {"us-central1-a": {"n1-standard-8"}}
    there.rest.project.accelerator_types = {"us-central1-c": {"nvidia-tesla-t4"}}
    there.rest.project.quota = {"custom_model_training_nvidia_t4_gpus": 3}
    quota = checked(machines=GPUS)["quota"]
    assert quota.state == "wrong"
    assert quota.text == "custom_model_training_nvidia_t4_gpus is 3 in us-central1, the job takes 4"
    there.rest.project.quota = None
    assert checked(machines=GPUS)["quota"].state == "unsure"


def test_data_in_a_bucket_is_looked_for(checked, config, there: GoogleCloud):
    there.storage.bucket(BUCKET).blob("rows/train/1.parquet").upload_from_string(b"x")
    data = replace(config.data, path=f"gs://{BUCKET}/rows")
    found = checked(data=data)["data"]
    assert found.state == "wrong"
    assert f"nothing matches gs://{BUCKET}/rows/eval/*.parquet, gs://{BUCKET}/rows/test/*.parquet" in found.text
    for split in ("eval", "test"):
        there.storage.bucket(BUCKET).blob(f"rows/{split}/1.parquet").upload_from_string(b"x")
    assert checked(data=data)["data"].state == "ok"


def test_without_credentials_no_service_is_asked(config, vertex, there: GoogleCloud):
    def refuse() -> Cloud:
        raise UserError("no credentials for Google Cloud: log in")

    assert [finding.subject for finding in check(config, vertex, refuse).findings] == ["credentials"]
    assert there.rest.asked == []


def test_the_labels_that_are_checked_are_those_the_dockerfile_writes():
    dockerfile = (Path(__file__).resolve().parents[3] / "Dockerfile").read_text()
    assert f"LABEL {preflight.FINGERPRINT_LABEL}=" in dockerfile
    assert f"{preflight.VERSIONS_LABEL}=" in dockerfile
