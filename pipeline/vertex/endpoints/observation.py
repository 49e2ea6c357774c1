"""Requests to an endpoint: real rows and their known answers, and the errors and latencies of all requests."""

import collections
import datetime
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format, struct_pb2

from pipeline.errors import UserError
from pipeline.settings.tasks import ANSWERS, HIGH, LABEL_SET, LOW
from pipeline.vertex.cloud import PASSING, SECONDS, first_line
from pipeline.vertex.endpoints.endpoint import ServingEndpoint

METRIC = "aiplatform.googleapis.com/prediction/online"
# Cloud Monitoring aligns points to no less.
LEAST_PERIOD = 60
PROBABILITIES = (ANSWERS["binary"], ANSWERS["multiclass"])


class Answer(NamedTuple):
    """Answer of an endpoint to one row."""

    deployed: str  # id of the deployed model that gave it
    prediction: Any  # outputs by name, or the one output


class Observed(NamedTuple):
    """Requests to a deployed model."""

    requests: int
    errors: int
    p95_ms: float | None  # 95th percentile of the latency in milliseconds


@dataclass(frozen=True)
class SmokeRows:
    """Rows with their answers, as the model check has kept them."""

    instances: Sequence[Mapping[str, Any]]  # raw features by name
    answers: Sequence[Mapping[str, Any]]  # outputs of the exported model by name
    # Largest difference of a probability; of another number, relative to the largest of all answers, as in the model
    # check. Chips and versions of TensorFlow round differently.
    tolerance: float

    @classmethod
    def from_json(cls, read: Mapping[str, Any], most: int) -> "SmokeRows":
        """Return the first rows of what the model check wrote."""
        rows = read["rows"][:most]
        return cls([row["instance"] for row in rows], [row["answer"] for row in rows], read["tolerance"])

    def difference(self, row: int, answer: Any) -> str | None:
        """Return how an answer to a row differs; None: it does not."""
        expected = self.answers[row]
        if not isinstance(answer, Mapping):
            answer = {next(iter(expected)): answer} if len(expected) == 1 else {}
        for name, value in sorted(expected.items()):
            if name not in answer:
                return f"no {name} in the answer to row {row}"
            follows = name in ("label", LABEL_SET) and any(key in expected for key in ANSWERS.values())
            # Next to a probability these follow from it, which may lie on either side of the threshold.
            if not follows and not _same(answer[name], value, self._allowed(name)):
                return f"{name} of row {row} is {_text(answer[name])} instead of {_text(value)}"
        return None

    def _allowed(self, name: str) -> float:
        if name in PROBABILITIES:
            return self.tolerance
        name = ANSWERS["regression"] if name in (LOW, HIGH) else name  # as exact as the number that they are around
        return self.tolerance * max(_largest(answer.get(name)) for answer in self.answers)


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


def _same(answer: Any, value: Any, allowed: float) -> bool:
    if isinstance(value, list):
        return (
            isinstance(answer, list)
            and len(answer) == len(value)
            and all(_same(*pair, allowed) for pair in zip(answer, value, strict=True))
        )
    if _is_number(value) and _is_number(answer):
        # A server writes a float32 with as few digits as tell it apart.
        return math.isclose(answer, value, rel_tol=1e-6, abs_tol=allowed)
    return bool(answer == value)


def _largest(value: Any) -> float:
    if isinstance(value, list):
        return max(map(_largest, value), default=0.0)
    return abs(value) if _is_number(value) else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _text(value: Any) -> str:
    if not _is_number(value):
        return repr(value)
    return f"{value:.3g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"
