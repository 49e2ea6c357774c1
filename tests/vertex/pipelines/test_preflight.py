"""Preflight: everything that would stop a run is found before money is spent, all of it together, with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.settings.config import Data
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Job, Machines
from pipeline.settings.target import Dataflow
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines.preflight import Finding, check
from tests.fakes.google_cloud import BUCKET, PROJECT, REGION, GoogleCloud

GPUS = Machines(training=Job("n1-standard-8", "NVIDIA_TESLA_T4", 2, replicas=2))


@pytest.fixture
def checked(config, vertex, there: GoogleCloud):
    """What preflight finds, by thing; settings that are not those of a run in order are given."""

    def look(data: Data | None = None, **settings) -> dict[str, Finding]:
        findings = check(
            replace(config, data=data) if data else config,
            replace(vertex, **settings),
            lambda: Cloud.connect(PROJECT, REGION),
        )
        return {finding.subject: finding for finding in findings}

    return look


def wrong(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.state == "wrong"}


def test_where_everything_is_in_order_everything_is_ok(checked, vertex):
    findings = checked()
    assert {finding.state for finding in findings.values()} == {"ok"}
    assert list(findings) == ["credentials", "APIs", "bucket", "service account", "image", "data"]
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


def test_a_bucket_in_another_region_is_refused_and_one_in_the_multi_region_is_not(checked, there: GoogleCloud):
    for location in ("europe-west4", "US"):
        there.create_bucket(f"bucket-in-{location.lower()}", location)
    bucket = checked(bucket="bucket-in-europe-west4")["bucket"]
    assert bucket.state == "wrong"
    assert bucket.text == "gs://bucket-in-europe-west4 is in europe-west4, the jobs are to run in us-central1"
    assert bucket.remedy.startswith("take --region europe-west4, or a bucket in us-central1")
    assert checked(bucket="bucket-in-us")["bucket"].state == "ok"


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("pipeline.lock-sha256", "holds other package versions than requirements.lock"),
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
    assert account.text == (
        "no role in the project lets pipeline@demo.iam.gserviceaccount.com read and write the bucket"
    )
    assert account.remedy == (
        "gcloud projects add-iam-policy-binding demo "
        "--member=serviceAccount:pipeline@demo.iam.gserviceaccount.com --role=roles/storage.objectAdmin"
    )


def test_who_may_not_act_as_the_service_account_is_told(checked, there: GoogleCloud):
    there.rest.project.act_as = False
    assert "--role=roles/iam.serviceAccountUser" in checked()["service account"].remedy


def test_dataflow_and_bigquery_need_their_apis_and_roles(checked, vertex, there: GoogleCloud):
    there.rest.project.apis -= {"dataflow.googleapis.com", "bigquery.googleapis.com"}
    there.rest.project.machine_types = {"us-central1-a": {"n2-standard-4"}}
    dataflow = Dataflow(PROJECT, REGION, f"gs://{BUCKET}/temp", vertex.image)
    findings = checked(data=Data("bigquery://demo.flights.all"), dataflow=dataflow)
    assert findings["APIs"].text == "not enabled: dataflow.googleapis.com, bigquery.googleapis.com"
    assert findings["service account"].state == "unsure"
    assert "roles/bigquery.jobUser" in findings["service account"].remedy
    assert findings["machines"].text == "n2-standard-4"
    assert findings["data"].text == "BigQuery: Not found: Table demo.flights.all"


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

    assert [finding.subject for finding in check(config, vertex, refuse)] == ["credentials"]
    assert there.rest.asked == []


def test_the_labels_that_are_checked_are_those_the_dockerfile_writes():
    from pipeline.vertex.pipelines import preflight

    dockerfile = (Path(__file__).resolve().parents[3] / "Dockerfile").read_text()
    assert f"LABEL {preflight.FINGERPRINT_LABEL}=" in dockerfile
    assert f"{preflight.VERSIONS_LABEL}=" in dockerfile
