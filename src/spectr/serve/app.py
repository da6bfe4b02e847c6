"""The endpoints."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from spectr.engine import Handle, Result, Step
from spectr.errors import SpectrError
from spectr.serve.admission import Admission
from spectr.serve.asking import Asked, as_turns, ask
from spectr.serve.events import Disconnected, EventStream, unless_disconnected
from spectr.serve.gate import Gate
from spectr.serve.observe import Observations
from spectr.serve.openapi import describe, documented
from spectr.serve.pages import add_pages
from spectr.serve.problems import ApiError, as_api_error
from spectr.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    as_problem,
)
from spectr.serve.receipt import make_receipt
from spectr.serve.replies import Reply
from spectr.serve.service import Service
from spectr.version import __version__
from spectr.view.tokens import TokenTexts

__all__ = ["Desk", "build_app"]

_LOG = logging.getLogger("spectr.serve")
_EITHER = ("application/json", "text/event-stream")  # whole, or as a stream
Body = TypeVar("Body", bound=BaseModel)


@contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage collection while a body is parsed: a million small lists, which are all in use, would make it look
    through the whole heap again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
        with _without_collection():
            return kind.model_validate(from_json(data, allow_inf_nan=False))
    except ValidationError as error:
        raise as_problem(error, kind) from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body must be a JSON object in UTF-8: {error}", code="invalid_json") from error


@dataclass(slots=True)
class Desk:
    """Where requests for text are taken, run and answered."""

    service: Service
    admission: Admission
    observations: Observations
    texts: TokenTexts

    @classmethod
    def of(cls, service: Service) -> "Desk":
        """A desk for a service."""
        admission = Admission(service.settings.limits)
        return cls(service, admission, Observations(service, admission), TokenTexts(service.lm.tokenizer))

    async def answer(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        """Answer a request for text, whole or in a stream."""
        if self.service.is_draining:
            raise ApiError(503, "the server is shutting down; send the request elsewhere", code="draining", wait=30)
        asked = await ask(body, self.service)
        job = _Job(self, asked, request.state.tenant)
        if self.service.settings.logs_prompts:
            _LOG.info("%s asks %s", request.state.request_id, body.model_dump_json(exclude_none=True))
        limits = self.service.settings.limits
        if body.stream:
            events = job.events()
            first = await unless_disconnected(request.receive, anext(events), limits.request_time)
            return EventStream(
                _after(first, events), self.service.settings.keep_alive, limits.write_time, limits.request_time
            )
        found = await unless_disconnected(request.receive, job.whole(), limits.request_time)
        return JSONResponse(found)


async def _after(first: dict[str, Any], rest: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """An iterator whose first item was taken already: an error before it is answered as one, and not amid a stream."""
    try:
        yield first
        async for event in rest:
            yield event
    finally:
        await rest.aclose()  # type: ignore[attr-defined]


class _Job:
    """The texts of one request, from its place in the queue to its end."""

    def __init__(self, desk: Desk, asked: Asked, tenant: str) -> None:
        self.desk, self.asked, self.tenant = desk, asked, tenant
        service = desk.service
        self.reply = Reply(asked, service.name, service.fingerprint, desk.texts)
        self.start = time.perf_counter()

    async def whole(self) -> dict[str, Any]:
        """The answer once all texts have ended."""
        async with AsyncExitStack() as stack:
            handles = await self._begin(stack)
            await asyncio.gather(*(self._watched(handle) for handle in handles))
            results = [handle.so_far for handle in handles]
            return self.reply.whole(results, self._receipt(results))

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The answer in pieces."""
        async with AsyncExitStack() as stack:
            handles = await self._begin(stack)
            async with aclosing(self._chunks(handles)) as chunks:
                async for chunk in chunks:
                    yield chunk
            results = [handle.so_far for handle in handles]
            options = self.asked.body.stream_options
            yield self.reply.last(results, self._receipt(results), usage=bool(options and options.include_usage))

    async def _begin(self, stack: AsyncExitStack) -> list[Handle]:
        """Wait for places, then submit all texts; whatever ends the block cancels them and gives the places back."""
        await stack.enter_async_context(self.desk.admission.place(self.tenant, self.asked.count))
        scope = self.tenant if self.desk.service.settings.keys else ""
        handles = [self.asked.lm.engine.submit(self.asked.request(index, scope)) for index in range(self.asked.count)]
        stack.callback(self._end, handles)
        return handles

    async def _chunks(self, handles: Sequence[Handle]) -> AsyncGenerator[dict[str, Any]]:
        """Chunks of all texts as they come."""
        if len(handles) == 1:
            async for chunk in self._chunks_of(0, handles[0]):
                yield chunk
            return
        queue: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()

        async def drain(index: int, handle: Handle) -> None:
            try:
                async for chunk in self._chunks_of(index, handle):
                    queue.put_nowait(chunk)
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.ensure_future(drain(index, handle)) for index, handle in enumerate(handles)]
        try:
            left = len(tasks)
            while left:
                found = await queue.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _chunks_of(self, index: int, handle: Handle) -> AsyncIterator[dict[str, Any]]:
        """Chunks of one text."""
        begins = True
        async for steps in self._arrivals(handle):
            if begins and self.asked.echoes:
                yield self.reply.echo(index, handle.so_far)
            if (chunk := self.reply.chunk(index, steps, begins=begins)) is not None:
                yield chunk
            begins = False

    async def _watched(self, handle: Handle) -> None:
        async for _ in self._arrivals(handle):
            pass

    async def _arrivals(self, handle: Handle) -> AsyncIterator[list[Step]]:
        """Steps as they come, timed."""
        observations, last = self.desk.observations, 0.0
        async for steps in handle.arrivals():
            now = time.perf_counter()
            count = sum(len(step.tokens) for step in steps)
            if not last:
                observations.first.observe(now - self.start)
            elif count:
                observations.per_token.observe((now - last) / count)
            last = now
            yield steps

    def _receipt(self, results: Sequence[Result]) -> dict[str, Any] | None:
        asked = self.asked.body.spectr
        wanted = self.desk.service.settings.receipts if asked is None or asked.receipt is None else asked.receipt
        return make_receipt(self.asked, self.desk.service, results) if wanted else None

    def _end(self, handles: Sequence[Handle]) -> None:
        """Cancel what has not ended, and count."""
        observations = self.desk.observations
        for handle in handles:
            handle.cancel()
            result = handle.so_far
            observations.speculated(result.stats)
            observations.requests.labels(result.finish_reason or "error").inc()
            observations.reused_tokens.inc(result.reused)
        observations.prompt_tokens.inc(sum(map(len, self.asked.prompts)))
        observations.whole.observe(time.perf_counter() - self.start)


def build_app(service: Service) -> Any:
    """The server as an ASGI application."""
    app = FastAPI(title="spectr", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    desk = service.desk = Desk.of(service)
    _add_errors(app)
    _add_texts(app, desk)
    _add_tokens(app, service)
    _add_operations(app, desk)
    add_pages(app, service)
    described = describe(app, [CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest])

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return described

    inner: Any = app
    if service.settings.origins:
        inner = CORSMiddleware(
            app, allow_origins=list(service.settings.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return Gate(inner, service.settings)


def _add_errors(app: FastAPI) -> None:
    async def told(_request: Request, error: Exception) -> Response:
        if isinstance(error, Disconnected | ClientDisconnect):
            return Response(status_code=499)
        if isinstance(error, HTTPException):
            error = ApiError(error.status_code, str(error.detail))
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
        app.add_exception_handler(kind, told)


def _add_texts(app: FastAPI, desk: Desk) -> None:
    @app.post("/v1/completions", **documented(CompletionRequest, "Complete prompts.", 429, 503, 504, media=_EITHER))
    async def completions(request: Request) -> Response:
        return await desk.answer(request, await read_body(request, CompletionRequest))

    @app.post("/v1/chat/completions", **documented(ChatRequest, "Answer a conversation.", 429, 503, 504, media=_EITHER))
    async def chat(request: Request) -> Response:
        return await desk.answer(request, await read_body(request, ChatRequest))

    def card() -> dict[str, Any]:
        service = desk.service
        return {
            "id": service.name, "object": "model", "created": service.created, "owned_by": "spectr",
            "max_model_len": service.context,
        }  # fmt: skip

    @app.get("/v1/models", **documented(None, "List the model."))
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}", **documented(None, "Describe the model.", 404))
    async def model(name: str) -> dict[str, Any]:
        desk.service.check_name(name)
        return card()


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", **documented(TokenizeRequest, "Turn a text or a conversation into tokens."))
    async def tokenize(request: Request) -> dict[str, Any]:
        body = await read_body(request, TokenizeRequest)
        service.check_name(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either a prompt or messages", "prompt")

        def work(lm: Any) -> list[int]:
            if body.messages is not None:
                return list(lm.encode_turns(as_turns(body.messages)))
            lm._need_tokenizer()
            return list(lm.tokenizer(body.prompt, add_special_tokens=body.add_special_tokens)["input_ids"])

        tokens = await service.in_worker(work)
        found: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": service.context}
        if body.return_token_strs:
            texts = TokenTexts(service.lm.tokenizer)
            found["token_strs"] = [texts.text(token) for token in tokens]
        return found

    @app.post("/detokenize", **documented(DetokenizeRequest, "Turn tokens into text."))
    async def detokenize(request: Request) -> dict[str, Any]:
        body = await read_body(request, DetokenizeRequest)
        service.check_name(body.model)
        if body.tokens and max(body.tokens) >= service.lm.engine.target.vocabulary:
            last = service.lm.engine.target.vocabulary - 1
            raise ApiError(400, f"tokens must lie in 0 … {last}, got {max(body.tokens)}", "tokens")
        return {"prompt": await service.in_worker(lambda lm: str(lm.tokenizer.decode(body.tokens)))}


def _add_operations(app: FastAPI, desk: Desk) -> None:
    service = desk.service

    @app.get("/health", **documented(None, "Whether the server is alive."))
    async def health() -> dict[str, Any]:
        return {"status": "alive"}

    @app.get("/ready", **documented(None, "Whether it takes requests and its law is intact.", 503))
    async def ready() -> dict[str, Any]:
        if (reason := service.not_ready) is not None:
            raise ApiError(503, reason, code="not_ready", wait=5)
        return {"status": "ready", **service.audited}

    @app.get("/metrics", **documented(None, "Counters for Prometheus.", media=("text/plain",)))
    async def metrics() -> Response:
        return Response(desk.observations.page(), media_type="text/plain; version=0.0.4")

    @app.get("/version", **documented(None, "Versions of the programs that take part."))
    async def version() -> dict[str, Any]:
        return {"version": __version__, **service.versions}
