"""The predict call in OpenAPI's words, with the features that the model takes."""

from __future__ import annotations

from typing import Any

from pipeline.serving.features import EXAMPLES, Input
from pipeline.serving.model import Model

_BASE64 = {
    "type": "object",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "required": ["b64"],
    "additionalProperties": False,
}
_TYPES: dict[str, dict[str, Any]] = {
    "integers": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "floats": {"type": "number"},
    "text": {"type": "string"},
    EXAMPLES: _BASE64,
}


def describe(name: str, model: Model, most_instances: int) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    inputs = model.rows.inputs
    instance = {
        "type": "object",
        "properties": {key: _schema(one) for key, one in inputs.items()},
        "required": [key for key, one in inputs.items() if one.required],
        "additionalProperties": False,
    }
    instances = {"type": "array", "items": instance, "minItems": 1, "maxItems": most_instances}
    body = {"type": "object", "properties": {"instances": instances}, "required": ["instances"]}
    error = {"description": 'What is wrong, as {"error": "..."}'}
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": str(model.number)},
        "paths": {
            f"/v1/models/{name}:predict": {
                "post": {
                    "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                    "responses": {
                        "200": {"description": '{"predictions": [...]}, one for each instance'},
                        **dict.fromkeys(("400", "404", "413", "503"), error),
                    },
                }
            }
        },
    }


def _schema(one: Input) -> dict[str, Any]:
    schema = _TYPES[one.kind]
    if one.values is not None:
        schema = {"type": "array", "items": schema, "minItems": one.values, "maxItems": one.values}
    return schema if one.required else {"anyOf": [schema, {"type": "null"}]}
