"""Preflight: everything that would stop a run is found before money is spent, all of it together, with what to do."""

from dataclasses import replace

import pytest

from pipeline.errors import UserError
from pipeline.settings.endpoint import Endpoint
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines import preflight
from pipeline.vertex.pipelines.preflight import Finding, check
from tests.fakes.google_cloud import BUCKET, PROJECT, GoogleCloud

pytestmark = pytest.mark.slow


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
    address = "projects/demo/secrets/address/versions/1"
    there.rest.project.secrets[address] = "https://hooks.example.com"
    told = {"webhook_url": address, "webhook_secret": secret}
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
