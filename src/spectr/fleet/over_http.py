"""Replicas that the router reaches over HTTP: servers started with `spectr serve`, on this machine or others."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spectr.errors import ArgumentError, MissingExtraError
from spectr.fleet.replicas import Answer, Call, NoReplicaError, ReplicaLostError
from spectr.fleet.ring import Ring, choose

__all__ = ["HttpReplicas"]

_POLL_INTERVAL = 1.0  # seconds between two checks whether a replica is ready
_PATIENCE = 30.0  # seconds that a request waits if no replica is ready
_CONNECT, _WRITE = 5.0, 30.0  # timeouts in seconds for connecting to a replica and for sending it a request
_STREAM_TIMEOUT = 60.0  # a stream that sends nothing for so many seconds, not even a comment, counts as lost


@dataclass(slots=True)
class _State:
    load: int = 0
    is_ready: bool = False


class HttpReplicas:
    """Sends requests to servers by their addresses. A server that was lost or is not ready gets no requests until it is
    ready again."""

    def __init__(self, urls: Sequence[str], request_time: float = 600.0, patience: float = _PATIENCE) -> None:
        try:
            import httpx2
        except ImportError:
            raise MissingExtraError("httpx2", "endpoint", "spectr route") from None
        if not urls or len(set(urls)) != len(urls):
            raise ArgumentError(f"a router needs at least one replica, and each address only once, got {list(urls)}")
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
                raise ArgumentError(f"the address of a replica must look like http://10.0.0.7:8000, got {url!r}")
        self._states = {url.rstrip("/"): _State() for url in urls}
        self._ring = Ring(self._states)
        self._errors, self._patience, self._time = httpx2.TransportError, patience, request_time
        self._timeout = httpx2.Timeout
        self._client = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), trust_env=False)
        self._changed = asyncio.Event()

    @property
    def loads(self) -> Mapping[str, int]:
        """The replicas that are ready, and the number of requests that this router has in flight to each."""
        return {url: state.load for url, state in self._states.items() if state.is_ready}

    async def watch(self) -> None:
        """Check every second which replicas are ready, until cancelled."""
        while True:
            await asyncio.gather(*(self._check_ready(url) for url in self._states))
            self._changed.set()
            self._changed = asyncio.Event()
            await asyncio.sleep(_POLL_INTERVAL)

    async def _check_ready(self, url: str) -> None:
        try:
            response = await self._client.get(f"{url}/ready", headers={"host": "localhost"}, timeout=_CONNECT)
            self._states[url].is_ready = response.status_code == 200
        except self._errors:
            self._states[url].is_ready = False

    @asynccontextmanager
    async def send(self, call: Call) -> AsyncIterator[Answer]:
        """Send a request to the replica that its prefix maps to, or to the next one on the ring that has room."""
        url = await self._pick(call)
        state = self._states[url]
        state.load += 1
        headers = {**call.headers, "host": "localhost"}
        read = _STREAM_TIMEOUT if call.streams else self._time  # an idle stream still sends comments
        timeout = self._timeout(connect=_CONNECT, read=read, write=_WRITE, pool=None)
        try:
            stream = self._client.stream(
                call.method, f"{url}{call.path}", content=call.body, headers=headers, timeout=timeout
            )
            async with stream as response:
                yield Answer(url, response.status_code, response.headers, self._chunks(response, url))
        except self._errors as error:
            state.is_ready = False  # until the next successful check
            raise ReplicaLostError(f"{url}: {type(error).__name__}", url) from error
        finally:
            state.load -= 1

    async def _chunks(self, response: Any, url: str) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.aiter_bytes():
                yield chunk
        except self._errors as error:
            self._states[url].is_ready = False
            raise ReplicaLostError(f"{url}: {type(error).__name__}", url) from error

    async def _pick(self, call: Call) -> str:
        """Return a replica that is ready. Use one that this request was already lost at only if there is no other."""
        deadline = time.monotonic() + self._patience
        while True:
            loads = self.loads
            untried = {url: load for url, load in loads.items() if url not in call.avoiding}
            if (chosen := choose(self._ring, call.key, untried or loads)) is not None:
                return chosen
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise NoReplicaError(f"none of {len(self._states)} replicas is ready")
            try:
                await asyncio.wait_for(self._changed.wait(), seconds_left)
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
