"""The endpoints."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from spectr.engine import Handle, Result, Step
from spectr.engine import Request as EngineRequest
from spectr.errors import SpectrError
from spectr.serve.admission import Admission
from spectr.serve.asking import Asked, as_turns, ask, characters
from spectr.serve.events import Disconnected, Event, EventStream, unless_disconnected
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
from spectr.serve.resuming import Progress, Seen, read_places, steps_after, tokens_of
from spectr.serve.service import Service
from spectr.serve.settings import ServerSettings
from spectr.version import __version__
from spectr.view.tokens import TokenTexts

__all__ = ["Desk", "add_errors", "after", "build_app"]

_LOG = logging.getLogger("spectr.serve")
_SMALL = 2000  # numbers of a response that is written in the event loop
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
    _over: "asyncio.Future[None] | None" = None

    @classmethod
    def of(cls, service: Service) -> "Desk":
        """A desk for a service."""
        admission = Admission(service.settings.limits, len(service.settings.keys))
        return cls(service, admission, Observations(service, admission), TokenTexts(service.lm.tokenizer))

    async def answer(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        """Answer a request for text, whole or in a stream."""
        if self.service.is_draining:
            raise ApiError(503, "the server is shutting down; send the request elsewhere", code="draining", wait=30)
        if self.service.settings.logs_prompts:
            _LOG.info("%s asks %s", request.state.request_id, body.model_dump_json(exclude_none=True))
        limits, settings = self.service.settings.limits, self.service.settings
        deadline = request.state.began + limits.request_time
        left, tenant = deadline - time.monotonic(), request.state.tenant
        if not body.stream:
            return await unless_disconnected(request.receive, self._whole(body, tenant), left, self.over)
        seen = request.headers.get("last-event-id")
        events = await unless_disconnected(request.receive, self._begun(body, tenant, seen), left, self.over)
        return EventStream(events, settings.keep_alive, limits.write_time, deadline, self.over)

    @property
    def over(self) -> "asyncio.Future[None]":
        """Done when the server will not wait for running requests any longer."""
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
        return self._over

    def end(self) -> None:
        """Answer all requests that run with an error. From the event loop."""
        if not self.over.done():
            self.over.set_result(None)

    async def told(self, body: CompletionRequest | ChatRequest, tenant: str) -> dict[str, Any]:
        """The answer to a body as data, for whoever asks without a connection."""
        job = await self._job(body, tenant)
        results = await job.results()
        return job.reply.whole(results, job.receipt(results))

    async def _whole(self, body: CompletionRequest | ChatRequest, tenant: str) -> Response:
        return await (await self._job(body, tenant)).whole()

    async def _begun(
        self, body: CompletionRequest | ChatRequest, tenant: str, seen: str | None
    ) -> AsyncIterator[Event]:
        """The events of a stream, once the first is there: an error before it is answered as one."""
        if seen is not None and (body.seed is None or (body.spectr and body.spectr.resume)):
            raise ApiError(400, "Last-Event-ID needs the seed of what was sent before, and no resume", "seed")
        job = await self._job(body, tenant)
        job.tells_ids = seen is not None or wants_ids(body, self.service.settings)
        if seen is not None:
            job.go_on(read_places(seen, job.asked.count))
        events = job.events()
        return after(await anext(events), events)

    async def _job(self, body: CompletionRequest | ChatRequest, tenant: str) -> "_Job":
        asked, requests = await ask(body, self.service, tenant, self.admission.most_texts)
        return _Job(self, asked, requests, tenant)


def wants_ids(body: CompletionRequest | ChatRequest, settings: ServerSettings) -> bool:
    """Whether the events of a stream have ids."""
    wanted = None if body.stream_options is None else body.stream_options.event_ids
    return settings.event_ids if wanted is None else wanted


async def after(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """An iterator whose first item was taken already: an error before it is answered as one, and not amid a stream."""
    try:
        yield first
        async for event in rest:
            yield event
    finally:
        await rest.aclose()  # type: ignore[attr-defined]


class _Job:
    """The texts of one request, from its place in the queue to its end."""

    def __init__(self, desk: Desk, asked: Asked, requests: Sequence[EngineRequest | None], tenant: str) -> None:
        self.desk, self.asked, self.requests, self.tenant = desk, asked, requests, tenant
        self.scored = [asyncio.Event() for _ in asked.prompts]  # the log-probabilities of each prompt are there
        service = desk.service
        self.reply = Reply(asked, service.name, service.shown_fingerprint, desk.texts)
        self.tells_ids = False
        self.go_on([None] * asked.count)
        self.start = time.perf_counter()

    def go_on(self, seen: list[Seen | None]) -> None:
        """Send what a client that reconnects does not have, and no more."""
        self.seen, self.progress = seen, Progress(seen)

    async def whole(self) -> Response:
        """The answer once all texts have ended."""
        results = await self.results()

        def written() -> Response:
            return JSONResponse(self.reply.whole(results, self.receipt(results)))

        if self.reply.entries(results) <= _SMALL:
            return written()
        return await self.desk.service.in_worker(lambda _: written(), self.tenant)

    async def results(self) -> list[Result]:
        """The texts, once all have ended."""
        async with AsyncExitStack() as stack:
            stack.push(self._count_failures)
            handles = await self._begin(stack)
            await asyncio.gather(*(self._watched(handle) for handle in handles if handle is not None))
            return [self._result(index, handle) for index, handle in enumerate(handles)]

    def _result(self, index: int, handle: Handle | None) -> Result:
        """A text with what was generated of it elsewhere, if it goes on."""
        past = self.asked.past(index)
        if handle is None:
            return Result([] if past is None else past.tokens, None if past is None else past.finish_reason)
        return handle.so_far if past is None else replace(handle.so_far, tokens=[*past.tokens, *handle.so_far.tokens])

    def _count_failures(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        """Take note of requests that the engine failed in, one after the other."""
        service = self.desk.service
        if error is None:
            service.failures = 0
        elif isinstance(error, Exception) and as_api_error(error).status == 500:
            service.failures += 1

    async def events(self) -> AsyncIterator[Event]:
        """The answer in pieces."""
        async with AsyncExitStack() as stack:
            stack.push(self._count_failures)
            handles = await self._begin(stack)
            async with aclosing(self._chunks(handles)) as chunks:
                async for chunk in chunks:
                    yield chunk
            results = [self._result(index, handle) for index, handle in enumerate(handles)]
            options = self.asked.body.stream_options
            usage = bool(options and options.include_usage)
            yield self._event(self.reply.last(results, self.receipt(results), usage=usage), self.progress.id)

    def _event(self, data: dict[str, Any], id_: str) -> Event:
        return Event(data, id_ if self.tells_ids else None)

    async def _begin(self, stack: AsyncExitStack) -> list[Handle | None]:
        """Wait for places, then submit all texts; whatever ends the block cancels them and gives the places back."""
        asked = [request for request in self.requests if request is not None]
        if asked:
            await stack.enter_async_context(self.desk.admission.place(self.tenant, len(asked)))
        made = self.asked.lm.engine.scheduler.submit(asked)  # they were checked when they were made
        stack.callback(self._end, made)
        handles = iter(made)
        return [None if request is None else next(handles) for request in self.requests]

    async def _chunks(self, handles: Sequence[Handle | None]) -> AsyncGenerator[Event]:
        """Chunks of all texts as they come."""
        running = [index for index, handle in enumerate(handles) if handle is not None]
        for index in range(len(handles)):
            if (past := self.asked.past(index)) is not None and past.begun:
                self.progress.move(index, past.tokens, ends=past.finish_reason is not None)
        if len(running) == 1:
            async for chunk in self._chunks_of(running[0], handles):
                yield chunk
            return
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()

        async def drain(index: int) -> None:
            try:
                async for chunk in self._chunks_of(index, handles):
                    queue.put_nowait(chunk)
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.ensure_future(drain(index)) for index in running]
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

    async def _chunks_of(self, index: int, handles: Sequence[Handle | None]) -> AsyncIterator[Event]:
        """Chunks of one text. The log-probabilities of its prompt come with the first text of that prompt, or with each
        where texts go on."""
        past, prompt, own = self.asked.past(index), index // self.asked.n, handles[index]
        begins = self.seen[index] is None and (past is None or not past.begun)
        first = index if past is not None else prompt * self.asked.n
        told: list[int] = []
        async for steps, tokens in self._unseen(index, own):
            told += tokens
            if index == first:
                self.scored[prompt].set()
            if begins and self.asked.echoes:
                await self.scored[prompt].wait()
                result = self._result(first, handles[first])
                echo = await self.desk.service.in_worker(lambda _: self.reply.echo(index, result), self.tenant)  # noqa: B023
                yield self._event(echo, self.progress.move(index, ()))
            if (chunk := self.reply.chunk(index, steps, told, begins=begins)) is not None:
                ends = steps[-1].finish_reason is not None
                yield self._event(chunk, self.progress.move(index, told, ends=ends))
                told = []
            begins = False

    async def _unseen(self, index: int, handle: Handle | None) -> AsyncIterator[tuple[list[Step], list[int]]]:
        """Steps of one text that the client does not have, and the tokens that it was not told on this connection."""
        seen, arrivals, held = self.seen[index], self._arrivals(handle), list[Step]()
        if seen is not None:
            async for steps in arrivals:
                held += steps
                if len(tokens_of(held)) >= seen.count and not seen.is_whole:
                    break
            seen.check(tokens_of(held))
            if seen.is_whole:
                return
            request = self.requests[index]
            reader = None if request is None else request.reader
            yield [steps_after(held, seen.count, reader)], tokens_of(held)
        async for steps in arrivals:
            yield steps, tokens_of(steps)

    async def _watched(self, handle: Handle) -> None:
        async for _ in self._arrivals(handle):
            pass

    async def _arrivals(self, handle: Handle | None) -> AsyncIterator[list[Step]]:
        """Steps as they come, timed."""
        assert handle is not None
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

    def receipt(self, results: Sequence[Result]) -> dict[str, Any] | None:
        """How to get the texts again, where that is wanted."""
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
    add_errors(app)
    _add_texts(app, desk)
    _add_tokens(app, desk)
    _add_operations(app, desk)
    add_pages(app, service)
    described = describe(app, [CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest])

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return described

    gate: Any = Gate(app, service.settings, count=desk.admission.count)
    if not service.settings.origins:
        return gate
    return CORSMiddleware(  # outside the gate: a page must be able to read why it was refused
        gate, allow_origins=list(service.settings.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
    )


def add_errors(app: FastAPI) -> None:
    """Tell clients of errors in the form that OpenAI's clients read."""

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
    @app.post(
        "/v1/completions", **documented(CompletionRequest, "Complete prompts.", 409, 429, 503, 504, media=_EITHER)
    )
    async def completions(request: Request) -> Response:
        return await desk.answer(request, await read_body(request, CompletionRequest))

    @app.post(
        "/v1/chat/completions", **documented(ChatRequest, "Answer a conversation.", 409, 429, 503, 504, media=_EITHER)
    )
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


def _add_tokens(app: FastAPI, desk: Desk) -> None:
    service = desk.service

    @app.post("/tokenize", **documented(TokenizeRequest, "Turn a text or a conversation into tokens."))
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
                lm._need_tokenizer()
                tokens = list(lm.tokenizer(body.prompt, add_special_tokens=body.add_special_tokens)["input_ids"])
            found: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": service.context}
            if body.return_token_strs:
                found["token_strs"] = [desk.texts.text(token) for token in tokens]
            return JSONResponse(found)

        return await _worked(request, desk, work)

    @app.post("/detokenize", **documented(DetokenizeRequest, "Turn tokens into text."))
    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeRequest)
        service.check_name(body.model)
        if body.tokens and max(body.tokens) >= service.lm.engine.target.vocabulary:
            last = service.lm.engine.target.vocabulary - 1
            raise ApiError(400, f"tokens must lie in 0 … {last}, got {max(body.tokens)}", "tokens")
        return await _worked(request, desk, lambda lm: JSONResponse({"prompt": str(lm.tokenizer.decode(body.tokens))}))


async def _worked(request: Request, desk: Desk, work: Callable[[Any], Response]) -> Response:
    """A response that is made in a worker, unless the client goes before."""
    left = request.state.began + desk.service.settings.limits.request_time - time.monotonic()
    return await unless_disconnected(
        request.receive, desk.service.in_worker(work, request.state.tenant), left, desk.over
    )


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
