"""The description of the interface at `/openapi.json`: what bodies may hold, and every status that may come back."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from spectr.serve.errors import STATUSES

__all__ = ["describe", "documented"]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ALWAYS = (400, 401, 403, 405, 408, 431, 500, 503)  # statuses that any page may answer with
_OF_BODIES = (404, 413, 415)


def documented(
    body: type[BaseModel] | None, summary: str, *statuses: int, media: Sequence[str] = ("application/json",)
) -> dict[str, Any]:
    """The description of an endpoint whose body is read by `read_body`, as arguments of FastAPI."""
    known = sorted({*_ALWAYS, *statuses, *(_OF_BODIES if body is not None else ())})
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    responses: dict[int | str, Any] = {status: {"description": STATUSES[status], **error} for status in known}
    responses[200] = {"description": "The answer.", "content": {kind: {} for kind in media}}
    found: dict[str, Any] = {"summary": summary, "responses": responses}
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        found["openapi_extra"] = {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        }
    return found


def describe(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The description of all endpoints, which take these bodies."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas: dict[str, Any] = {"Error": _ERROR}
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for body in bodies:
        made = body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= made.pop("$defs", {})
        schemas[body.__name__] = made
    found["components"] = {
        "schemas": schemas,
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    found["security"] = [{}, {"key": []}]
    return found
