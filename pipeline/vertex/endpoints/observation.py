"""Errors and latencies of the versions on an endpoint: of our own requests, and of all by Cloud Monitoring."""

import collections
import datetime
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format, struct_pb2

from pipeline.errors import UserError
from pipeline.vertex.cloud import PASSING, SECONDS, first_line
from pipeline.vertex.endpoints.endpoint import ServingEndpoint

METRIC = "aiplatform.googleapis.com/prediction/online"
# Cloud Monitoring aligns points to no less.
LEAST_PERIOD = 60


class Answer(NamedTuple):
    """Answer of an endpoint to one row."""

    deployed: str  # id of the deployed model that gave it
    prediction: Any  # outputs by name, or the one output


class Observed(NamedTuple):
    """Requests to a deployed model."""

    requests: int
    errors: int
    p95_ms: float | None  # 95th percentile of the latency in milliseconds


def predict(serving: ServingEndpoint, instance: Mapping[str, Any]) -> Answer:
    """Ask the endpoint one row, as its users do."""
    if serving.address:
        url = f"{serving.address}/v1/{serving.name}:predict"
        content = serving.cloud.request_url(url, {"instances": [dict(instance)]})
        return Answer(content.get("deployedModelId", ""), content["predictions"][0])
    value = json_format.ParseDict(dict(instance), struct_pb2.Value())
    response = serving.predictions.predict(endpoint=serving.name, instances=[value], timeout=SECONDS)
    prediction = v1.PredictResponse.pb(response).predictions[0]
    return Answer(response.deployed_model_id, json_format.MessageToDict(prediction))


def monitored(serving: ServingEndpoint, since: float) -> dict[str, Observed]:
    """Return the requests to each deployed model since a time in seconds since the epoch, from Cloud Monitoring."""
    key = "deployed_model_id"
    try:
        counts = _series(serving, since, "response_count", "REDUCE_SUM", (key, "response_code"))
        total = 'latency_type="total"'
        latencies = _series(serving, since, "prediction_latencies", "REDUCE_PERCENTILE_95", (key,), total)
    except (exceptions.GoogleAPICallError, *PASSING) as error:
        raise UserError(
            f"the errors and latencies of {serving.name} cannot be read ({first_line(error)}); "
            "the service account of the tasks needs the role roles/monitoring.viewer, and the API "
            "monitoring.googleapis.com must be enabled"
        ) from error
    requests: dict[str, int] = collections.Counter()
    errors: dict[str, int] = collections.Counter()
    for labels, values in counts:
        deployed, number = labels.get(key, ""), int(sum(values))
        requests[deployed] += number
        if not labels.get("response_code", "").startswith("2"):
            errors[deployed] += number
    # Cloud Monitoring has microseconds.
    slowest = {labels.get(key, ""): max(values) / 1000 for labels, values in latencies if values}
    return {
        deployed: Observed(number, errors[deployed], slowest.get(deployed)) for deployed, number in requests.items()
    }


def _series(
    serving: ServingEndpoint, since: float, metric: str, reducer: str, by: Sequence[str], only: str | None = None
) -> list[tuple[Mapping[str, str], list[float]]]:
    """Return labels and values of a metric's time series: cloud.google.com/monitoring/api/metrics_gcp, aiplatform."""
    now = time.time()
    _, project, _, _, _, endpoint = serving.name.split("/")
    conditions = [
        f'metric.type="{METRIC}/{metric}"',
        'resource.type="aiplatform.googleapis.com/Endpoint"',
        f'resource.labels.endpoint_id="{endpoint}"',
        *([f"metric.labels.{only}"] if only else []),
    ]
    query = {
        "filter": " AND ".join(conditions),
        "interval.startTime": _moment(min(since, now - LEAST_PERIOD)),
        "interval.endTime": _moment(now),
        "aggregation.alignmentPeriod": f"{max(LEAST_PERIOD, math.ceil(now - since))}s",
        "aggregation.perSeriesAligner": "ALIGN_DELTA",
        "aggregation.crossSeriesReducer": reducer,
        "aggregation.groupByFields": [f"metric.labels.{name}" for name in by],
    }
    pages = serving.cloud.pages("monitoring", f"v3/projects/{project}/timeSeries?{urlencode(query, doseq=True)}")
    return [
        (series.get("metric", {}).get("labels", {}), [_number(point["value"]) for point in series.get("points", [])])
        for page in pages
        for series in page.get("timeSeries", [])
    ]


def p95(values: Sequence[float]) -> float | None:
    """Return the 95th percentile; None of nothing."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else None


def _number(value: Mapping[str, Any]) -> float:
    return float(value.get("int64Value", value.get("doubleValue", 0)))


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
