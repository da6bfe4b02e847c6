"""Answers on their way to a client: at once when they are whole, or as server-sent events. Whoever hangs up, or takes
nothing for too long, is noticed, and what was asked for is cancelled."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response

from spectr.serve.json_text import json_bytes
from spectr.serve.problems import ApiError, as_api_error

__all__ = ["Disconnected", "Ending", "Event", "EventStream", "unless_disconnected"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Found = TypeVar("Found")
_LOG = logging.getLogger("spectr.serve")
_TICK = 1.0  # seconds between two looks at a stream
_PIECE = 1 << 18  # bytes that are passed to the connection at once


@dataclass(frozen=True, slots=True)
class Event:
    """A JSON object on its way, with an id by which a client can say how far it has read."""

    data: Mapping[str, Any]
    id: str | None = None
    written: bytes | None = None  # its data as JSON, where a thread has written them beforehand

    @property
    def wire(self) -> bytes:
        """The event as it is sent."""
        head = b"" if self.id is None else f"id: {self.id}\n".encode()
        return head + b"data: " + (json_bytes(self.data) if self.written is None else self.written) + b"\n\n"


class Disconnected(Exception):  # noqa: N818 - nothing went wrong here
    """The client has gone; there is nobody to answer."""


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _cut_off() -> ApiError:
    return ApiError(503, "the server is shutting down and did not wait for this request; send it elsewhere",
                    code="draining", wait=30)  # fmt: skip


class Ending:
    """When whoever answers requests will not wait for them any longer."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None

    @property
    def over(self) -> "asyncio.Future[None]":
        """Done from then on."""
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
        return self._over

    def end(self) -> None:
        """Answer all requests that run with an error. From the event loop."""
        if not self.over.done():
            self.over.set_result(None)


async def unless_disconnected(
    receive: Receive, work: Awaitable[Found], most: float, over: "asyncio.Future[None]"
) -> Found:
    """Do some work for a client; it is cancelled if the client goes, if it takes more than `most` seconds, or when the
    server ends, which `over` tells."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        waits: set[asyncio.Future[Any]] = {working, leaving, over}
        await asyncio.wait(waits, timeout=max(0.0, most), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if over.done():
            raise _cut_off()
        raise Disconnected if leaving.done() else TimeoutError
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream(Response):
    """JSON objects as events, as they come; then `[DONE]`. An error amid them is an event too."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[Event],
        keep_alive: float,
        write_time: float,
        deadline: float,
        over: "asyncio.Future[None]",
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._keep_alive, self._write_time = events, keep_alive, write_time
        self._deadline, self._over = deadline, over  # a time of the monotonic clock; done when the server ends
        self._sent = time.monotonic()
        self._is_sending = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Send events until they end, or nobody takes them any more."""
        producing = asyncio.ensure_future(self._produce(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            while not (producing.done() or leaving.done() or self._over.done()):
                await asyncio.wait({producing, leaving, self._over}, timeout=_TICK, return_when=asyncio.FIRST_COMPLETED)
                quiet = time.monotonic() - self._sent
                if self._is_sending and quiet > self._write_time:
                    break
                if not self._is_sending and quiet > self._keep_alive and not producing.done():
                    await self._write(send, b": keep-alive\n\n")
            is_cut = self._over.done() and not (producing.done() or leaving.done() or self._is_sending)
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

    async def _end(self, send: Send, error: ApiError | None = None) -> None:
        """The last events: an error, if there is one, and the mark of the end."""
        if error is not None:
            await self._write(send, b"data: " + json.dumps(error.body).encode() + b"\n\n")
        await self._write(send, b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            self._is_sending = True
            await send({"type": "http.response.body", "body": data[start : start + _PIECE], "more_body": True})
            self._is_sending, self._sent = False, time.monotonic()
