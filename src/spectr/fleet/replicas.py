"""The interface between the router and the replicas that it sends requests to."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from spectr.serve.errors import ApiError

__all__ = ["Answer", "Call", "NoReplicaError", "ReplicaLostError", "Replicas"]


class ReplicaLostError(Exception):
    """A replica could not be reached, or broke off its answer."""

    def __init__(self, message: str, replica: str) -> None:
        super().__init__(message)
        self.replica = replica


class NoReplicaError(ApiError):
    """No replica accepts requests."""

    def __init__(self, message: str) -> None:
        super().__init__(503, f"{message}; retry later", code="no_replica", wait=5)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a replica: strings and bytes as they are sent over HTTP."""

    method: str
    path: str  # including the query
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    key: str = ""  # the beginning of the prompt, by which a replica is chosen
    streams: bool = False  # whether the answer is a stream of events
    avoiding: frozenset[str] = frozenset()  # replicas that already failed to answer this request


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a replica to a call."""

    replica: str
    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]  # raises `ReplicaLostError` if the answer breaks off


class Replicas(Protocol):
    """The replicas of a fleet."""

    def send(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        """Send a call to a replica. The answer is valid inside the block; leaving the block early cancels the call.

        Raise `ReplicaLostError` if the replica is lost, and `NoReplicaError` if no replica accepts requests."""
        ...

    @property
    def loads(self) -> Mapping[str, int]:
        """The replicas that accept requests, and the number of requests in flight to each."""
        ...

    async def watch(self) -> None:
        """Keep the list of replicas that accept requests up to date, until cancelled."""
        ...
