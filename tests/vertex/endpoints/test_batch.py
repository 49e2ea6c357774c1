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


def test_lines_of_json_are_answered_by_as_many_machines_as_there_may_be(version: Version, vertex, cloud, there):
    vertex = replace(vertex, endpoint=Endpoint("late-flights", min_replicas=1, max_replicas=3))
    notes = predict(version, "gs://demo-bucket/rows/*.jsonl", "gs://demo-bucket/answers", vertex, cloud)
    (job,) = there.vertex.jobs.batch_jobs.values()
    assert job.input_config.instances_format == "jsonl"
    assert job.dedicated_resources.starting_replica_count == 3
    assert notes[-1].endswith(" in gs://demo-bucket/answers/prediction-1")


@pytest.mark.parametrize(
    ("source", "to", "message"),
    [
        ("gs://demo-bucket/rows/*.parquet", "gs://b/a", "Parquet: load it as a table first, bq load"),
        ("rows.jsonl", "gs://b/a", "takes no rows from 'rows.jsonl'"),
        ("gs://b/x.csv", "gs://b/a", "as arrays and as bytes, without the names of the features. .* bq load --sour"),
        ("gs://b/x.tfrecord.gz", "gs://b/a", "TFRecord: write its rows as .jsonl"),
        ("bigquery://table", "gs://b/a", "a table bigquery://project.dataset.table, got 'bigquery://table'"),
        ("gs://b/x.jsonl", "bq://project/answers", "--to must be a dataset bq://project.dataset, got 'bq://project/an"),
        ("gs://b/x.jsonl", "answers", "--to must be a folder gs://bucket/folder or bq://project.dataset, got 'a"),
    ],
)
def test_what_vertex_ai_does_not_take_is_refused_before_it_is_asked(source, to, message, version, vertex, cloud, there):
    with pytest.raises(UserError, match=message):
        predict(version, source, to, vertex, cloud)
    assert there.vertex.jobs.batch_jobs == {}


def test_a_job_that_fails_is_one_message(version: Version, vertex, cloud, there: GoogleCloud):
    there.vertex.script.failing_jobs = "no rows"
    with pytest.raises(UserError, match="the batch job ended with JOB_STATE_FAILED: no rows; projects/demo"):
        predict(version, "gs://demo-bucket/rows/*.jsonl", "gs://demo-bucket/answers", vertex, cloud)
