"""Calls that the server does not answer: each gets a JSON error that says what to ask instead."""

from __future__ import annotations

import http
import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.serving.current import Current
from pipeline.serving.features import EXAMPLES, Input

logger = logging.getLogger("pipeline.serve")
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# TensorFlow Serving's, for models exported with the signatures of Estimators.
LEFT_OUT = ("classify", "regress")
ZEROS: dict[str, Any] = {"integers": 0, "floats": 0.0, "text": "", EXAMPLES: {"b64": ""}}


def routes(current: Current, model: str, version: str) -> list[Route]:
    """Make the routes of what TensorFlow Serving has and this server has not, and of ``:predict`` by other methods.

    Args:
        current: The server's model.
        model: Path of a model, with "{name}".
        version: Path of a version of it.

    Returns:
        To stand behind the routes of ``:predict``, and before those of ``model`` and ``version``, which match as well.
    """

    async def verb(request: Request) -> Response:
        asked = request.path_params["verb"][:40]
        path = request.url.path.rpartition(":")[0][:200]
        if asked == "predict":
            content: dict[str, Any] = {"error": f"{request.method} is not answered here; use POST with a body"}
            if current.served is not None:
                content = {
                    "error": f"{content['error']} such as the example",
                    "example": {"instances": [example(current.served.model.rows.inputs)]},
                }
            return JSONResponse(content, 405, headers={"Allow": "POST"})
        if asked in LEFT_OUT:
            raise HTTPException(501, f":{asked} is left out; ask the same with POST {path}:predict")
        raise HTTPException(404, f"no call :{asked}; there is POST {path}:predict")

    async def label(request: Request) -> Response:
        path = f"/v1/models/{request.path_params['name'][:100]}"
        raise HTTPException(501, f"labels of versions are left out; ask {path} or {path}/versions/NUMBER")

    return [
        Route(f"{model}:{{verb}}", verb, methods=METHODS),
        Route(f"{version}:{{verb}}", verb, methods=METHODS),
        Route(f"{model}/labels/{{rest:path}}", label, methods=METHODS),
    ]


def example(inputs: Mapping[str, Input]) -> dict[str, Any]:
    """Make an instance of zeros and empty texts, which has every feature."""
    return {
        name: ZEROS[one.kind] if one.values is None else [ZEROS[one.kind]] * one.values for name, one in inputs.items()
    }


async def http_error(request: Request, error: Exception) -> Response:
    """Answer an error whose message is for the client, in TensorFlow Serving's way."""
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
    """Answer an error that is ours; the log has the details."""
    logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse({"error": "an error of the server; its log says more"}, 500)
