"""Answer unsupported calls with a JSON error that says what to call instead."""

import http
import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.serving.current import Current

logger = logging.getLogger("pipeline.serve")
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# TensorFlow Serving's, for models exported with the signatures of Estimators.
LEFT_OUT = ("classify", "regress")


def routes(current: Current, model: str, version: str) -> list[Route]:
    """Return routes of unsupported calls, to stand before the routes of model and version, which match them too."""

    async def other_verb(request: Request) -> Response:
        verb = request.path_params["verb"][:40]
        path = request.url.path.rpartition(":")[0][:200]
        if verb in ("predict", "explain"):
            content: dict[str, Any] = {"error": f"{request.method} is not answered here; use POST with a body"}
            if current.served is not None:
                content["error"] += " such as the example"
                content["example"] = {"instances": [current.served.model.rows.example]}
            return JSONResponse(content, 405, headers={"Allow": "POST"})
        if verb in LEFT_OUT:
            raise HTTPException(501, f":{verb} is left out; ask the same with POST {path}:predict")
        raise HTTPException(404, f"no call :{verb}; there is POST {path}:predict")

    async def label(request: Request) -> Response:
        path = f"/v1/models/{request.path_params['name'][:100]}"
        raise HTTPException(501, f"labels of versions are left out; ask {path} or {path}/versions/NUMBER")

    return [
        Route(f"{model}:{{verb}}", other_verb, methods=METHODS),
        Route(f"{version}:{{verb}}", other_verb, methods=METHODS),
        Route(f"{model}/labels/{{rest:path}}", label, methods=METHODS),
    ]


async def http_error(request: Request, error: Exception) -> Response:
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


async def internal_error(request: Request, error: Exception) -> Response:
    """Answer an internal error; the log has the details."""
    logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse({"error": "an error of the server; its log says more"}, 500)
