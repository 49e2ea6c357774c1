"""Rows of a batch prediction job as they reach the model, converted as BatchPredictionJob.InstanceConfig says.

Types of CSV cells, and the body of the requests: cloud.google.com/vertex-ai/docs/predictions/get-batch-predictions.
"""

import base64
import csv
import gzip
import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.cloud import aiplatform_v1 as v1

from tests.fakes.checks import require

BATCH = 64  # "The default value is 64" (ManualBatchTuningParameters.batch_size)
WITH_FIELDS = ("jsonl", "bigquery", "tf-record", "tf-record-gzip")
# Takes the body of a request, returns its status and the body of the response.
Container = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


@dataclass
class Answered:
    """Rows that came back.

    Attributes:
        predictions: Of the rows that were answered.
        errors: The container's message, once for every row that was not.
    """

    predictions: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def address_of(job: v1.BatchPredictionJob) -> str:
    """The place that a job reads."""
    uris = job.input_config.gcs_source.uris
    return str(uris[0]) if uris else str(job.input_config.bigquery_source.input_uri)


def check_instance_config(job: v1.BatchPredictionJob) -> None:
    """Check the comments of InstanceConfig."""
    config, wanted = job.instance_config, job.input_config.instances_format
    require(config.instance_type in ("", "object", "array"), f"instance_config.instance_type {config.instance_type!r}")
    # "When included_fields is populated, excluded_fields must be empty", and the other way round.
    require(not (config.included_fields and config.excluded_fields), "included_fields and excluded_fields")
    fields = [*config.included_fields, *config.excluded_fields]
    # "The input must be JSONL with objects at each line, BigQuery or TfRecord".
    require(not fields or wanted in WITH_FIELDS, f"instance_config: no included or excluded fields with {wanted}")


def instances_of(job: v1.BatchPredictionJob, content: Any) -> list[Any]:
    """The instances that the model gets."""
    wanted, kind = job.input_config.instances_format, job.instance_config.instance_type
    if wanted == "bigquery":  # without a type "the behavior is the same as array"
        rows = [_chosen(row, job) for row in content]
        return rows if kind == "object" else [list(row.values()) for row in rows]
    if wanted == "jsonl":  # without a type "determined by each line of the input"
        rows = [json.loads(line) for line in content.splitlines() if line]
        # "each line of the JSONL input must be an object".
        require(kind != "object" or all(isinstance(row, dict) for row in rows), "a line is no object")
        rows = [_chosen(row, job) if isinstance(row, dict) else row for row in rows]
        return [list(row.values()) if kind == "array" and isinstance(row, dict) else row for row in rows]
    # instance_type "does not apply to csv, file-list, tf-record, or tf-record-gzip".
    if wanted == "csv":
        # The first line is a header; "values that aren't quoted are read as floating point numbers".
        return list(csv.reader(io.StringIO(content), quoting=csv.QUOTE_NONNUMERIC))[1:]
    if wanted == "file-list":  # "each row is the Cloud Storage URI to a file"; here they are there by their URI
        uris, files = content
        records: Iterable[bytes] = [files[uri] for uri in uris.splitlines()]
    else:
        require(wanted.startswith("tf-record"), f"no {wanted} here")
        records = _records(gzip.decompress(content) if wanted.endswith("gzip") else content)
    # "converted to an object in the format of {"b64": <value>}".
    return [{"b64": base64.b64encode(record).decode()} for record in records]


def answer(instances: Sequence[Any], container: Container, at_once: int = 0) -> Answered:
    """Return the container's answers; a request that it refuses fails all of its rows."""
    answered, at_once = Answered(), at_once or BATCH
    for start in range(0, len(instances), at_once):
        batch = list(instances[start : start + at_once])
        status, body = container({"instances": batch})
        if status == 200:
            answered.predictions += body["predictions"]
        else:
            answered.errors += [str(body)] * len(batch)
    return answered


def _chosen(row: dict[str, Any], job: v1.BatchPredictionJob) -> dict[str, Any]:
    config = job.instance_config
    # A key is "similar to specifying this name of the field in excluded_fields".
    excluded = {*config.excluded_fields, config.key_field}
    if config.included_fields:
        return {name: row[name] for name in config.included_fields if name in row}
    return {name: value for name, value in row.items() if name not in excluded}


def _records(content: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: length, its checksum, data, their checksum."""
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        yield content[12 : 12 + length]
        content = content[16 + length :]
