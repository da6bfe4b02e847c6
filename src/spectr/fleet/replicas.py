"""The interface between the router and the replicas that it sends requests to."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from spectr.serve.errors import ApiError

__all__ = ["Answer", "Call", "NoReplicaError", "ReplicaLostError", "Replicas"]


class ReplicaLostError(Exception):
    """A replica did not end its answer, or could not be reached."""

    def __init__(self, message: str, replica: str) -> None:
        super().__init__(message)
        self.replica = replica


class NoReplicaError(ApiError):
    """There is no replica that takes requests."""

    def __init__(self, message: str) -> None:
        super().__init__(503, f"{message}; retry later", code="no_replica", wait=5)


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way to a replica: texts and bytes, as they are on the wire."""

    method: str
    path: str  # with the query
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    key: str = ""  # the beginning of the prompt, which decides where it goes
    streams: bool = False  # the answer comes in pieces
    avoiding: frozenset[str] = frozenset()  # replicas that failed with it


@dataclass(frozen=True, slots=True)
class Answer:
    """What a replica answers."""

    replica: str
    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]  # raises `ReplicaLostError` if they break off


class Replicas(Protocol):
    """The replicas of a fleet."""

    def send(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        """The answer of a replica, as long as the block runs; a call that is left before its end is cancelled. Raises
        `ReplicaLostError`, or `NoReplicaError` if there is none to send it to."""
        ...

    @property
    def loads(self) -> Mapping[str, int]:
        """The replicas that take requests, and how many each has."""
        ...

    async def watch(self) -> None:
        """Keep the list of replicas that take requests up to date, until it is cancelled."""
        ...
