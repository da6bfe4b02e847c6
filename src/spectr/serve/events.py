"""Answers on their way to a client: at once when they are whole, or as server-sent events. Whoever hangs up, or takes
nothing for too long, is noticed, and what was asked for is cancelled."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from starlette.responses import Response

from spectr.serve.problems import as_api_error

__all__ = ["Disconnected", "EventStream", "unless_disconnected"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Found = TypeVar("Found")
_TICK = 1.0  # seconds between two looks at a stream


class Disconnected(Exception):  # noqa: N818 - nothing went wrong here
    """The client has gone; there is nobody to answer."""


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Awaitable[Found], most: float) -> Found:
    """Do some work for a client; it is cancelled if the client goes or if it takes more than `most` seconds."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, timeout=most, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Disconnected if leaving.done() else TimeoutError
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream(Response):
    """JSON objects as events, as they come; then `[DONE]`. An error amid them is an event too."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[dict[str, Any]], keep_alive: float, write_time: float, most: float
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._keep_alive, self._write_time, self._most = events, keep_alive, write_time, most
        self._sent = self._began = time.monotonic()
        self._is_sending = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Send events until they end, or nobody takes them any more."""
        producing = asyncio.ensure_future(self._produce(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            while not (producing.done() or leaving.done()):
                await asyncio.wait({producing, leaving}, timeout=_TICK, return_when=asyncio.FIRST_COMPLETED)
                quiet = time.monotonic() - self._sent
                if self._is_sending and quiet > self._write_time:
                    break
                if not self._is_sending and quiet > self._keep_alive and not producing.done():
                    await self._write(send, b": keep-alive\n\n")
        finally:
            for task in (producing, leaving):
                task.cancel()
            await asyncio.gather(producing, leaving, return_exceptions=True)
            await self._events.aclose()  # type: ignore[attr-defined]

    async def _produce(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with asyncio.timeout(self._most):
                async for event in self._events:
                    await self._write(send, b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")
        except Exception as error:
            await self._write(send, b"data: " + json.dumps(as_api_error(error).body).encode() + b"\n\n")
        await self._write(send, b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        self._is_sending = True
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._is_sending, self._sent = False, time.monotonic()
