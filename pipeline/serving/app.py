"""HTTP routes of the server: TensorFlow Serving's REST calls, Vertex AI's container contract, health and metrics.

https://www.tensorflow.org/tfx/serving/api_rest
https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

import asyncio
import contextlib
import functools
import http
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.model import explanations
from pipeline.model.features import Columns, Refused, from_columns, row_count
from pipeline.model.inputs import ANY, KINDS, Input, quoted
from pipeline.model.signatures import Model
from pipeline.serving.answering import Answering, Call, as_json, by_row
from pipeline.serving.bodies import EXPECTED, Bodies
from pipeline.serving.current import Served
from pipeline.settings.image_data import FORMATS
from pipeline.settings.notations import AMOUNT, described

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# TensorFlow Serving's, for models exported with the signatures of Estimators.
LEFT_OUT = ("classify", "regress")
logger = logging.getLogger("pipeline.serve")


def create_app(
    answering: Answering,
    *,
    health_route: str = "/health",
    predict_route: str = "/predict",
    look_every: float = 2.0,
    beside: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext,
) -> Starlette:
    """Return the ASGI application; the context ``beside`` runs another server, such as gRPC."""
    current, bodies = answering.current, Bodies(answering.limits)
    service = _Service(answering, bodies)
    explain = functools.partial(service.predict, to_explain=True)
    paths = ("/v1/models/{name}", "/v1/models/{name}/versions/{version}")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        following = asyncio.create_task(current.follow(look_every))
        async with beside():
            yield
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        bodies.close()
        current.close()

    return Starlette(
        routes=[
            *(Route(f"{path}:predict", service.predict, methods=["POST"]) for path in paths),
            *(Route(f"{path}:explain", explain, methods=["POST"]) for path in paths),
            # Before the routes of models and versions, which match these paths, too.
            *(Route(f"{path}:{{verb}}", service.other_verb, methods=METHODS) for path in paths),
            Route(f"{paths[0]}/labels/{{rest:path}}", service.label, methods=METHODS),
            *(Route(f"{path}/metadata", service.metadata) for path in paths),
            *(Route(path, service.status) for path in paths),
            Route(predict_route, service.predict, methods=["POST"]),
            Route(health_route, service.health),
            Route("/metrics", service.show_metrics),
            Route("/openapi.json", service.description),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        lifespan=lifespan,
    )


class ParsedRequest(NamedTuple):
    """Checked content of a request body."""

    call: Call
    by_row: bool  # answer each row separately
    explained: bool


@dataclass(frozen=True)
class _Service:
    answering: Answering
    bodies: Bodies

    async def predict(self, request: Request, *, to_explain: bool = False) -> Response:
        """Answer and, if requested, explain instances; count the response by its status."""
        status = 500
        try:
            served = self._served(request)
            async with self.bodies.read(request) as body:
                response = await self._answer(body, served, to_explain)
            status = response.status_code
            return response
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            self.answering.metrics.requests.labels(str(status)).inc()

    async def _answer(self, body: bytearray, served: Served, to_explain: bool) -> Response:
        started = time.monotonic()
        try:
            parsed = await self.bodies.parse(body, functools.partial(self._check, served=served, to_explain=to_explain))
        except Refused as refused:
            raise HTTPException(400, str(refused)) from refused
        outputs = await self.answering.outputs(served, parsed.call, started)
        if parsed.explained:
            return _Answer({"explanations" if to_explain else "predictions": explanations.by_row(outputs)})
        if parsed.by_row:
            return _Answer({"predictions": by_row(outputs)})
        return _Answer({"outputs": next(iter(outputs.values())) if len(outputs) == 1 else outputs})

    async def status(self, request: Request) -> Response:
        """Return TensorFlow Serving's model status."""
        served = self._served(request)
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return JSONResponse({"model_version_status": [{"version": str(served.model.number), **state}]})

    async def metadata(self, request: Request) -> Response:
        """Return TensorFlow Serving's model metadata, and the manifest of the version."""
        model = self._served(request).model
        signatures = {name: signature.definition for name, signature in model.signatures.items()}
        spec = {"name": self.answering.current.name, "signature_name": "", "version": str(model.number)}
        metadata = {"signature_def": {"signature_def": signatures}}
        return _Answer({"model_spec": spec, "metadata": metadata, "manifest": model.manifest})

    async def health(self, request: Request) -> Response:
        """Answer 200 as soon as a version is loaded."""
        return JSONResponse({"version": self._served(request).model.number})

    async def show_metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus."""
        return Response(self.answering.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def description(self, request: Request) -> Response:
        """Return the API in OpenAPI, with the features of the current version."""
        served = self._served(request)
        return JSONResponse(describe(self.answering.current.name, served.model, self.answering.limits.instances))

    async def other_verb(self, request: Request) -> Response:
        """Answer an unsupported call, or a supported one by another method than POST, with what to call instead."""
        verb, served = request.path_params["verb"][:40], self.answering.current.served
        path = request.url.path.rpartition(":")[0][:200]
        if verb in ("predict", "explain"):
            content: dict[str, Any] = {"error": f"{request.method} is not answered here; use POST with a body"}
            if served is not None:
                content["error"] += " such as the example"
                content["example"] = {"instances": [served.model.rows.example]}
            return JSONResponse(content, 405, headers={"Allow": "POST"})
        if verb in LEFT_OUT:
            raise HTTPException(501, f":{verb} is left out; ask the same with POST {path}:predict")
        raise HTTPException(404, f"no call :{verb}; there is POST {path}:predict")

    async def label(self, request: Request) -> Response:
        """Answer a request for a label of versions, which are not supported."""
        path = f"/v1/models/{request.path_params['name'][:100]}"
        raise HTTPException(501, f"labels of versions are left out; ask {path} or {path}/versions/NUMBER")

    def _served(self, request: Request) -> Served:
        """Return the version that answers, if it is the one that the path names."""
        return self.answering.served(request.path_params.get("name"), request.path_params.get("version"))

    def _check(self, content: Any, served: Served, to_explain: bool) -> ParsedRequest:
        """Check the content of a body; raise an HTTPException or ``Refused``."""
        if not isinstance(content, dict):
            raise HTTPException(400, f"the body is no JSON object; {EXPECTED}")
        # Vertex AI passes parameters on, and has no call to explain.
        parameters = content.get("parameters")
        explained = parameters.get("explain", False) if isinstance(parameters, dict) and not to_explain else to_explain
        if not isinstance(explained, bool):
            raise HTTPException(400, f'"parameters": expected {{"explain": true}} or false, got {quoted(explained)}')
        signature = self.answering.signature(served, content.get("signature_name", ""), explained=explained)
        if ("instances" in content) == ("inputs" in content):
            raise HTTPException(400, f'expected either "instances" or "inputs"; {EXPECTED}')
        instances, most = content.get("instances"), self.answering.limits.cells
        if "inputs" in content:
            columns: Columns = from_columns(content["inputs"], signature.inputs, most_cells=most)
            self.answering.check_number(row_count(columns), served, signature)
        elif not isinstance(instances, list):
            raise HTTPException(400, f'"instances" is not a list; {EXPECTED}')
        else:
            self.answering.check_number(len(instances), served, signature)
            columns = signature.columns(instances, most)
        call = self.answering.call(served, signature, columns, instances)
        return ParsedRequest(call, by_row="instances" in content, explained=explained)


class _Answer(JSONResponse):
    """JSON of arrays."""

    def render(self, content: Any) -> bytes:
        return as_json(content)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer an HTTPException as TensorFlow Serving does."""
    assert isinstance(error, HTTPException)
    message = error.detail
    path = request.url.path[:200]
    if message == http.HTTPStatus(error.status_code).phrase:  # Starlette's own
        if error.status_code == 404:
            message = f"nothing is at {path}; GET /openapi.json describes the predict call"
        elif error.status_code == 405 and error.headers:
            # Starlette keeps them in a set, whose order differs from process to process.
            allowed = sorted(error.headers.get("Allow", "another").split(", "))
            message = f"{request.method} is not answered at {path}; use {', '.join(allowed)}"
    return JSONResponse({"error": message}, error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    """Answer an internal error; the log has the details."""
    logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse({"error": "an error of the server; its log says more"}, 500)


def describe(name: str, model: Model, max_instances: int) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document."""
    inputs = model.rows.inputs
    instance = {
        "type": "object",
        "properties": {key: _schema(column) for key, column in inputs.items()},
        "required": [key for key, column in inputs.items() if column.required],
        "additionalProperties": False,
    }

    def body(most: int, others: dict[str, Any]) -> dict[str, Any]:
        instances = {"type": "array", "items": instance, "minItems": 1, "maxItems": most}
        return {"type": "object", "properties": {"instances": instances, **others}, "required": ["instances"]}

    error = {"description": 'What is wrong, as {"error": "..."}'}
    calls = {"predict": (body(max_instances, {}), '{"predictions": [...]}, one for each instance')}
    if model.explains:
        flag = {"type": "boolean", "description": f"as :explain does, of at most {explanations.MOST_ROWS} instances"}
        parameters = {"parameters": {"type": "object", "properties": {"explain": flag}}}
        explained = (
            '{"explanations": [{"answer": ..., "average": ..., "contributions": {feature: number, ...}, "errors": '
            "{...}}, ...]}, one for each instance"
        )
        calls["predict"] = (body(max_instances, parameters), calls["predict"][1])
        calls["explain"] = (body(min(max_instances, explanations.MOST_ROWS), {}), explained)
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": str(model.number)},
        "paths": {
            f"/v1/models/{name}:{call}": {
                "post": {
                    "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                    "responses": {
                        "200": {"description": description},
                        **dict.fromkeys(("400", "404", "413", "503"), error),
                    },
                }
            }
            for call, (schema, description) in calls.items()
        },
    }


def _schema(column: Input) -> dict[str, Any]:
    schema = dict(KINDS[column.kind].schema)
    if column.limits:
        longest = 4 * -(-column.limits.max_bytes // 3)
        encoded = {**schema["properties"]["b64"], "contentMediaType": "image/*", "maxLength": longest}
        pixels = f"{' '.join(FORMATS)}; at most {column.limits.max_pixels:,} pixels"
        schema |= {"properties": {"b64": encoded}, "description": pixels}
    if column.is_truth:
        schema = {"anyOf": [schema, {"type": "boolean"}]}
    if column.notation:
        schema |= {"description": f"{described(column.notation)}; text in another one counts as missing"}
        schema |= {"type": ["string", "number"]} if column.notation.startswith(AMOUNT) else {}
    if column.values is not None:
        schema = {"type": "array", "items": schema}
        if column.values != ANY:
            schema |= {"minItems": column.values, "maxItems": column.values}
    return schema if column.required else {"anyOf": [schema, {"type": "null"}]}
