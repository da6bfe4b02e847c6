"""Sends answers to clients, whole or as server-sent events. When a client disconnects, or reads nothing for too long,
its request is cancelled."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response

from spectr.serve.errors import ApiError, as_api_error
from spectr.serve.json_text import json_bytes

__all__ = ["Disconnected", "Event", "EventStream", "Shutdown", "unless_disconnected"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Found = TypeVar("Found")
_LOG = logging.getLogger("spectr.serve")
_TICK = 1.0  # seconds between two looks at a stream
_PIECE = 1 << 18  # bytes that are passed to the connection at once


@dataclass(frozen=True, slots=True)
class Event:
    """A JSON object that is sent, with an id by which a client can say how far it has read."""

    data: Mapping[str, Any]
    id: str | None = None
    written: bytes | None = None  # its data as JSON, where a thread has written them beforehand
    name: str | None = None  # the kind of event, where a client listens for kinds

    @property
    def wire(self) -> bytes:
        """The event as it is sent."""
        head = b"" if self.id is None else f"id: {self.id}\n".encode()
        head += b"" if self.name is None else f"event: {self.name}\n".encode()
        return head + b"data: " + (json_bytes(self.data) if self.written is None else self.written) + b"\n\n"


class Disconnected(Exception):  # noqa: N818 - nothing went wrong here
    """The client has closed its connection, so that no answer is sent."""


async def _disconnection(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _cut_off() -> ApiError:
    return ApiError(503, "the server is shutting down and did not wait for this request; send it elsewhere",
                    code="draining", wait=30)  # fmt: skip


class Shutdown:
    """A future that is done once the server no longer waits for the requests that run."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    @property
    def future(self) -> "asyncio.Future[None]":
        """The future, of the event loop that runs."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    def begin(self) -> None:
        """Answer all requests that run with an error. From the event loop."""
        if not self.future.done():
            self.future.set_result(None)


async def unless_disconnected(
    receive: Receive, work: Awaitable[Found], deadline: float, shutdown: "asyncio.Future[None]"
) -> Found:
    """Do some work for a client. It is cancelled if the client disconnects, at the deadline (a time of the monotonic
    clock), or when `shutdown` is done."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnection(receive))
    try:
        waits: set[asyncio.Future[Any]] = {working, leaving, shutdown}
        await asyncio.wait(waits, timeout=max(0.0, deadline - time.monotonic()), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if shutdown.done():
            raise _cut_off()
        raise Disconnected if leaving.done() else TimeoutError
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream(Response):
    """Sends JSON objects as events while they are generated, then `[DONE]`. An error in between is an event as well."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[Event],
        keep_alive: float,
        write_time: float,
        deadline: float,
        shutdown: "asyncio.Future[None]",
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._keep_alive, self._write_time = events, keep_alive, write_time
        self._deadline, self._shutdown = deadline, shutdown  # the deadline is a time of the monotonic clock
        self._sent = time.monotonic()
        self._is_sending = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Send events until they end, the client disconnects or does not read, or the server shuts down."""
        producing = asyncio.ensure_future(self._produce(send))
        leaving = asyncio.ensure_future(_disconnection(receive))
        try:
            while not (producing.done() or leaving.done() or self._shutdown.done()):
                waits: set[asyncio.Future[Any]] = {producing, leaving, self._shutdown}
                await asyncio.wait(waits, timeout=_TICK, return_when=asyncio.FIRST_COMPLETED)
                quiet = time.monotonic() - self._sent
                if self._is_sending and quiet > self._write_time:
                    break
                if not self._is_sending and quiet > self._keep_alive and not producing.done():
                    await self._write(send, b": keep-alive\n\n")
            is_cut = self._shutdown.done() and not (producing.done() or leaving.done() or self._is_sending)
        finally:
            for task in (producing, leaving):
                task.cancel()
            await asyncio.gather(producing, leaving, return_exceptions=True)
            await self._events.aclose()  # type: ignore[attr-defined]
        if is_cut:
            await self._end(send, _cut_off())

    async def _produce(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                async for event in self._events:
                    await self._write(send, event.wire)
        except Exception as error:
            found = as_api_error(error)
            if found.status >= 500 and not isinstance(error, ApiError):
                _LOG.exception("a stream failed")
            await self._end(send, found)
            return
        await self._end(send)

    def ending(self, error: ApiError | None) -> bytes:
        """Return the last events: an error, if there is one, and the mark of the end."""
        failed = b"" if error is None else b"data: " + json.dumps(error.body).encode() + b"\n\n"
        return failed + b"data: [DONE]\n\n"

    async def _end(self, send: Send, error: ApiError | None = None) -> None:
        await self._write(send, self.ending(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            self._is_sending = True
            await send({"type": "http.response.body", "body": data[start : start + _PIECE], "more_body": True})
            self._is_sending, self._sent = False, time.monotonic()
