"""Preflight asks for every permission and role that a run needs, and names the command that gives it."""

import pytest

from pipeline.settings.config import Data
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Job, Machines
from pipeline.settings.target import Dataflow
from tests.fakes.google_cloud import BUCKET, NUMBER, PROJECT, REGION, GoogleCloud

pytestmark = pytest.mark.slow
DEFAULT_ACCOUNT = f"{NUMBER}-compute@developer.gserviceaccount.com"
ACCOUNT = f"pipeline@{PROJECT}.iam.gserviceaccount.com"


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
    address = "projects/demo/secrets/address/versions/latest"
    there.rest.project.secrets |= {secret: "x" * 20, address: "https://a.example.com"}
    assert about_account(Data("gs://rows/flights"), webhook_url=address, webhook_secret=secret) == [
        f"no role in the project or gs://rows lets {ACCOUNT} read gs://rows",
        f"no role in the project or the secret address lets {ACCOUNT} read the webhook's address",
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
        f"no role in the project lets {ACCOUNT} be a Dataflow worker",
        f"no role in the project lets {ACCOUNT} start Dataflow jobs",
        f"no role in the project lets {ACCOUNT} run queries",
    ]
    there.rest.project.denied.add(("bigquery.jobs.create", "project"))
    assert checked(data=Data("bigquery://demo.flights.all"))["data"].state == "unsure"
