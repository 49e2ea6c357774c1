"""Monitoring on Vertex AI: a job of one task that holds what the endpoint was asked against the training data.

A schedule starts it. The requests are those that the endpoint logs to BigQuery (``Endpoint.log_to``), the training
statistics those that the run kept whose model has most of the traffic. A crossed limit fails the task, which is what
Google Cloud's alerts see, or starts the pipeline.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as v1
from google.cloud import bigquery
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import version
from tfx.dsl.io import fileio

from pipeline.errors import UserError
from pipeline.graph import staged_schema
from pipeline.settings.config import PipelineConfig
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.repository import in_repository
from pipeline.settings.target import Target
from pipeline.validation import reference, serving_skew
from pipeline.validation.findings import Finding, to_json
from pipeline.validation.request_rows import CROSSED, FINDINGS, MIN_ROWS, ROWS, WITHIN, Asked, lines_of
from pipeline.validation.statistics import Remedies
from pipeline.vertex import MONITOR
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.pipelines import plain_tasks
from pipeline.vertex.pipelines.compile import staged_uploads, write_compiled
from pipeline.vertex.pipelines.schedules import start_now
from pipeline.vertex.settings import endpoints

logger = logging.getLogger("pipeline.vertex")

DAYS = 7


def name_of(pipeline: str) -> str:
    """The name of a pipeline's monitoring, and of its schedule."""
    return f"{pipeline.replace('_', '-')}-monitor"


def compile(config: PipelineConfig, target: Target, out: Path, retrain: bool) -> None:
    """Writes the job and what to upload for it, as ``pipeline.vertex.pipelines.compile`` does for the pipeline.

    Args:
        config: Of the pipeline whose model is asked.
        target: With an endpoint that logs its requests.
        out: Folder.
        retrain: Whether a crossed limit starts the pipeline, by its schedule's job.

    Raises:
        UserError: there is no endpoint, log or reviewed schema.
    """
    vertex = target.vertex
    if vertex is None or vertex.endpoint is None or not vertex.endpoint.log_to:
        raise UserError(
            "monitoring reads the requests that the endpoint logs; give --endpoint FILE whose ENDPOINT has "
            'log_to="bq://project.dataset.table"'
        )
    if not config.schema:
        raise UserError(
            "monitoring needs a reviewed schema, whose skew_comparators are the limits; write one with "
            "python -m pipeline schema and name it in the config"
        )
    name = name_of(config.name)
    arguments = ["--config", plain_tasks.config_to_json(config), "--endpoint", vertex.endpoint.to_json()]
    arguments += ["--project", vertex.project, "--region", vertex.region, "--root", target.pipeline_root]
    arguments += ["--schema", staged_schema(Path(config.schema), config.label.name, target)]
    arguments += ["--retrain"] if retrain else []
    container = plain_tasks.container_of(vertex, MONITOR, "pipeline.vertex.pipelines.monitoring", arguments)
    spec = {
        "pipelineInfo": {"name": name},
        "schemaVersion": "2.0.0",
        "sdkVersion": f"tfx-{version.__version__}",
        "root": {"dag": {"tasks": {MONITOR: {"taskInfo": {"name": MONITOR}, "componentRef": {"name": MONITOR}}}}},
        "components": {MONITOR: {"executorLabel": MONITOR}},
        "deploymentSpec": {"executors": {MONITOR: {"container": container}}},
    }
    job = {
        "displayName": name,
        "pipelineSpec": spec,
        "runtimeConfig": {"gcsOutputDirectory": target.pipeline_root},
    }
    write_compiled(out, job, staged_uploads(target))


def main() -> int:
    """Runs the task; returns its exit code."""
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser(prog="python -m pipeline.vertex.pipelines.monitoring", description=__doc__)
    parser.add_argument("--config", required=True, help="the pipeline's config as JSON")
    parser.add_argument("--endpoint", required=True, help="the endpoint's settings as JSON")
    parser.add_argument("--project", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--root", required=True, help="folder of the pipeline's artifacts")
    parser.add_argument("--schema", required=True, help="folder with the reviewed schema")
    parser.add_argument("--retrain", action="store_true", help="start the pipeline when a limit is crossed")
    arguments = parser.parse_args()
    config, _ = plain_tasks.config_from_json(arguments.config)
    cloud = Cloud.connect(arguments.project, arguments.region, endpoints(os.environ))
    crossed = monitor(config, Endpoint.from_json(arguments.endpoint), cloud, arguments.root, arguments.schema)
    if crossed and arguments.retrain:
        print(f"retraining: {start_now(config.name, cloud)}")
        return WITHIN
    return CROSSED if crossed else WITHIN


def monitor(config: PipelineConfig, endpoint: Endpoint, cloud: Cloud, root: str, schema_folder: str) -> bool:
    """Says what was found and writes it below ``root``; returns whether a limit is crossed.

    Raises:
        UserError: there is nothing to compare with.
    """
    asked = read_log(endpoint, cloud)
    if asked is None or len(asked.instances) < MIN_ROWS:
        rows = len(asked.instances) if asked else 0
        print(f"{rows:,} rows in {DAYS} days, at least {MIN_ROWS:,} are needed to judge by: nothing was compared")
        return False
    pushed = f"{root}/_pushed/{config.name}"
    train = reference.read(pushed, str(asked.version), "train")
    if train is None:
        raise UserError(f"no training statistics of version {asked.version} in {pushed}: its run did not end")
    schema = schema_pb2.Schema()
    with fileio.open(f"{schema_folder}/schema.pbtxt") as file:
        text_format.Parse(file.read(), schema)
    folder = f"{root}/_monitor/{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H-%M-%S}"
    remedies = Remedies(config.schema and in_repository(config.schema), folder)
    statistics, found = serving_skew.judged(
        asked.instances, schema, train, config.label.name, config.data_checks, remedies
    )
    _write(folder, statistics, found)
    print("\n".join([*lines_of(asked, found), f"statistics and findings: {folder}"]))
    return any(one.severity == "stop" for one in found)


def read_log(endpoint: Endpoint, cloud: Cloud) -> Asked | None:
    """The newest rows that the deployed model with most of the traffic was asked; None where none is deployed."""
    there = ServingEndpoint(cloud, endpoint).read()
    if not there.traffic_split:
        return None
    most = max(there.traffic_split, key=lambda one: there.traffic_split[one])
    (deployed,) = (one for one in there.deployed_models if one.id == most)
    model = cloud.client(v1.ModelServiceClient).get_model(name=f"{deployed.model}@{deployed.model_version_id}")
    pushed = int(model.artifact_uri.rstrip("/").rpartition("/")[2])
    table = str(endpoint.log_to).removeprefix("bq://")
    # The table is Vertex AI's: cloud.google.com/vertex-ai/docs/predictions/online-prediction-logging
    query = f"""
        SELECT FORMAT_TIMESTAMP('%FT%TZ', logging_time) AS time, request_payload
        FROM `{table}`
        WHERE deployed_model_id = @deployed
          AND logging_time > TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL {DAYS} DAY)
        ORDER BY logging_time DESC
        LIMIT {ROWS}
    """
    address = cloud.endpoints.get("bigquery", "").partition("/bigquery/v2")[0]
    client = bigquery.Client(
        cloud.project, cloud.credentials, client_options={"api_endpoint": address} if address else None
    )
    parameters = [bigquery.ScalarQueryParameter("deployed", "STRING", deployed.id)]
    rows = client.query_and_wait(query, job_config=bigquery.QueryJobConfig(query_parameters=parameters))
    instances: list[dict[str, Any]] = []
    times: list[str] = []
    broken = 0
    for row in rows:
        for text in row["request_payload"]:
            try:
                payload = json.loads(text)
                several = payload.get("instances", [payload])
            except (ValueError, AttributeError):
                broken += 1
                continue
            instances += [one for one in several if isinstance(one, dict)]
            times.append(row["time"])
    if not times:
        return None
    return Asked(pushed, instances[:ROWS][::-1], times[-1], times[0], 0, broken)


def _write(folder: str, statistics: Any, found: list[Finding]) -> None:
    split = f"{folder}/Split-{serving_skew.SPLIT}"
    fileio.makedirs(split)
    with fileio.open(f"{split}/FeatureStats.pb", "wb") as file:
        file.write(statistics.SerializeToString())
    with fileio.open(f"{folder}/{FINDINGS}", "w") as file:
        file.write(to_json(found) + "\n")


if __name__ == "__main__":
    sys.exit(main())
