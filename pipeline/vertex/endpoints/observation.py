"""How the versions on an endpoint answer: asked ourselves, and what Cloud Monitoring has seen of all requests."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format, struct_pb2

from pipeline.errors import UserError
from pipeline.vertex.cloud import PASSING, SECONDS
from pipeline.vertex.endpoints.endpoint import ServingEndpoint

METRIC = "aiplatform.googleapis.com/prediction/online"
# Cloud Monitoring aligns points to no less.
LEAST_PERIOD = 60


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        deployed: Id of the deployed model that gave it.
        prediction: Outputs by name, or the one output.
    """

    deployed: str
    prediction: Any


@dataclass(frozen=True)
class Observed:
    """What was seen of a deployed model.

    Attributes:
        requests: How many it was asked.
        errors: How many of these failed.
        p95_ms: 95th percentile of the latency, in milliseconds; None: nothing was measured.
    """

    requests: int
    errors: int
    p95_ms: float | None


class Prober:
    """Asks an endpoint one row at a time, as its users do.

    Args:
        serving: The endpoint.
    """

    def __init__(self, serving: ServingEndpoint):
        self._name = serving.name
        self._cloud = serving.cloud
        self._address = serving.settings.address
        self._client = None if self._address else self._cloud.client(v1.PredictionServiceClient)

    def ask(self, instance: Mapping[str, Any]) -> Answer:
        """The answer to a row.

        Raises:
            GoogleAPICallError: it is refused, or fails.
        """
        if self._client is None:  # Private Service Connect leads to the endpoint's own address, which speaks REST
            said = self._cloud.ask_url(f"{self._address}/v1/{self._name}:predict", {"instances": [dict(instance)]})
            return Answer(said.get("deployedModelId", ""), said["predictions"][0])
        value = json_format.ParseDict(dict(instance), struct_pb2.Value())
        answer = self._client.predict(endpoint=self._name, instances=[value], timeout=SECONDS)
        prediction = v1.PredictResponse.pb(answer).predictions[0]
        return Answer(answer.deployed_model_id, json_format.MessageToDict(prediction))


def monitored(serving: ServingEndpoint, since: float) -> dict[str, Observed]:
    """What Cloud Monitoring has of each deployed model.

    Args:
        serving: The endpoint.
        since: Seconds since the epoch.

    Raises:
        UserError: it may not be read, or does not answer.
    """
    try:
        counts = _series(serving, since, "response_count", "REDUCE_SUM", ("deployed_model_id", "response_code"))
        latencies = _series(
            serving,
            since,
            "prediction_latencies",
            "REDUCE_PERCENTILE_95",
            ("deployed_model_id",),
            'latency_type="total"',
        )
    except (exceptions.GoogleAPICallError, *PASSING) as error:
        raise UserError(
            f"the errors and latencies of {serving.name} cannot be read ({getattr(error, 'message', None) or error}); "
            "the service account of the tasks needs the role roles/monitoring.viewer, and the API "
            "monitoring.googleapis.com must be enabled"
        ) from error
    requests: dict[str, int] = {}
    errors: dict[str, int] = {}
    for labels, values in counts:
        deployed, number = labels.get("deployed_model_id", ""), int(sum(values))
        requests[deployed] = requests.get(deployed, 0) + number
        if not labels.get("response_code", "").startswith("2"):
            errors[deployed] = errors.get(deployed, 0) + number
    slowest = {
        labels.get("deployed_model_id", ""): max(values) / 1000 for labels, values in latencies if values
    }  # from us
    return {key: Observed(number, errors.get(key, 0), slowest.get(key)) for key, number in requests.items()}


def _series(
    serving: ServingEndpoint, since: float, metric: str, reducer: str, by: Sequence[str], only: str | None = None
) -> list[tuple[Mapping[str, str], list[float]]]:
    """Labels and values of the time series of a metric: cloud.google.com/monitoring/api/metrics_gcp, aiplatform."""
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
    answer = serving.cloud.ask("monitoring", f"v3/projects/{project}/timeSeries?{urlencode(query, doseq=True)}")
    return [
        (one.get("metric", {}).get("labels", {}), [_number(point["value"]) for point in one.get("points", [])])
        for one in answer.get("timeSeries", [])
    ]


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile; None of nothing."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else None


def _number(value: Mapping[str, Any]) -> float:
    return float(value.get("int64Value", value.get("doubleValue", 0)))


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
