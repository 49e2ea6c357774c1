"""Batch prediction on Vertex AI: a version of the registry answers the rows of a table or of files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import PASSING, Cloud
from pipeline.vertex.endpoints.registry import Version

ENDED = frozenset(
    {
        v1.JobState.JOB_STATE_SUCCEEDED,
        v1.JobState.JOB_STATE_PARTIALLY_SUCCEEDED,
        v1.JobState.JOB_STATE_FAILED,
        v1.JobState.JOB_STATE_CANCELLED,
        v1.JobState.JOB_STATE_EXPIRED,
    }
)
# What Vertex AI calls the formats, by the ending of the files.
FORMATS = {".jsonl": "jsonl", ".csv": "csv", ".tfrecord": "tf-record", ".tfrecord.gz": "tf-record-gzip"}
TABLE = r"[^.\s/]+\.[^.\s]+\.[^.\s]+"


@dataclass(frozen=True)
class Answered:
    """A batch job that has ended.

    Attributes:
        name: "projects/P/locations/R/batchPredictionJobs/ID".
        to: Folder or table with the answers.
        rows: How many were answered.
        failed: How many were not.
    """

    name: str
    to: str
    rows: int
    failed: int


def predict(
    version: Version,
    source: str,
    to: str,
    leave_out: str,
    vertex: Vertex,
    cloud: Cloud,
    said: Callable[[str], None],
    poll: float = 10.0,
) -> Answered:
    """Asks a version all rows of a source and waits for the end.

    Args:
        version: Of the registry.
        source: "bigquery://project.dataset.table", or files "gs://bucket/folder/*.jsonl" (also .csv, .tfrecord).
        to: "bq://project.dataset", or a folder gs://...
        leave_out: Column that the model does not take, the label; CSV and TFRecord files have to come without it.
        vertex: As whom and with which key and labels it runs, and on which machines: those of its endpoint.
        cloud: Where.
        said: Told the job and its states.
        poll: Seconds between two looks.

    Raises:
        UserError: the source is in no format that Vertex AI takes, or the job failed.
    """
    table = source.partition("://")[2] if source.startswith(("bigquery://", "bq://")) else None
    endpoint = vertex.endpoint or Endpoint("batch")
    machine = v1.MachineSpec(machine_type=endpoint.machine_type)
    if endpoint.accelerator:
        machine.accelerator_type = v1.AcceleratorType[endpoint.accelerator]
        machine.accelerator_count = endpoint.accelerators
    job = v1.BatchPredictionJob(
        display_name=f"{version.entry.rpartition('/')[2]}-{version.id}",
        model=version.name,
        input_config=_input(source, table),
        output_config=_output(to),
        # A row is an object with the features by name, as on the endpoint.
        instance_config=v1.BatchPredictionJob.InstanceConfig(instance_type="object"),
        dedicated_resources=v1.BatchDedicatedResources(
            machine_spec=machine, starting_replica_count=endpoint.min_replicas, max_replica_count=endpoint.max_replicas
        ),
        service_account=endpoint.service_account or vertex.service_account or "",
        labels=dict(vertex.labels),
    )
    if table or source.endswith(".jsonl"):
        job.instance_config.excluded_fields = [leave_out]
    if vertex.encryption_key:
        job.encryption_spec = v1.EncryptionSpec(kms_key_name=vertex.encryption_key)
    client = cloud.client(v1.JobServiceClient)
    made = client.create_batch_prediction_job(parent=cloud.parent, batch_prediction_job=job)
    said(f"version {version.id} answers {source}\n  job  {made.name}")
    seen = None
    while made.state not in ENDED:
        if made.state != seen:
            seen = made.state
            said(f"  {made.state.name.removeprefix('JOB_STATE_').lower()}")
        time.sleep(poll)
        try:
            made = client.get_batch_prediction_job(name=made.name)
        except PASSING as error:
            said(f"  no answer from Vertex AI ({error}); the job goes on, trying again")
    if made.state not in (v1.JobState.JOB_STATE_SUCCEEDED, v1.JobState.JOB_STATE_PARTIALLY_SUCCEEDED):
        raise UserError(
            f"the batch job ended with {made.state.name}: {made.error.message or 'no reason given'}; {made.name}"
        )
    info, stats = made.output_info, made.completion_stats
    return Answered(
        made.name,
        info.gcs_output_directory or f"{info.bigquery_output_dataset}.{info.bigquery_output_table}",
        stats.successful_count,
        stats.failed_count + stats.incomplete_count,
    )


def _input(source: str, table: str | None) -> v1.BatchPredictionJob.InputConfig:
    if table is not None:
        if not re.fullmatch(TABLE, table):
            raise UserError(f"--batch-predict takes a table bigquery://project.dataset.table, got {source!r}")
        return v1.BatchPredictionJob.InputConfig(
            instances_format="bigquery", bigquery_source=v1.BigQuerySource(input_uri=f"bq://{table}")
        )
    ending = next((one for one in sorted(FORMATS, key=len, reverse=True) if source.endswith(one)), None)
    if ending is None or not source.startswith("gs://"):
        raise UserError(
            f"Vertex AI takes no rows from {source!r} for batch prediction: expected bigquery://project.dataset.table, "
            f"or files gs://bucket/folder/*ENDING with one of {', '.join(FORMATS)}. Parquet: load it as a table first, "
            "bq load --source_format=PARQUET; files here: python -m pipeline predict"
        )
    return v1.BatchPredictionJob.InputConfig(instances_format=FORMATS[ending], gcs_source=v1.GcsSource(uris=[source]))


def _output(to: str) -> v1.BatchPredictionJob.OutputConfig:
    if to.startswith(("bigquery://", "bq://")):
        address = to.partition("://")[2]
        return v1.BatchPredictionJob.OutputConfig(
            predictions_format="bigquery", bigquery_destination=v1.BigQueryDestination(output_uri=f"bq://{address}")
        )
    if not to.startswith("gs://"):
        raise UserError(f"--to must be a folder gs://bucket/folder or bq://project.dataset, got {to!r}")
    return v1.BatchPredictionJob.OutputConfig(
        predictions_format="jsonl", gcs_destination=v1.GcsDestination(output_uri_prefix=to)
    )
