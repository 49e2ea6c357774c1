"""Batch prediction: a version of the registry answers a table or files."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from google.cloud import aiplatform_v1 as v1
from starlette.testclient import TestClient

from pipeline.errors import UserError
from pipeline.serving.answering import Answering
from pipeline.serving.app import create_app
from pipeline.serving.bodies import Limits
from pipeline.serving.current import Current
from pipeline.serving.metrics import Metrics
from pipeline.settings.config import Label
from pipeline.settings.endpoint import Endpoint
from pipeline.vertex.endpoints import batch
from pipeline.vertex.endpoints.registry import Registry, Version
from tests.fakes.batch_rows import Container
from tests.fakes.google_cloud import NUMBER, GoogleCloud
from tests.serving.conftest import ROWS, expected, save


@pytest.fixture
def version(cloud) -> Version:
    container = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
    return Registry(cloud, "flights").add("gs://m", "gs://demo-bucket/flights/serving/1", container, {}, "", None)


def predict(version: Version, source: str, to: str, vertex, cloud) -> list[str]:
    notes: list[str] = []
    batch.predict(version, source, to, Label("late", weight="exposure"), vertex, cloud, notes.append, 0.01)
    return notes


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """The real server with a small model."""
    metrics = Metrics()
    current = Current(str(save(tmp_path_factory.mktemp("model") / "model")), "flights", metrics, 1_000)
    current.start()
    limits = Limits(body_bytes=100_000, instances=100, rows_waiting=1_000)
    with TestClient(create_app(Answering(current, metrics, limits), look_every=60)) as client:

        def answer(body):
            response = client.post("/v1/models/flights:predict", json=body)
            return response.status_code, response.json()

        yield answer


@pytest.mark.parametrize("source", ["bigquery://demo.flights.today", "gs://demo-bucket/rows/*.jsonl"])
def test_every_row_reaches_the_real_model_by_name_and_without_label_and_weight(
    source: str, version: Version, container: Container, vertex, cloud, there: GoogleCloud
):
    rows = [{**row, "late": number % 2, "exposure": 0.5} for number, row in enumerate(ROWS)]
    jobs = there.vertex.jobs
    jobs.containers[version.name] = container
    jobs.rows = {"bq://demo.flights.today": rows, "gs://demo-bucket/rows/*.jsonl": "\n".join(map(json.dumps, rows))}
    notes = predict(version, source, "gs://demo-bucket/answers", vertex, cloud)
    (answered,) = jobs.answered.values()
    assert [row["probability"] for row in answered.predictions] == pytest.approx([expected(row) for row in ROWS])
    assert notes[-1].startswith("3 rows answered, 0 not, in gs://demo-bucket/answers/")


def record(row: dict) -> bytes:
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[row["carrier"].encode()]))
    return tf.train.Example(features=tf.train.Features(feature={"carrier": feature})).SerializeToString()


@pytest.mark.parametrize(
    ("instances_format", "message"),
    [
        ("csv", "expected an object of features and their values, got a list"),
        ("tf-record", "b64"),
        ("tf-record-gzip", "b64"),
    ],
)
def test_the_model_refuses_every_row_of_the_formats_that_we_refuse(
    instances_format: str, message: str, version: Version, container: Container, cloud, there: GoogleCloud, tmp_path
):
    with tf.io.TFRecordWriter(str(tmp_path / "rows")) as writer:
        for row in ROWS:
            writer.write(record(row))
    records = Path(tmp_path / "rows").read_bytes()
    table = '"carrier","distance"\n' + "".join(f'"{row["carrier"]}",{row["distance"]}\n' for row in ROWS)
    contents = {"csv": table, "tf-record": records, "tf-record-gzip": gzip.compress(records)}
    there.vertex.jobs.containers[version.name] = container
    there.vertex.jobs.rows = {"gs://demo-bucket/rows": contents[instances_format]}
    client = cloud.client(v1.JobServiceClient)
    source = v1.GcsSource(uris=["gs://demo-bucket/rows"])
    to = v1.GcsDestination(output_uri_prefix="gs://demo-bucket/answers")
    job = v1.BatchPredictionJob(
        display_name="rows",
        model=version.name,
        input_config=v1.BatchPredictionJob.InputConfig(instances_format=instances_format, gcs_source=source),
        instance_config=v1.BatchPredictionJob.InstanceConfig(instance_type="object"),
        output_config=v1.BatchPredictionJob.OutputConfig(predictions_format="jsonl", gcs_destination=to),
        dedicated_resources=v1.BatchDedicatedResources(machine_spec=v1.MachineSpec(machine_type="n2-standard-4")),
    )
    name = client.create_batch_prediction_job(parent=cloud.parent, batch_prediction_job=job).name
    while client.get_batch_prediction_job(name=name).state != v1.JobState.JOB_STATE_SUCCEEDED:
        pass
    (answered,) = there.vertex.jobs.answered.values()
    assert answered.predictions == []
    assert len(answered.errors) == len(ROWS)
    assert message in answered.errors[0]


def test_a_table_is_answered_without_its_label(version: Version, vertex, cloud, there: GoogleCloud):
    vertex = replace(vertex, endpoint=Endpoint("late-flights", machine_type="n2-standard-8", max_replicas=3))
    assert vertex.service_account
    notes = predict(version, "bigquery://demo.flights.today", "bq://demo.answers", vertex, cloud)
    (job,) = there.vertex.jobs.batch_jobs.values()
    assert job.model == "projects/demo/locations/us-central1/models/flights@1"
    assert job.input_config.bigquery_source.input_uri == "bq://demo.flights.today"
    assert list(job.instance_config.excluded_fields) == ["late", "exposure"]
    # As on the endpoint: the account of the tasks may do more than a container of the model needs.
    assert job.service_account == ""
    assert job.dedicated_resources.machine_spec.machine_type == "n2-standard-8"
    assert job.dedicated_resources.max_replica_count == 3
    assert notes[-1] == "11 rows answered, 1 not, in bq://demo.answers.predictions_1"
    assert notes[0].startswith(f"version 1 answers bigquery://demo.flights.today\n  job  projects/{NUMBER}/")


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
    with pytest.raises(UserError, match=f"the batch job ended with JOB_STATE_FAILED: no rows; projects/{NUMBER}/"):
        predict(version, "gs://demo-bucket/rows/*.jsonl", "gs://demo-bucket/answers", vertex, cloud)
