"""HTTP routes of the server: TensorFlow Serving's REST calls, Vertex AI's container contract, health and metrics.

https://www.tensorflow.org/tfx/serving/api_rest
https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

import asyncio
import base64
import contextlib
import functools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import tensorflow as tf
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.serving import explanations, refusals
from pipeline.serving.batching import Overloaded
from pipeline.serving.bodies import RETRY, Bodies, Limits
from pipeline.serving.current import Current, Served
from pipeline.serving.description import describe
from pipeline.serving.export_format import EXPLAIN_SIGNATURE, ROWS_SIGNATURE
from pipeline.serving.features import Refused, from_columns, from_instances, row_count
from pipeline.serving.images import facts_by_row, with_checked_images, without_images
from pipeline.serving.inputs import IMAGE, quoted, take_examples
from pipeline.serving.metrics import Metrics
from pipeline.serving.request_log import RequestLog

EXPECTED = 'expected {"instances": [{"feature": value, ...}, ...]}'


def create_app(
    current: Current,
    metrics: Metrics,
    *,
    limits: Limits,
    health_route: str = "/health",
    predict_route: str = "/predict",
    request_log: RequestLog | None = None,
    look_every: float = 2.0,
) -> Starlette:
    """Return the server as an ASGI application.

    Args:
        current: Started.
        metrics: Shown at /metrics.
        limits: Of requests.
        health_route: Vertex AI's AIP_HEALTH_ROUTE.
        predict_route: Vertex AI's AIP_PREDICT_ROUTE.
        request_log: Gets a sample of requests and answers.
        look_every: Seconds between two looks for another version.
    """
    bodies = Bodies(limits)
    service = _Service(current, metrics, limits, request_log, bodies)
    model = "/v1/models/{name}"
    version = model + "/versions/{version}"

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        following = asyncio.create_task(current.follow(look_every))
        yield
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        bodies.close()
        current.close()

    return Starlette(
        routes=[
            Route(model + ":predict", service.predict, methods=["POST"]),
            Route(version + ":predict", service.predict, methods=["POST"]),
            Route(model + ":explain", service.explain, methods=["POST"]),
            Route(version + ":explain", service.explain, methods=["POST"]),
            *refusals.routes(current, model, version),
            Route(model + "/metadata", service.metadata),
            Route(version + "/metadata", service.metadata),
            Route(model, service.status),
            Route(version, service.status),
            Route(predict_route, service.predict, methods=["POST"]),
            Route(health_route, service.health),
            Route("/metrics", service.show_metrics),
            Route("/openapi.json", service.description),
        ],
        exception_handlers={HTTPException: refusals.http_error, Exception: refusals.internal_error},
        lifespan=lifespan,
    )


@dataclass(frozen=True)
class _Call:
    """Content of a request body, checked.

    Attributes:
        signature: To call.
        columns: Of the signature.
        by_row: Whether rows came, and an answer for each is expected.
        instances: The rows for the log, with facts in place of images; None where they are not logged.
        explained: Whether the answers are.
    """

    signature: str
    columns: dict[str, np.ndarray]
    by_row: bool
    instances: list[Any] | None
    explained: bool


@dataclass(frozen=True)
class _Service:
    current: Current
    metrics: Metrics
    limits: Limits
    request_log: RequestLog | None
    bodies: Bodies

    async def predict(self, request: Request) -> Response:
        """Answer instances."""
        return await self._counted(request)

    async def explain(self, request: Request) -> Response:
        """Answer and explain instances."""
        return await self._counted(request, to_explain=True)

    async def _counted(self, request: Request, *, to_explain: bool = False) -> Response:
        """Answer, and count the response by its status."""
        status = 500
        try:
            response = await self._answered(request, to_explain)
            status = response.status_code
            return response
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            self.metrics.requests.labels(str(status)).inc()

    async def _answered(self, request: Request, to_explain: bool) -> Response:
        served = self._served(request)
        async with self.bodies.read(request) as body:
            return await self._answer(body, served, to_explain)

    async def _answer(self, body: bytearray, served: Served, to_explain: bool) -> Response:
        started = time.monotonic()
        try:
            call = await self.bodies.parse(body, functools.partial(self._check, served=served, to_explain=to_explain))
            outputs = await served.batchers[call.signature].predict(call.columns)
        except Refused as refused:
            raise HTTPException(400, str(refused)) from refused
        except tf.errors.OpError as error:
            raise HTTPException(400, f"the model refuses the request: {error.message[:500]}") from error
        except Overloaded as error:
            raise HTTPException(503, "too many rows wait for an answer; try again", RETRY) from error
        explaining = served.explains(call.signature)
        if call.explained:
            response = _Answer({"explanations" if to_explain else "predictions": explanations.by_row(outputs)})
        elif call.by_row:
            response = _Answer({"predictions": _by_row(outputs)})
        else:
            response = _Answer({"outputs": next(iter(outputs.values())) if len(outputs) == 1 else outputs})
        if self.request_log is not None and call.instances is not None:
            # Answers alone: monitoring compares them with those for the test split.
            answers = explanations.split(outputs)[0] if explaining else outputs
            predictions = orjson.loads(_Answer(_by_row(answers)).body)
            self.request_log.add(served.model.number, call.instances, predictions)
        seconds = self.metrics.explain_seconds if explaining else self.metrics.seconds
        self.metrics.rows.inc(row_count(call.columns))
        seconds.observe(time.monotonic() - started)
        return response

    async def status(self, request: Request) -> Response:
        """Return TensorFlow Serving's model status."""
        served = self._served(request)
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return JSONResponse({"model_version_status": [{"version": str(served.model.number), **state}]})

    async def metadata(self, request: Request) -> Response:
        """Return TensorFlow Serving's model metadata, and the manifest of the version."""
        served = self._served(request)
        signatures = {name: signature.definition for name, signature in served.model.signatures.items()}
        return _Answer(
            {
                "model_spec": {"name": self.current.name, "signature_name": "", "version": str(served.model.number)},
                "metadata": {"signature_def": {"signature_def": signatures}},
                "manifest": served.model.manifest,
            }
        )

    async def health(self, request: Request) -> Response:
        """Answer 200 as soon as a version is loaded."""
        return JSONResponse({"version": self._served(request).model.number})

    async def show_metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def description(self, request: Request) -> Response:
        """Return the API in OpenAPI, with the features of the version that answers now."""
        served = self._served(request)
        return JSONResponse(describe(self.current.name, served.model, self.limits.instances))

    def _served(self, request: Request) -> Served:
        """Return the version that answers, if it is the one that the path names."""
        served = self.current.served
        if served is None:
            raise HTTPException(503, "no version is loaded yet")
        name, version = (request.path_params.get(key) for key in ("name", "version"))
        if name is not None and name != self.current.name:
            raise HTTPException(404, f"no model {name[:100]!r}; this server has {self.current.name!r}")
        number = str(served.model.number)
        if version is not None and version != number:
            raise HTTPException(404, f"version {version[:40]!r} is not served; {number} is")
        return served

    def _check(self, content: Any, served: Served, to_explain: bool) -> _Call:
        """Check the content of a body.

        Raises:
            HTTPException: it is no valid request.
            Refused: a row or a column is not valid.
        """
        if not isinstance(content, dict):
            raise HTTPException(400, f"the body is no JSON object; {EXPECTED}")
        explained = to_explain or self._asks_to_explain(content)
        if explained and (reason := explanations.why_none(served.model)):
            raise HTTPException(400, reason)
        name = EXPLAIN_SIGNATURE if explained else content.get("signature_name", "")
        name = ROWS_SIGNATURE if name == "" else name
        if not isinstance(name, str) or name not in served.model.signatures:
            names = ", ".join(served.model.signatures)
            raise HTTPException(400, f"no signature {str(name)[:100]!r}; the model has {names}")
        if ("instances" in content) == ("inputs" in content):
            raise HTTPException(400, f'expected either "instances" or "inputs"; {EXPECTED}')
        inputs, instances = served.model.signatures[name].inputs, content.get("instances")
        by_row = "instances" in content
        if not by_row:
            columns = from_columns(content["inputs"], inputs, most_cells=self.limits.cells)
            self._check_number(row_count(columns), served.explains(name))
        elif not isinstance(instances, list):
            raise HTTPException(400, f'"instances" is no list; {EXPECTED}')
        else:
            self._check_number(len(instances), served.explains(name))
            columns = from_instances(instances, inputs, most_cells=self.limits.cells)
        if any(column.kind == IMAGE for column in inputs.values()):
            known = facts_by_row(columns, inputs)
            instances = instances and without_images(instances, inputs, known)
        elif take_examples(inputs):
            columns = with_checked_images(columns, served.model.rows.inputs)
        return _Call(name, columns, by_row, instances if self.request_log else None, explained)

    def _asks_to_explain(self, content: dict[str, Any]) -> bool:
        """Return whether the parameters of a request, which Vertex AI passes on, ask for explanations."""
        parameters = content.get("parameters")
        asked = parameters.get("explain", False) if isinstance(parameters, dict) else False
        if not isinstance(asked, bool):
            raise HTTPException(400, f'"parameters": expected {{"explain": true}} or false, got {quoted(asked)}')
        return asked

    def _check_number(self, rows: int, explaining: bool) -> None:
        if not rows:
            raise HTTPException(400, f"there are no instances; {EXPECTED}")
        limit = min(self.limits.instances, explanations.MOST_ROWS) if explaining else self.limits.instances
        if rows > limit:
            raise HTTPException(
                413, f"{rows:,} instances; at most {limit:,} in a request: send several, or use pipeline predict"
            )


class _Answer(JSONResponse):
    """JSON of arrays: no more digits than tell a float32 apart, and null for NaN and infinity, which JSON lacks."""

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, default=_to_json, option=orjson.OPT_SERIALIZE_NUMPY)


def _by_row(outputs: dict[str, np.ndarray]) -> Any:
    """Return outputs by name for each row; of a model with one output the values alone, as TensorFlow Serving does."""
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    return [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]


def _to_json(value: np.ndarray | bytes) -> Any:
    """Return an array of texts as lists; bytes that are no text in TensorFlow Serving's way."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
