"""The router: an ASGI application in front of replicas that holds its clients' streams. When a replica is lost, another
one continues them.

The seed of a request is fixed here, at its admission. A stream goes on from its tokens, so that none comes twice or is
missing, and what follows has the distribution of the model given what was sent; where the replicas compute with the
same numbers it is the text that the first replica would have sent. A request that is answered whole is asked again.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import from_json

from spectr.fleet.metrics import RouterCounters
from spectr.fleet.replicas import Answer, Call, NoReplicaError, ReplicaLostError, Replicas
from spectr.fleet.ring import prefix_key
from spectr.fleet.stream_record import StreamRecord, blocks
from spectr.serve.app import add_errors
from spectr.serve.errors import ApiError
from spectr.serve.events import Event, EventStream, Shutdown, unless_disconnected
from spectr.serve.gate import Gate
from spectr.serve.handler import after
from spectr.serve.settings import ServerSettings
from spectr.version import __version__

__all__ = ["Router", "build_router"]

_LOG = logging.getLogger("spectr.serve")
_RANDOM_BITS = 53  # a seed that any JSON reader keeps whole
_FIRST_LOOK = 0.5  # seconds
_TRIES = 3  # replicas that one request may be lost at: one that ends its replica must not end all of them
_PASSED_ON = ("authorization", "content-type", "content-encoding", "accept")
_HANDED_BACK = ("content-type", "retry-after", "www-authenticate", "cache-control", "location")
_ELSEWHERE = ("draining", "not_ready", "out_of_memory", "internal_error", "queue_full", "other_model")
"""Problems of a replica, and not of the request: another one may be able to answer."""


class Router:
    """Requests on their way to replicas and back."""

    def __init__(self, replicas: Replicas, settings: ServerSettings) -> None:
        self.replicas, self.settings = replicas, settings
        self.is_draining = False
        self.counters = RouterCounters(replicas)
        self.shutdown = Shutdown()
        self._watching: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Answer all requests that run with an error. From the event loop."""
        self.shutdown.begin()

    def watch(self) -> None:
        """Keep the list of replicas up to date from now on. From the event loop."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(self.replicas.watch())

    async def answer(self, request: Request) -> Response:
        """Pass a request on, and its answer back."""
        if self.is_draining:
            raise ApiError(503, "the router is shutting down; send the request elsewhere", code="draining", wait=30)
        limits = self.settings.limits
        deadline = request.state.began + limits.request_time
        data = await request.body()
        body = admitted(data) if request.url.path.endswith("/completions") else None
        query = f"?{request.url.query}" if request.url.query else ""
        call = Call(request.method, f"{request.url.path}{query}", _headers(request), data)
        left = deadline - time.monotonic()
        if body is None:
            return await unless_disconnected(request.receive, self._whole(call), left, self.shutdown.future)
        call = replace(call, key=prefix_key(body), body=json.dumps(body).encode())
        if body.get("stream") is not True:
            return await unless_disconnected(request.receive, self._whole(call), left, self.shutdown.future)
        record = StreamRecord(body, request.headers.get("last-event-id"), event_ids=self.settings.event_ids)
        events = await unless_disconnected(request.receive, self._begun(record, call), left, self.shutdown.future)
        return EventStream(events, self.settings.keep_alive, limits.write_time, deadline, self.shutdown.future)

    async def _whole(self, call: Call) -> Response:
        """An answer in one piece. If a replica is lost, another one gets the request."""
        refused: Response | None = None
        for _ in range(_TRIES):
            try:
                async with self._sent(call) as answer:
                    data = b"".join([chunk async for chunk in answer.chunks])
            except ReplicaLostError as error:
                call = self._elsewhere(call, error.replica, str(error))
                continue
            refused = Response(data, answer.status, _handed_back(answer.headers))
            if not _is_elsewhere(answer.status, data):
                return refused
            call = self._elsewhere(call, answer.replica, f"status {answer.status}")
        if refused is not None:
            return refused
        raise _lost()

    async def _begun(self, record: StreamRecord, call: Call) -> AsyncIterator[Event]:
        """The events of a stream, when the first is there. An error before the first event has a status of its own."""
        events = self._events(record, call)
        return after(await anext(events), events)

    async def _events(self, record: StreamRecord, call: Call) -> AsyncIterator[Event]:
        """The events of a stream, from as many replicas as it takes."""
        problem = _lost()
        for _ in range(_TRIES):
            asked = replace(call, body=json.dumps(record.body()).encode(), headers={**call.headers, **record.headers()},
                            streams=True)  # fmt: skip
            try:
                async with self._sent(asked) as answer:
                    if answer.status != 200:
                        problem = _problem(answer, b"".join([chunk async for chunk in answer.chunks]))
                    else:
                        async for event in self._events_of(answer, record):
                            yield event
                        return
                lost, why = answer.replica, problem.message
            except ReplicaLostError as error:
                lost, why = error.replica, str(error)
            except NoReplicaError:
                raise
            except ApiError as error:
                problem, lost, why = error, answer.replica, error.message
            if record.is_closed:
                return
            if problem.code not in _ELSEWHERE:
                raise problem
            call = self._elsewhere(call, lost, why)
            self.counters.failovers.inc(record.has_begun)
        raise problem

    async def _events_of(self, answer: Answer, record: StreamRecord) -> AsyncIterator[Event]:
        """The events of one replica, up to the end mark. Raises an error that the replica sends in its stream."""
        async for block in blocks(answer.chunks):
            if block.data == b"[DONE]":
                return
            data = json.loads(block.data)
            if "error" in data:
                raise _as_error(500, data)
            yield record.add(data, block.id)
        raise ReplicaLostError(f"{answer.replica} closed a stream before its end", answer.replica)

    def _sent(self, call: Call) -> Any:
        self.counters.calls.inc()
        return self.replicas.send(call)

    def _elsewhere(self, call: Call, lost: str, why: str) -> Call:
        """The same call, for another replica."""
        _LOG.warning("a request continues at another replica: %s", why)
        return replace(call, avoiding=call.avoiding | {lost})


def admitted(data: bytes) -> dict[str, Any] | None:
    """The body of a request for text, with a seed; None for one that a replica will refuse."""
    try:
        body = from_json(data, allow_inf_nan=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not all(
        isinstance(body.get(name) or {}, dict) for name in ("spectr", "stream_options")
    ):
        return None
    return body if body.get("seed") is not None else {**body, "seed": secrets.randbits(_RANDOM_BITS)}


def _headers(request: Request) -> dict[str, str]:
    found = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    return {**found, "x-request-id": request.state.request_id}


def _handed_back(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _HANDED_BACK if name in headers}


def _is_elsewhere(status: int, data: bytes) -> bool:
    return status >= 429 and _as_error(status, _object(data)).code in _ELSEWHERE


def _object(data: bytes) -> Any:
    with suppress(ValueError):
        return json.loads(data)
    return None


def _problem(answer: Answer, data: bytes) -> ApiError:
    wait = answer.headers.get("retry-after", "")
    return _as_error(answer.status, _object(data), float(wait) if wait.isdecimal() else None)


def _as_error(status: int, data: Any, wait: float | None = None) -> ApiError:
    """The error that a replica answered with."""
    error = data.get("error") if isinstance(data, dict) else None
    if not isinstance(error, dict):
        return ApiError(502, "a replica answered with something that is not an error in JSON", code="internal_error")
    return ApiError(status, str(error.get("message")), error.get("param"), error.get("code"), wait)


def _lost() -> ApiError:
    return ApiError(502, f"{_TRIES} replicas were lost while they answered this request; send it again later",
                    code="internal_error", wait=5)  # fmt: skip


def build_router(router: Router) -> Any:
    """The router as an ASGI application."""
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
        if not router.replicas.loads:  # it may have just begun to look
            await asyncio.sleep(_FIRST_LOOK)
        if router.is_draining or not router.replicas.loads:
            raise ApiError(503, "no replica is ready" if not router.is_draining else "the router is shutting down",
                           code="not_ready", wait=5)  # fmt: skip
        return {"status": "ready", "replicas": len(router.replicas.loads)}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(router.counters.page(), media_type="text/plain; version=0.0.4")

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def others(request: Request) -> Response:
        router.watch()
        return await router.answer(request)

    return Gate(app, router.settings)
