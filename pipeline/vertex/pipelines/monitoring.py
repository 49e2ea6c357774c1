"""Monitoring on Vertex AI: a job of one task that compares the endpoint's requests with the training data.

A schedule starts it. A crossed limit fails the task, which Google Cloud's alerts see, or starts the pipeline.
"""

import datetime
import json
import logging
import sys
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as v1
from google.cloud import bigquery
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import version

from pipeline import filesystem
from pipeline.components.schema_gen import stage_schema
from pipeline.errors import UserError
from pipeline.quality import reference, serving_skew
from pipeline.quality.request_rows import CROSSED, MIN_ROWS, ROWS, WITHIN, RequestRows
from pipeline.quality.statistics import Remedies
from pipeline.serving.image_inputs import logged
from pipeline.settings import checks
from pipeline.settings.config import PipelineConfig
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.image_data import Images
from pipeline.settings.machines import MONITOR
from pipeline.settings.repository import in_repository
from pipeline.settings.target import Target
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.pipelines.compile import add_task, config_to_json, staged_uploads, write_compiled
from pipeline.vertex.pipelines.submit import start_now

DAYS = 7
# Newest requests that are read with their images, some gigabytes.
IMAGE_ROWS = 10_000


def name_of(pipeline: str) -> str:
    """Return the name of a pipeline's monitoring, and of its schedule."""
    return f"{pipeline.replace('_', '-')}-monitor"


def compile(config: PipelineConfig, target: Target, out: Path, retrain: bool) -> None:
    """Write the job and the list of files to upload, as ``pipeline.vertex.pipelines.compile`` does for the pipeline."""
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
    # What ``main`` reads.
    given = {
        "config": config_to_json(config),
        "endpoint": checks.to_json(vertex.endpoint),
        "project": vertex.project,
        "region": vertex.region,
        "root": target.pipeline_root,
        "schema": stage_schema(config, target),
        "retrain": retrain,
    }
    spec: dict[str, Any] = {
        "pipelineInfo": {"name": name},
        "schemaVersion": "2.0.0",
        "sdkVersion": f"tfx-{version.__version__}",
        "root": {"dag": {"tasks": {}}},
        "components": {},
        "deploymentSpec": {"executors": {}},
    }
    add_task(spec, MONITOR, "pipeline.vertex.pipelines.monitoring", [json.dumps(given)], vertex)
    runtime = {"gcsOutputDirectory": target.pipeline_root}
    job = {"displayName": name, "pipelineSpec": spec, "runtimeConfig": runtime}
    write_compiled(out, job, staged_uploads(target))


def main() -> int:
    """Run the task with its settings, JSON in the one argument; return its exit code."""
    logging.basicConfig(level=logging.INFO)
    given = json.loads(sys.argv[1])
    config = checks.from_json(PipelineConfig, given["config"])
    cloud = Cloud.connect(given["project"], given["region"])
    crossed = monitor(config, checks.from_json(Endpoint, given["endpoint"]), cloud, given["root"], given["schema"])
    if crossed and given["retrain"]:
        print(f"retraining: {start_now(config.name, cloud)}")
        return WITHIN
    return CROSSED if crossed else WITHIN


def monitor(config: PipelineConfig, endpoint: Endpoint, cloud: Cloud, root: str, schema_folder: str) -> bool:
    """Print the findings and write them below ``root``; return whether a limit is crossed."""
    requests = read_log(endpoint, cloud, config.data.images)
    if requests is None or len(requests.instances) < MIN_ROWS:
        rows = len(requests.instances) if requests else 0
        print(f"{rows:,} rows in {DAYS} days, at least {MIN_ROWS:,} are needed to judge by: nothing was compared")
        return False
    pushed = f"{root}/_pushed/{config.name}"
    train = reference.read(pushed, str(requests.version), "train")
    if train is None:
        raise UserError(f"no training statistics of version {requests.version} in {pushed}: its run did not end")
    schema = text_format.Parse(filesystem.read_text(f"{schema_folder}/schema.pbtxt"), schema_pb2.Schema())
    folder = f"{root}/_monitor/{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H-%M-%S}"
    remedies = Remedies(config.schema and in_repository(config.schema), folder)
    of_test = reference.read(pushed, str(requests.version), reference.PREDICTIONS)
    lines, crossed = serving_skew.report(requests, schema, train, config, remedies, folder, of_test)
    print("\n".join(lines))
    return crossed


def read_log(endpoint: Endpoint, cloud: Cloud, images: Images | None = None) -> RequestRows | None:
    """Return the newest requests of the deployed model with most of the traffic; None where none is deployed."""
    state = ServingEndpoint(cloud, endpoint).read()
    if not state.traffic_split:
        return None
    busiest = max(state.traffic_split, key=lambda key: state.traffic_split[key])
    (deployed,) = (model for model in state.deployed_models if model.id == busiest)
    entry = deployed.model.partition("@")[0]  # the name comes with the version or without
    model = cloud.client(v1.ModelServiceClient).get_model(name=f"{entry}@{deployed.model_version_id}")
    pushed = int(model.artifact_uri.rstrip("/").rpartition("/")[2])
    table = str(endpoint.log_to).removeprefix("bq://")
    limit = IMAGE_ROWS if images else ROWS
    # The table is Vertex AI's: cloud.google.com/vertex-ai/docs/predictions/online-prediction-logging
    query = f"""
        SELECT FORMAT_TIMESTAMP('%FT%TZ', logging_time) AS time, request_payload, response_payload
        FROM `{table}`
        WHERE deployed_model_id = @deployed
          AND logging_time > TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL {DAYS} DAY)
        ORDER BY logging_time DESC
        LIMIT {limit}
    """
    address = cloud.endpoints.get("bigquery", "").partition("/bigquery/v2")[0]
    client = bigquery.Client(
        cloud.project, cloud.credentials, client_options={"api_endpoint": address} if address else None
    )
    parameters = [bigquery.ScalarQueryParameter("deployed", "STRING", deployed.id)]
    rows = client.query_and_wait(query, job_config=bigquery.QueryJobConfig(query_parameters=parameters))
    instances: list[dict[str, Any]] = []
    predictions: list[Any] = []
    times: list[str] = []
    broken = 0
    for row in rows:
        requests = [_rows_of(text, "instances") for text in row["request_payload"]]
        given = [instance for request in requests if request for instance in request if isinstance(instance, dict)]
        answers = [answer for text in row["response_payload"] for answer in _rows_of(text, "predictions") or ()]
        # Of an image only the facts stay: ten thousand of them take too much memory.
        instances += [logged(instance, images) if images else instance for instance in given]
        predictions += answers if len(answers) == len(given) else [None] * len(given)
        times += [row["time"]] * (len(requests) - requests.count(None))
        broken += requests.count(None)
        if len(instances) >= limit:
            break
    if not times:
        return None
    return RequestRows(pushed, instances[:limit][::-1], times[-1], times[0], 0, broken, predictions[:limit][::-1])


def _rows_of(payload: str, key: str) -> list[Any] | None:
    """Return the rows of a logged body, or of a payload that is a row itself; None of what is no whole JSON object."""
    try:
        content = json.loads(payload)
    except ValueError:
        return None
    if not isinstance(content, dict):
        return None if key == "instances" else [content]
    rows = content.get(key, [content])
    return rows if isinstance(rows, list) else None


if __name__ == "__main__":
    sys.exit(main())
