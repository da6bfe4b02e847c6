"""Answers a body of `/v1/responses`: it runs as a conversation, whose chunks become a response or its events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from fastapi import Request, Response

from spectr.serve.errors import ApiError
from spectr.serve.events import Event, EventStream, Shutdown, unless_disconnected
from spectr.serve.json_text import json_bytes
from spectr.serve.protocol import ChatRequest, SamplingFields
from spectr.serve.responses_api.assembly import ResponseAssembly
from spectr.serve.responses_api.conversion import as_chat_request, as_response_error
from spectr.serve.responses_api.fields import ResponsesRequest
from spectr.serve.settings import ServerSettings

__all__ = ["Conversations", "answer_response"]

_ENDS = (".created", ".done", ".completed", ".incomplete")  # of the types of events that can be large


class Conversations(Protocol):
    """What answers conversations: a server, or a router in front of several."""

    shutdown: Shutdown

    @property
    def settings(self) -> ServerSettings:
        """How long clients and requests may take."""
        ...

    def begin(self, request: Request, body: SamplingFields) -> float:
        """Return the time by which a request must be answered; raises ApiError if no request is taken."""
        ...

    async def converse(self, request: Request, body: ChatRequest) -> AsyncIterator[Event]:
        """Wait for the first chunk of the answer to a conversation, and return all of its chunks."""
        ...


async def answer_response(conversations: Conversations, request: Request, body: ResponsesRequest) -> Response:
    """Answer a request, whole or in a stream."""
    if "last-event-id" in request.headers:
        raise ApiError(400, "a stream of /v1/responses cannot be resumed; send the request again without "
                       "Last-Event-ID", code="not_resumable")  # fmt: skip
    chat, assembly, shutdown = as_chat_request(body), ResponseAssembly(body), conversations.shutdown.future
    deadline, limits = conversations.begin(request, body), conversations.settings.limits
    try:
        events = await unless_disconnected(request.receive, conversations.converse(request, chat), deadline, shutdown)
        if not body.stream:
            whole = await unless_disconnected(request.receive, _whole(events, assembly), deadline, shutdown)
            return Response(whole, media_type="application/json")
    except ApiError as error:
        raise as_response_error(error) from error
    translated, keep_alive = _translated(events, assembly), conversations.settings.keep_alive
    return _ResponseStream(assembly, translated, keep_alive, limits.write_time, deadline, shutdown)


class _ResponseStream(EventStream):
    """Sends the events of a response; the last of them is the end."""

    def __init__(self, assembly: ResponseAssembly, *stream: Any) -> None:
        super().__init__(*stream)
        self._assembly = assembly

    def ending(self, error: ApiError | None) -> bytes:
        """Return the event of an error, if there is one."""
        return b"" if error is None else _event(self._assembly.error(as_response_error(error))).wire


async def _translated(events: AsyncIterator[Event], assembly: ResponseAssembly) -> AsyncIterator[Event]:
    """Yield the events of a response, made from the chunks of a conversation."""
    async with aclosing(events):  # type: ignore[type-var]
        async for event in events:
            for made in assembly.events(event.data):
                yield await _written(made) if made["type"].endswith(_ENDS) else _event(made)


def _event(data: dict[str, Any]) -> Event:
    return Event(data, name=data["type"])


async def _written(data: dict[str, Any]) -> Event:
    """Return an event that a thread has written: a whole text with log-probabilities can have megabytes."""
    return replace(_event(data), written=await asyncio.to_thread(json_bytes, data))


async def _whole(events: AsyncIterator[Event], assembly: ResponseAssembly) -> bytes:
    """Return the whole response, once the conversation has ended."""
    async with aclosing(events):  # type: ignore[type-var]
        async for event in events:
            for _ in assembly.events(event.data):
                pass
    return await asyncio.to_thread(json_bytes, assembly.response)
