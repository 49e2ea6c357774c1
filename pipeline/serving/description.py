"""Describe the calls in OpenAPI, with the features that the model takes."""

from typing import Any

from pipeline.model.explanations import MOST_ROWS
from pipeline.model.inputs import ANY, KINDS, Input
from pipeline.model.signatures import Model
from pipeline.settings.image_data import FORMATS
from pipeline.settings.notations import described


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
        asked = {"type": "boolean", "description": f"as :explain does, of at most {MOST_ROWS} instances"}
        parameters = {"parameters": {"type": "object", "properties": {"explain": asked}}}
        explained = (
            '{"explanations": [{"answer": ..., "average": ..., "contributions": {feature: number, ...}, "errors": '
            "{...}}, ...]}, one for each instance"
        )
        calls["predict"] = (body(max_instances, parameters), calls["predict"][1])
        calls["explain"] = (body(min(max_instances, MOST_ROWS), {}), explained)
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
    if column.notation:
        schema |= {"description": f"{described(column.notation)}; text in another one counts as missing"}
    if column.values is not None:
        schema = {"type": "array", "items": schema}
        if column.values != ANY:
            schema |= {"minItems": column.values, "maxItems": column.values}
    return schema if column.required else {"anyOf": [schema, {"type": "null"}]}
