"""Replicas that are servers with addresses: `spectr serve` on this machine or others."""

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

_LOOKS = 1.0  # seconds between two looks at whether a replica is ready
_PATIENCE = 30.0  # seconds that a request waits for a replica, where there is none
_CONNECT, _WRITE = 5.0, 30.0  # seconds to reach a replica, and for it to take what it is sent
_SILENCE = 60.0  # seconds without a byte, not even a comment, after which a stream is taken for lost


@dataclass(slots=True)
class _State:
    load: int = 0
    is_ready: bool = False


class HttpReplicas:
    """Servers by their addresses. One that is not ready, or was lost, gets no requests until it is ready again."""

    def __init__(self, urls: Sequence[str], request_time: float = 600.0, patience: float = _PATIENCE) -> None:
        try:
            import httpx2
        except ImportError:
            raise MissingExtraError("httpx2", "endpoint", "spectr route") from None
        if not urls or len(set(urls)) != len(urls):
            raise ArgumentError(f"a router needs the addresses of replicas, each once, got {list(urls)}")
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
                raise ArgumentError(f"a replica must be an address such as http://10.0.0.7:8000, got {url!r}")
        self._states = {url.rstrip("/"): _State() for url in urls}
        self._ring = Ring(self._states)
        self._errors, self._patience, self._time = httpx2.TransportError, patience, request_time
        self._timeout = httpx2.Timeout
        self._client = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), trust_env=False)
        self._changed = asyncio.Event()

    @property
    def loads(self) -> Mapping[str, int]:
        """Replicas that are ready, and the requests that each has from here."""
        return {url: state.load for url, state in self._states.items() if state.is_ready}

    async def watch(self) -> None:
        """Ask every replica again and again whether it is ready."""
        while True:
            await asyncio.gather(*(self._look(url) for url in self._states))
            self._changed.set()
            self._changed = asyncio.Event()
            await asyncio.sleep(_LOOKS)

    async def _look(self, url: str) -> None:
        try:
            found = await self._client.get(f"{url}/ready", headers={"host": "localhost"}, timeout=_CONNECT)
            self._states[url].is_ready = found.status_code == 200
        except self._errors:
            self._states[url].is_ready = False

    @asynccontextmanager
    async def send(self, call: Call) -> AsyncIterator[Answer]:
        """Send a request to the replica that its prefix belongs to, or to the next that has room."""
        url = await self._picked(call)
        state = self._states[url]
        state.load += 1
        headers = {**call.headers, "host": "localhost"}
        silence = _SILENCE if call.streams else self._time  # comments keep streams alive
        timeout = self._timeout(connect=_CONNECT, read=silence, write=_WRITE, pool=None)
        try:
            opened = self._client.stream(
                call.method, f"{url}{call.path}", content=call.body, headers=headers, timeout=timeout
            )
            async with opened as found:
                yield Answer(url, found.status_code, found.headers, self._chunks(found, url))
        except self._errors as error:
            state.is_ready = False  # until it says otherwise
            raise ReplicaLostError(f"{url}: {type(error).__name__}", url) from error
        finally:
            state.load -= 1

    async def _chunks(self, found: Any, url: str) -> AsyncIterator[bytes]:
        try:
            async for chunk in found.aiter_bytes():
                yield chunk
        except self._errors as error:
            self._states[url].is_ready = False
            raise ReplicaLostError(f"{url}: {type(error).__name__}", url) from error

    async def _picked(self, call: Call) -> str:
        """A replica that is ready, if need be one that failed with this request before."""
        deadline = time.monotonic() + self._patience
        while True:
            loads = self.loads
            fresh = {url: load for url, load in loads.items() if url not in call.avoiding}
            if (found := choose(self._ring, call.key, fresh or loads)) is not None:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                raise NoReplicaError(f"none of {len(self._states)} replicas is ready")
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
