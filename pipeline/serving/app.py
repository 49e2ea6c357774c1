"""HTTP routes of the server: TensorFlow Serving's REST calls, Vertex AI's container contract, health and metrics.

https://www.tensorflow.org/tfx/serving/api_rest
https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.model import explanations
from pipeline.model.features import Columns, Refused, from_columns, row_count
from pipeline.model.inputs import quoted
from pipeline.serving import refusals
from pipeline.serving.answering import EXPECTED, Answering, Call, as_json, by_row
from pipeline.serving.bodies import Bodies
from pipeline.serving.current import Served
from pipeline.serving.description import describe


def create_app(
    answering: Answering,
    *,
    health_route: str = "/health",
    predict_route: str = "/predict",
    look_every: float = 2.0,
    beside: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext,
) -> Starlette:
    """Return the ASGI application; ``beside`` is a context that runs another server, such as gRPC."""
    current, bodies = answering.current, Bodies(answering.limits)
    service = _Service(answering, bodies)
    model = "/v1/models/{name}"
    version = model + "/versions/{version}"

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
class _Asked:
    """Checked content of a request body; ``by_row``: answer each row separately."""

    call: Call
    by_row: bool
    explained: bool


@dataclass(frozen=True)
class _Service:
    answering: Answering
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
            self.answering.metrics.requests.labels(str(status)).inc()

    async def _answered(self, request: Request, to_explain: bool) -> Response:
        served = self._served(request)
        async with self.bodies.read(request) as body:
            return await self._answer(body, served, to_explain)

    async def _answer(self, body: bytearray, served: Served, to_explain: bool) -> Response:
        started = time.monotonic()
        try:
            asked = await self.bodies.parse(body, functools.partial(self._check, served=served, to_explain=to_explain))
        except Refused as refused:
            raise HTTPException(400, str(refused)) from refused
        outputs = await self.answering.outputs(served, asked.call, started)
        if asked.explained:
            return _Answer({"explanations" if to_explain else "predictions": explanations.by_row(outputs)})
        if asked.by_row:
            return _Answer({"predictions": by_row(outputs)})
        return _Answer({"outputs": next(iter(outputs.values())) if len(outputs) == 1 else outputs})

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
                "model_spec": {
                    "name": self.answering.current.name,
                    "signature_name": "",
                    "version": str(served.model.number),
                },
                "metadata": {"signature_def": {"signature_def": signatures}},
                "manifest": served.model.manifest,
            }
        )

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

    def _served(self, request: Request) -> Served:
        """Return the version that answers, if it is the one that the path names."""
        return self.answering.served(request.path_params.get("name"), request.path_params.get("version"))

    def _check(self, content: Any, served: Served, to_explain: bool) -> _Asked:
        """Check the content of a body; raise an HTTPException or ``Refused``."""
        if not isinstance(content, dict):
            raise HTTPException(400, f"the body is no JSON object; {EXPECTED}")
        explained = to_explain or self._asks_to_explain(content)
        signature = self.answering.signature(served, content.get("signature_name", ""), explained=explained)
        if ("instances" in content) == ("inputs" in content):
            raise HTTPException(400, f'expected either "instances" or "inputs"; {EXPECTED}')
        instances, most = content.get("instances"), self.answering.limits.cells
        if "inputs" in content:
            columns: Columns = from_columns(content["inputs"], signature.inputs, most_cells=most)
            self.answering.check_number(row_count(columns), served, signature)
        elif not isinstance(instances, list):
            raise HTTPException(400, f'"instances" is no list; {EXPECTED}')
        else:
            self.answering.check_number(len(instances), served, signature)
            columns = signature.columns(instances, most)
        return _Asked(self.answering.call(served, signature, columns, instances), "instances" in content, explained)

    def _asks_to_explain(self, content: dict[str, Any]) -> bool:
        """Return whether the parameters of a request, which Vertex AI passes on, ask for explanations."""
        parameters = content.get("parameters")
        asked = parameters.get("explain", False) if isinstance(parameters, dict) else False
        if not isinstance(asked, bool):
            raise HTTPException(400, f'"parameters": expected {{"explain": true}} or false, got {quoted(asked)}')
        return asked


class _Answer(JSONResponse):
    """JSON of arrays."""

    def render(self, content: Any) -> bytes:
        return as_json(content)
