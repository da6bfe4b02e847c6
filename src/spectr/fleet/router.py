"""The router: an ASGI application in front of replicas that holds the streams of its clients. When a replica is lost,
another one continues its streams.

The router fixes the seed of a request when it admits it. A stream continues from the tokens that were sent, so that no
token is repeated or missing, and the rest of the text has the model's distribution given these tokens. If both replicas
compute the same numbers, it is the text that the first replica would have sent. A request that does not stream is
answered again by another replica.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import from_json

from spectr.coins import random_seed
from spectr.fleet.metrics import RouterCounters
from spectr.fleet.replicas import Answer, Call, NoReplicaError, ReplicaLostError, Replicas
from spectr.fleet.ring import prefix_key
from spectr.fleet.stream_record import StreamRecord, blocks
from spectr.serve.app import add_errors, read_body
from spectr.serve.errors import ApiError
from spectr.serve.events import Event, EventStream, Shutdown, unless_disconnected
from spectr.serve.gate import Gate
from spectr.serve.handler import after
from spectr.serve.protocol import ChatRequest, SamplingFields
from spectr.serve.responses_api import ResponsesRequest, answer_response
from spectr.serve.settings import ServerSettings
from spectr.version import __version__

__all__ = ["Router", "build_router"]

_LOG = logging.getLogger("spectr.serve")
_FIRST_POLL = 0.5  # seconds for the first check of the replicas
_TRIES = 3  # replicas per request: a request that crashes its replica must not crash all of them
_REQUEST_HEADERS = ("authorization", "content-type", "content-encoding", "accept")
_RESPONSE_HEADERS = ("content-type", "retry-after", "www-authenticate", "cache-control", "location")
_RETRYABLE = ("draining", "not_ready", "out_of_memory", "internal_error", "queue_full", "other_model")
"""Errors that are due to the replica and not to the request: another replica may be able to answer."""


class Router:
    """Sends requests to replicas, and their answers back to clients."""

    def __init__(self, replicas: Replicas, settings: ServerSettings) -> None:
        self.replicas, self.settings = replicas, settings
        self.is_draining = False
        self.counters = RouterCounters(replicas)
        self.shutdown = Shutdown()
        self._watching: asyncio.Task[None] | None = None

    def end(self) -> None:
        """End all running requests with an error. Must be called from the event loop."""
        self.shutdown.begin()

    def watch(self) -> None:
        """Start a task that keeps the list of replicas up to date. Must be called from the event loop."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(self.replicas.watch())

    async def answer(self, request: Request) -> Response:
        """Send a request to a replica and return its answer."""
        deadline = self.begin(request)
        data = await request.body()
        body = admitted(data) if request.url.path.endswith("/completions") else None
        query = f"?{request.url.query}" if request.url.query else ""
        call = Call(request.method, f"{request.url.path}{query}", _headers(request), data)
        if body is None:
            return await unless_disconnected(request.receive, self._complete(call), deadline, self.shutdown.future)
        call = replace(call, key=prefix_key(body), body=json.dumps(body).encode())
        if body.get("stream") is not True:
            return await unless_disconnected(request.receive, self._complete(call), deadline, self.shutdown.future)
        record = StreamRecord(body, request.headers.get("last-event-id"), event_ids=self.settings.event_ids)
        events = await unless_disconnected(
            request.receive, self._start_stream(record, call), deadline, self.shutdown.future
        )
        settings = self.settings
        return EventStream(events, settings.keep_alive, settings.limits.write_time, deadline, self.shutdown.future)

    def begin(self, request: Request, _: SamplingFields | None = None) -> float:
        """Return the time by which a request must be answered; raises ApiError if the router is shutting down."""
        if self.is_draining:
            raise ApiError(503, "the router is shutting down; send the request elsewhere", code="draining", wait=30)
        return float(request.state.began + self.settings.limits.request_time)

    async def converse(self, request: Request, body: ChatRequest) -> AsyncIterator[Event]:
        """Wait for the first chunk of the answer to a conversation, and return all of its chunks."""
        given = body.model_dump(mode="json", by_alias=True, exclude_unset=True)
        given["seed"] = random_seed() if body.seed is None else body.seed
        call = Call("POST", "/v1/chat/completions", _headers(request), b"", key=prefix_key(given))
        return await self._start_stream(StreamRecord(given, None, event_ids=False), call)

    async def _complete(self, call: Call) -> Response:
        """Return a complete answer. If a replica is lost, send the request to another one."""
        response: Response | None = None
        for _ in range(_TRIES):
            try:
                async with self._send(call) as answer:
                    data = b"".join([chunk async for chunk in answer.chunks])
            except ReplicaLostError as error:
                call = self._for_another_replica(call, error.replica, str(error))
                continue
            response = Response(data, answer.status, _response_headers(answer.headers))
            if not _is_retryable(answer.status, data):
                return response
            call = self._for_another_replica(call, answer.replica, f"status {answer.status}")
        if response is not None:
            return response
        raise _replicas_lost()

    async def _start_stream(self, record: StreamRecord, call: Call) -> AsyncIterator[Event]:
        """Wait for the first event of a stream, and return all of its events. An error before the first event is raised
        here, so that the client gets it as an HTTP status."""
        events = self._events(record, call)
        return after(await anext(events), events)

    async def _events(self, record: StreamRecord, call: Call) -> AsyncIterator[Event]:
        """Yield the events of a stream, from one replica after another until it is complete."""
        problem = _replicas_lost()
        for _ in range(_TRIES):
            attempt = replace(call, body=json.dumps(record.body()).encode(),
                              headers={**call.headers, **record.headers()}, streams=True)  # fmt: skip
            try:
                async with self._send(attempt) as answer:
                    if answer.status != 200:
                        problem = _error_of(answer, b"".join([chunk async for chunk in answer.chunks]))
                    else:
                        async for event in self._events_of(answer, record):
                            yield event
                        return
                failed, reason = answer.replica, problem.message
            except ReplicaLostError as error:
                failed, reason = error.replica, str(error)
            except NoReplicaError:
                raise
            except ApiError as error:
                problem, failed, reason = error, answer.replica, error.message
            if record.is_closed:
                return
            if problem.code not in _RETRYABLE:
                raise problem
            call = self._for_another_replica(call, failed, reason)
            self.counters.failovers.inc(record.has_begun)
        raise problem

    async def _events_of(self, answer: Answer, record: StreamRecord) -> AsyncIterator[Event]:
        """Yield the events of one replica up to the end mark. Raise an error that the replica sends in its stream."""
        async for block in blocks(answer.chunks):
            if block.data == b"[DONE]":
                return
            data = json.loads(block.data)
            if "error" in data:
                raise _as_error(500, data)
            yield record.add(data, block.id)
        raise ReplicaLostError(f"{answer.replica} closed a stream before it was complete", answer.replica)

    def _send(self, call: Call) -> Any:
        self.counters.calls.inc()
        return self.replicas.send(call)

    def _for_another_replica(self, call: Call, failed: str, reason: str) -> Call:
        """Return the same call, marked to avoid the replica that failed, and log why."""
        _LOG.warning("sending a request to another replica: %s", reason)
        return replace(call, avoiding=call.avoiding | {failed})


def admitted(data: bytes) -> dict[str, Any] | None:
    """Return the body of a request for text, with a seed. Return None if it is malformed, so that a replica will refuse
    it."""
    try:
        body = from_json(data, allow_inf_nan=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not all(
        isinstance(body.get(name) or {}, dict) for name in ("spectr", "stream_options")
    ):
        return None
    return body if body.get("seed") is not None else {**body, "seed": random_seed()}


def _headers(request: Request) -> dict[str, str]:
    headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
    return {**headers, "x-request-id": request.state.request_id}


def _response_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _RESPONSE_HEADERS if name in headers}


def _is_retryable(status: int, data: bytes) -> bool:
    return status >= 429 and _as_error(status, _json(data)).code in _RETRYABLE


def _json(data: bytes) -> Any:
    with suppress(ValueError):
        return json.loads(data)
    return None


def _error_of(answer: Answer, data: bytes) -> ApiError:
    wait = answer.headers.get("retry-after", "")
    return _as_error(answer.status, _json(data), float(wait) if wait.isdecimal() else None)


def _as_error(status: int, data: Any, wait: float | None = None) -> ApiError:
    """Return the error that a replica answered with, given as its JSON."""
    error = data.get("error") if isinstance(data, dict) else None
    if not isinstance(error, dict):
        return ApiError(502, "a replica answered with an error that is not a JSON error object", code="internal_error")
    return ApiError(status, str(error.get("message")), error.get("param"), error.get("code"), wait)


def _replicas_lost() -> ApiError:
    return ApiError(502, f"{_TRIES} replicas were lost while answering this request; send it again later",
                    code="internal_error", wait=5)  # fmt: skip


def build_router(router: Router) -> Any:
    """Return the router as an ASGI application."""
    app = FastAPI(
        title="spectr", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    add_errors(app)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "alive"}

    @app.get("/ready")
    async def ready() -> dict[str, Any]:
        router.watch()
        if not router.replicas.loads:  # the first check of the replicas may still be running
            await asyncio.sleep(_FIRST_POLL)
        if router.is_draining or not router.replicas.loads:
            raise ApiError(503, "no replica is ready" if not router.is_draining else "the router is shutting down",
                           code="not_ready", wait=5)  # fmt: skip
        return {"status": "ready", "replicas": len(router.replicas.loads)}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(router.counters.page(), media_type="text/plain; version=0.0.4")

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        router.watch()
        return await answer_response(router, request, await read_body(request, ResponsesRequest))

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def others(request: Request) -> Response:
        router.watch()
        return await router.answer(request)

    return Gate(app, router.settings)
