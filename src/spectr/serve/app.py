"""The endpoints."""

import difflib
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi import Path as PathField
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from spectr.errors import SpectrError
from spectr.garbage import without_collection
from spectr.serve.errors import ApiError, as_api_error
from spectr.serve.events import Disconnected, unless_disconnected
from spectr.serve.fields import as_field_error
from spectr.serve.gate import Gate
from spectr.serve.handler import RequestHandler
from spectr.serve.messages import as_turns, characters
from spectr.serve.openapi import describe, documented
from spectr.serve.pages import add_pages
from spectr.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from spectr.serve.responses import (
    Alive,
    DetokenizeResponse,
    Error,
    ModelCard,
    ModelList,
    Ready,
    TokenizeResponse,
    Versions,
)
from spectr.serve.responses_api import ResponseEvent, ResponseObject, ResponsesRequest, answer_response
from spectr.serve.service import Service
from spectr.serve.text_responses import ChatChunk, ChatResponse, CompletionChunk, CompletionResponse
from spectr.version import __version__

__all__ = ["add_errors", "build_app", "read_body"]

_OBJECTS = (
    CompletionRequest, ChatRequest, ResponsesRequest, TokenizeRequest, DetokenizeRequest,
    ResponseObject, ResponseEvent, CompletionResponse, CompletionChunk, ChatResponse, ChatChunk,
    TokenizeResponse, DetokenizeResponse, ModelCard, ModelList, Alive, Ready, Versions, Error,
)  # fmt: skip
"""Bodies and answers of the endpoints."""
Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body of a request, checked field by field."""
    sort = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sort != "application/json":
        raise ApiError(415, f"a body must be JSON, sent with Content-Type: application/json, got {sort[:80]!r}",
                       code="unsupported_media_type")  # fmt: skip
    if (coding := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        raise ApiError(415, f"a body must not be compressed, got Content-Encoding: {coding[:80]!r}",
                       code="unsupported_media_type")  # fmt: skip
    data = await request.body()
    try:
        with without_collection():  # a million small lists, all of them in use
            return kind.model_validate(from_json(data, allow_inf_nan=False))
    except ValidationError as error:
        raise as_field_error(error, kind) from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body must be a JSON object in UTF-8: {error}", code="invalid_json") from error


def build_app(service: Service) -> Any:
    """The server as an ASGI application."""
    app = FastAPI(
        title="spectr", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    handler = service.handler = RequestHandler.of(service)
    add_errors(app)
    _add_texts(app, handler)
    _add_tokens(app, handler)
    _add_operations(app, handler)
    add_pages(app, service)
    described = describe(app, _OBJECTS)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return described

    gate: Any = Gate(app, service.settings, count=handler.admission.count)
    if not service.settings.origins:
        return gate
    return CORSMiddleware(  # outside the gate: a page must be able to read why it was refused
        gate, allow_origins=list(service.settings.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
    )


def add_errors(app: FastAPI) -> None:
    """Answer errors in the form that OpenAI's clients read."""

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, Disconnected | ClientDisconnect):
            return Response(status_code=499)
        if isinstance(error, HTTPException):
            error = ApiError(error.status_code, _wrong_address(request, error, app))
        elif not isinstance(error, ApiError):
            error = as_api_error(error)
        return JSONResponse(error.body, error.status, dict(error.headers))

    for kind in (
        ApiError,
        HTTPException,
        Disconnected,
        ClientDisconnect,
        SpectrError,
        TimeoutError,
        MemoryError,
        Exception,
    ):
        app.add_exception_handler(kind, respond)


def _wrong_address(request: Request, error: HTTPException, app: FastAPI) -> str:
    """Return the message for a page that does not exist, or does not take the method of the request."""
    path, methods = request.url.path[:80], (error.headers or {}).get("Allow")
    if error.status_code == 405 and methods:
        return f"{path} takes {methods}, got {request.method[:80]}"
    if error.status_code != 404:
        return str(error.detail)
    pages = [route.path for route in app.routes if isinstance(route, APIRoute) and "{" not in route.path]
    close = difflib.get_close_matches(path, pages, n=1)
    return f"there is no page {path!r}" + (f"; did you mean {close[0]}?" if close else "")


def _add_texts(app: FastAPI, handler: RequestHandler) -> None:
    @app.post(
        "/v1/completions",
        **documented(CompletionRequest, CompletionResponse, "Complete prompts.", 409, 429, 504, chunk=CompletionChunk),
    )
    async def completions(request: Request) -> Response:
        return await handler.answer(request, await read_body(request, CompletionRequest))

    @app.post(
        "/v1/chat/completions",
        **documented(ChatRequest, ChatResponse, "Answer a conversation.", 409, 429, 504, chunk=ChatChunk),
    )
    async def chat(request: Request) -> Response:
        return await handler.answer(request, await read_body(request, ChatRequest))

    @app.post(
        "/v1/responses",
        **documented(
            ResponsesRequest, ResponseObject, "Answer a conversation, as OpenAI's newer interface does.", 429, 504,
            chunk=ResponseEvent, resumes=False,
        ),
    )  # fmt: skip
    async def responses(request: Request) -> Response:
        return await answer_response(handler, request, await read_body(request, ResponsesRequest))

    def card() -> dict[str, Any]:
        service = handler.service
        return {
            "id": service.name, "object": "model", "created": service.created, "owned_by": "spectr",
            "max_model_len": service.context,
        }  # fmt: skip

    @app.get("/v1/models", **documented(None, ModelList, "List the model."))
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}", **documented(None, ModelCard, "Describe the model.", 404))
    async def model(name: Annotated[str, PathField(description="The model's name.")]) -> dict[str, Any]:
        handler.service.check_name(name)
        return card()


def _add_tokens(app: FastAPI, handler: RequestHandler) -> None:
    service = handler.service

    @app.post(
        "/tokenize", **documented(TokenizeRequest, TokenizeResponse, "Turn a text or a conversation into tokens.")
    )
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, TokenizeRequest)
        service.check_name(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either a prompt or messages", "prompt")

        if body.messages is not None:
            service.check_length(characters(body.messages), "messages")
        service.check_length(len(body.prompt or ""), "prompt")

        def work(lm: Any) -> Response:
            if body.messages is not None:
                tokens = list(lm.encode_turns(as_turns(body.messages)))
            else:
                lm.require_tokenizer()
                tokens = list(lm.tokenizer(body.prompt, add_special_tokens=body.add_special_tokens)["input_ids"])
            found: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": service.context}
            if body.return_token_strs:
                found["token_strs"] = [handler.texts.text(token) for token in tokens]
            return JSONResponse(found)

        return await _from_worker(request, handler, work)

    @app.post("/detokenize", **documented(DetokenizeRequest, DetokenizeResponse, "Turn tokens into text."))
    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeRequest)
        service.check_name(body.model)
        if body.tokens and max(body.tokens) >= service.lm.engine.target.vocabulary:
            last = service.lm.engine.target.vocabulary - 1
            raise ApiError(400, f"tokens must lie in 0 … {last}, got {max(body.tokens)}", "tokens")
        return await _from_worker(
            request, handler, lambda lm: JSONResponse({"prompt": str(lm.tokenizer.decode(body.tokens))})
        )


async def _from_worker(request: Request, handler: RequestHandler, work: Callable[[Any], Response]) -> Response:
    """A response that a worker makes, unless the client disconnects before."""
    deadline = request.state.began + handler.service.settings.limits.request_time
    return await unless_disconnected(
        request.receive, handler.service.in_worker(work, request.state.tenant), deadline, handler.shutdown.future
    )


def _add_operations(app: FastAPI, handler: RequestHandler) -> None:
    service = handler.service

    @app.get("/health", **documented(None, Alive, "Whether the server is alive."))
    async def health() -> dict[str, Any]:
        return {"status": "alive"}

    @app.get(
        "/ready",
        **documented(None, Ready, "Whether the server accepts requests and the self-audit has found no violation."),
    )
    async def ready() -> dict[str, Any]:
        if (reason := service.not_ready) is not None:
            raise ApiError(503, reason, code="not_ready", wait=5)
        return {"status": "ready", **service.audit_counts}

    @app.get("/metrics", response_class=PlainTextResponse, **documented(None, None, "Counters for Prometheus."))
    async def metrics() -> Response:
        return Response(handler.metrics.page(), media_type="text/plain; version=0.0.4")

    @app.get("/version", **documented(None, Versions, "Versions of the programs that take part."))
    async def version() -> dict[str, Any]:
        return {"version": __version__, **service.versions}
