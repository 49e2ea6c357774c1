"""Batch prediction: a version of the registry answers a table or files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.endpoint import Endpoint
from pipeline.vertex.endpoints import batch
from pipeline.vertex.endpoints.registry import Registry, Version
from tests.fakes.google_cloud import GoogleCloud


@pytest.fixture
def version(cloud) -> Version:
    container = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
    return Registry(cloud, "flights").add("gs://m", "gs://demo-bucket/flights/serving/1", container, {}, "", None)


def predict(version: Version, source: str, to: str, vertex, cloud) -> list[str]:
    notes: list[str] = []
    batch.predict(version, source, to, "late", vertex, cloud, notes.append, 0.01)
    return notes


def test_a_table_is_answered_without_its_label(version: Version, vertex, cloud, there: GoogleCloud):
    vertex = replace(vertex, endpoint=Endpoint("late-flights", machine_type="n2-standard-8", max_replicas=3))
    notes = predict(version, "bigquery://demo.flights.today", "bq://demo.answers", vertex, cloud)
    (job,) = there.vertex.jobs.batch_jobs.values()
    assert job.model == "projects/demo/locations/us-central1/models/flights@1"
    assert job.input_config.bigquery_source.input_uri == "bq://demo.flights.today"
    assert list(job.instance_config.excluded_fields) == ["late"]
    assert job.dedicated_resources.machine_spec.machine_type == "n2-standard-8"
    assert job.dedicated_resources.max_replica_count == 3
    assert notes[-1] == "11 rows answered, 1 not, in bq://demo.answers.predictions_1"
    assert notes[0].startswith("version 1 answers bigquery://demo.flights.today\n  job  projects/demo/")


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("jsonl", "jsonl"), ("csv", "csv"), ("tfrecord", "tf-record"), ("tfrecord.gz", "tf-record-gzip")],
)
def test_files_are_answered_as_what_they_are(ending: str, expected: str, version: Version, vertex, cloud, there):
    notes = predict(version, f"gs://demo-bucket/rows/*.{ending}", "gs://demo-bucket/answers", vertex, cloud)
    (job,) = there.vertex.jobs.batch_jobs.values()
    assert job.input_config.instances_format == expected
    assert notes[-1].endswith(" in gs://demo-bucket/answers/prediction-1")


@pytest.mark.parametrize(
    ("source", "to", "message"),
    [
        ("gs://demo-bucket/rows/*.parquet", "gs://b/a", "Parquet: load it as a table first, bq load"),
        ("rows.csv", "gs://b/a", "takes no rows from 'rows.csv'"),
        ("bigquery://table", "gs://b/a", "a table bigquery://project.dataset.table, got 'bigquery://table'"),
        ("gs://b/x.csv", "answers", "--to must be a folder gs://bucket/folder or bq://project.dataset, got 'answers'"),
    ],
)
def test_what_vertex_ai_does_not_take_is_refused_before_it_is_asked(source, to, message, version, vertex, cloud, there):
    with pytest.raises(UserError, match=message):
        predict(version, source, to, vertex, cloud)
    assert there.vertex.jobs.batch_jobs == {}


def test_a_job_that_fails_is_one_message(version: Version, vertex, cloud, there: GoogleCloud):
    there.vertex.script.failing_jobs = "no rows"
    with pytest.raises(UserError, match="the batch job ended with JOB_STATE_FAILED: no rows; projects/demo"):
        predict(version, "gs://demo-bucket/rows/*.csv", "gs://demo-bucket/answers", vertex, cloud)
