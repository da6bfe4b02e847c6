"""The description of the interface at `/openapi.json`: the fields of bodies and responses, headers, and every status
that may come back."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from spectr.serve.errors import STATUSES

__all__ = ["describe", "documented"]

_ALWAYS = (400, 401, 403, 405, 408, 431, 500, 503)  # statuses that any page may answer with
_OF_BODIES = (404, 413, 415)


def _header(name: str, description: str) -> dict[str, Any]:
    """Describe a header of requests."""
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


_REQUEST_ID = _header(
    "X-Request-Id",
    "An id for the request, which the log and the response repeat: 1 to 64 letters, digits, dots, hyphens or "
    "underscores. Default: a random one.",
)
_LAST_EVENT = _header(
    "Last-Event-ID",
    "The id of the last event that a client got before it lost its connection; the response has the events after it. "
    "The body must be the same and have a seed, and `stream` must be true.",
)
_HEADERS: dict[str, Any] = {
    "X-Request-Id": {"description": "The id of the request, as the log has it.", "schema": {"type": "string"}},
    "Retry-After": {"description": "When to retry, in seconds.", "schema": {"type": "integer"}},
    "WWW-Authenticate": {"description": "How to send a key: `Bearer`.", "schema": {"type": "string"}},
}
_HEADERS_OF = {401: ["WWW-Authenticate"], 429: ["Retry-After"], 503: ["Retry-After"]}


def documented(
    body: type[BaseModel] | None, answer: type[BaseModel] | None, summary: str, *statuses: int,
    chunk: type[BaseModel] | None = None, resumes: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The description of an endpoint as arguments of FastAPI: its body, which `read_body` reads, its answer, and the
    events of a stream, which `resumes` if it breaks off. Without an answer the response is plain text."""
    known = sorted({200, *_ALWAYS, *statuses, *(_OF_BODIES if body is not None else ())})
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses: dict[int | str, Any] = {
        status: {
            "description": STATUSES.get(status, "The answer."),
            "headers": {name: _ref("headers", name) for name in ("X-Request-Id", *_HEADERS_OF.get(status, ()))},
            "content": _answered(answer, chunk) if status == 200 else error,
        }
        for status in known
    }
    extra: dict[str, Any] = {"parameters": [_REQUEST_ID, *([_LAST_EVENT] if chunk is not None and resumes else [])]}
    if body is not None:
        content = {"application/json": {"schema": _ref("schemas", body.__name__)}}
        extra["requestBody"] = {"required": True, "content": content}
    return {"summary": summary, "responses": responses, "openapi_extra": extra}


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _answered(answer: type[BaseModel] | None, chunk: type[BaseModel] | None) -> dict[str, Any]:
    """What a response with status 200 holds, by media type. OpenAPI 3.1 has no field for the events of a stream."""
    if answer is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    found = {"application/json": {"schema": _ref("schemas", answer.__name__)}}
    return found if chunk is None else {**found, "text/event-stream": {"x-events": _ref("schemas", chunk.__name__)}}


def describe(app: FastAPI, objects: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The description of all endpoints, whose bodies and answers are these objects."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            for media in operation["responses"]["200"]["content"].values():
                if "$ref" in media.get("schema", {}):  # FastAPI adds what it reads from the type of the function
                    media["schema"] = {"$ref": media["schema"]["$ref"]}
    _, made = models_json_schema([(one, "validation") for one in objects], ref_template="#/components/schemas/{model}")
    key = {"type": "http", "scheme": "bearer", "description": "A key of the server, if it has any."}
    found["components"] = {"schemas": made["$defs"], "headers": _HEADERS, "securitySchemes": {"key": key}}
    found["security"] = [{}, {"key": []}]
    return found
