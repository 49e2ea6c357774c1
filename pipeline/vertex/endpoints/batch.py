"""Batch prediction on Vertex AI: a version of the registry answers the rows of a table or of files."""

import re
from collections.abc import Callable

from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.config import Label
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.image_data import Images, facts
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import Cloud, poll
from pipeline.vertex.endpoints.endpoint import machine_spec
from pipeline.vertex.endpoints.registry import Version

SUCCEEDED = ("succeeded", "partially_succeeded")
ENDED_STATES = (*SUCCEEDED, "failed", "cancelled", "expired")
FILE_LIST = "file-list"
LONGEST_OUTAGE = 30 * 60.0
TABLE = r"[^.\s/]+\.[^.\s]+\.[^.\s]+"
DATASET = r"[^.\s/]+(\.[^.\s]+){0,2}"


def predict(
    version: Version,
    source: str,
    to: str,
    label: Label,
    vertex: Vertex,
    cloud: Cloud,
    note: Callable[[str], None],
    seconds: float = 10.0,
    images: Images | None = None,
) -> None:
    """Answer all rows of a source, a table or files with an object of features a line, and wait for the end.

    The answers go to "bq://project.dataset" or a folder gs://... The columns of ``label`` do not reach the model.
    """
    table = source.partition("://")[2] if source.startswith(("bigquery://", "bq://")) else None
    endpoint = vertex.endpoint or Endpoint("batch")
    job = v1.BatchPredictionJob(
        display_name=f"{version.entry.rpartition('/')[2]}-{version.id}",
        model=version.name,
        input_config=_input(source, table, images),
        output_config=_output(to),
        # A batch job does not scale: it keeps the replicas that it starts with.
        dedicated_resources=v1.BatchDedicatedResources(
            machine_spec=machine_spec(endpoint),
            starting_replica_count=endpoint.max_replicas,
            max_replica_count=endpoint.max_replicas,
        ),
        service_account=endpoint.service_account or "",
        labels=dict(vertex.labels),
    )
    if job.input_config.instances_format != FILE_LIST:  # whose rows are {"b64": ...} and nothing else
        # A row is an object with the features by name, as on the endpoint.
        excluded = [label.name, *([label.weight] if label.weight else ()), *(facts(images.column) if images else ())]
        job.instance_config = v1.BatchPredictionJob.InstanceConfig(instance_type="object", excluded_fields=excluded)
    if images:
        # 64 images, which Vertex AI sends otherwise, may be more than the server takes in a request.
        job.manual_batch_tuning_parameters = v1.ManualBatchTuningParameters(batch_size=1)
    if vertex.encryption_key:
        job.encryption_spec = v1.EncryptionSpec(kms_key_name=vertex.encryption_key)
    client = cloud.client(v1.JobServiceClient)
    name = client.create_batch_prediction_job(parent=cloud.parent, batch_prediction_job=job).name
    note(f"version {version.id} answers {source}\n  job  {name}")
    shown = ""
    for job in poll(lambda: client.get_batch_prediction_job(name=name), seconds, LONGEST_OUTAGE, note):
        state = job.state.name.removeprefix("JOB_STATE_").lower()
        if state in ENDED_STATES:
            break
        if state != shown:
            shown = state
            note(f"  {state}")
    if state not in SUCCEEDED:
        raise UserError(f"the batch job ended with {job.state.name}: {job.error.message or 'no reason given'}; {name}")
    info, stats = job.output_info, job.completion_stats
    place = info.gcs_output_directory or f"{info.bigquery_output_dataset}.{info.bigquery_output_table}"
    failed = stats.failed_count + max(0, stats.incomplete_count)  # -1: not known
    note(f"{stats.successful_count:,} rows answered, {failed:,} not, in {place}")


def _input(source: str, table: str | None, images: Images | None) -> v1.BatchPredictionJob.InputConfig:
    if table is not None:
        if not re.fullmatch(TABLE, table):
            raise UserError(f"batch-predict takes a table bigquery://project.dataset.table, got {source!r}")
        return v1.BatchPredictionJob.InputConfig(
            instances_format="bigquery", bigquery_source=v1.BigQuerySource(input_uri=f"bq://{table}")
        )
    if images and source.startswith("gs://") and source.endswith(".txt"):
        return v1.BatchPredictionJob.InputConfig(instances_format=FILE_LIST, gcs_source=v1.GcsSource(uris=[source]))
    if not source.startswith("gs://") or not source.endswith(".jsonl"):
        listed = ", or gs://bucket/list.txt with the address of an image a line" if images else ""
        raise UserError(
            f"batch-predict takes no rows from {source!r}: expected bigquery://project.dataset.table, or files "
            f"gs://bucket/folder/*.jsonl with an object of features a line{listed}. Rows of CSV and TFRecord files "
            "would reach the model as arrays and as bytes, without the names of the features. What to do: CSV or "
            "Parquet: load it as a table first, bq load --source_format=CSV (or PARQUET); TFRecord: write its rows as "
            ".jsonl; files here: python -m pipeline predict"
        )
    return v1.BatchPredictionJob.InputConfig(instances_format="jsonl", gcs_source=v1.GcsSource(uris=[source]))


def _output(to: str) -> v1.BatchPredictionJob.OutputConfig:
    if to.startswith(("bigquery://", "bq://")):
        address = to.partition("://")[2]
        if not re.fullmatch(DATASET, address):
            raise UserError(f"--to must be a dataset bq://project.dataset, got {to!r}")
        return v1.BatchPredictionJob.OutputConfig(
            predictions_format="bigquery", bigquery_destination=v1.BigQueryDestination(output_uri=f"bq://{address}")
        )
    if not to.startswith("gs://"):
        raise UserError(f"--to must be a folder gs://bucket/folder or bq://project.dataset, got {to!r}")
    return v1.BatchPredictionJob.OutputConfig(
        predictions_format="jsonl", gcs_destination=v1.GcsDestination(output_uri_prefix=to)
    )
