"""Replicas and routers as deployments of Ray Serve. A replica runs the application of `spectr serve`, which the router
calls through Ray instead of a socket. Only strings and bytes travel between them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from spectr.fleet.replicas import Answer, Call, NoReplicaError, ReplicaLostError
from spectr.fleet.ring import Ring, choose
from spectr.fleet.router import Router, build_router
from spectr.lm import load
from spectr.serve.app import build_app
from spectr.serve.service import Service
from spectr.serve.settings import ServerSettings

__all__ = ["ModelReplica", "PrefixRouter", "RayReplicas", "RouterIngress"]

_PATIENCE = 30.0  # seconds that a request waits for a replica to accept it
_STREAM_TIMEOUT = 60.0  # a stream that sends nothing for so many seconds, not even a comment, counts as lost

Part = tuple[str, int, dict[str, str]] | bytes
"""A part of a replica's answer: its name, the status and headers, or bytes of the body. The first part has status 0 and
says only that the replica has accepted the request."""


class ModelReplica:
    """Holds a model and the application that serves it."""

    def __init__(self, model: str, loading: Mapping[str, Any], settings: ServerSettings, revision: str) -> None:
        options = dict(loading)
        lm = load(model, options.pop("drafter"), options.pop("rule"), **options)
        self.service, self.revision = Service(lm, settings), revision
        self.service.warm_up()
        self.app = build_app(self.service)
        self.name = serve.get_replica_context().replica_id.unique_id

    def check_health(self) -> None:
        """Raise if this replica is not ready. Ray Serve calls this periodically, and replaces a replica that raises."""
        if (reason := self.service.not_ready) is not None:
            raise RuntimeError(reason)

    async def answer(self, call: Call) -> AsyncIterator[Part]:
        """Answer a request. Closing the generator has the effect of a client that disconnects."""
        yield self.name, 0, {}
        async for part in _run_asgi(self.app, call, self.name):
            yield part


async def _run_asgi(app: Any, call: Call, name: str) -> AsyncIterator[Part]:
    """Call an ASGI application and yield the parts of its answer. Body chunks that are waiting are joined into one."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    disconnected = asyncio.Event()
    bodies = iter([{"type": "http.request", "body": call.body, "more_body": False}])

    async def receive() -> Any:
        if (message := next(bodies, None)) is not None:
            return message
        await disconnected.wait()
        return {"type": "http.disconnect"}

    running = asyncio.ensure_future(app(_scope(call), receive, queue.put))
    running.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (message := await queue.get()) is not None:
            if message["type"] == "http.response.start":
                yield name, message["status"], {key.decode(): value.decode() for key, value in message["headers"]}
                continue
            data, ended = message["body"], False
            while not (queue.empty() or ended):
                more = queue.get_nowait()
                data, ended = (data, True) if more is None else (data + more["body"], False)
            if data:
                yield data
            if ended:
                break
        running.result()
    finally:
        disconnected.set()
        running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await running


def _scope(call: Call) -> dict[str, Any]:
    parts = urlsplit(call.path)
    headers = {**{name.lower(): value for name, value in call.headers.items()}, "host": "localhost"}
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": call.method, "scheme": "http",
        "path": parts.path, "raw_path": parts.path.encode(), "query_string": parts.query.encode(), "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": None, "server": ("localhost", 80),
    }  # fmt: skip


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Chooses the replica for a request in Ray Serve: the one that its prefix maps to, unless it has more than its
    share of the load."""

    def initialize_state(self, **_: Any) -> None:
        """Start with no replicas."""
        self._ring = Ring(())

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return replicas in the order in which Ray Serve is to try them."""
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if not named or pending_request is None or not pending_request.args:
            return [candidate_replicas]
        if self._ring.names != named.keys():
            self._ring = Ring(named)
        call: Call = pending_request.args[0]
        cache = self.replica_queue_len_cache
        loads = {name: cache.get(replica.replica_id) or 0 for name, replica in named.items()}
        untried = {name: load for name, load in loads.items() if name not in call.avoiding} or loads
        first = choose(self._ring, call.key, untried)
        order = [first, *(name for name in self._ring.order(call.key) if name != first and name in untried)]
        return [[named[name]] for name in order if name is not None]


class RayReplicas:
    """Sends requests to the replicas of a deployment through its handle."""

    def __init__(self, handle: Any, patience: float = _PATIENCE) -> None:
        self._handle = handle.options(stream=True, method_name="answer")
        self._patience = patience
        self._loads: dict[str, int] = {}

    @property
    def loads(self) -> Mapping[str, int]:
        """The replicas that run or have answered, and the number of requests that this router has in flight to each."""
        return self._loads

    async def watch(self) -> None:
        """Ask Ray Serve every two seconds how many replicas run, until cancelled."""
        name, app = self._handle.deployment_name, self._handle.app_name
        while True:
            with suppress(RayError, RayServeException, KeyError):
                status = await asyncio.to_thread(serve.status)
                count = status.applications[app].deployments[name].replica_states.get("RUNNING", 0)
                busy = {replica: load for replica, load in self._loads.items() if load}
                idle = {f"idle-{number}": 0 for number in range(max(0, count - len(busy)))}
                self._loads = busy | idle
            await asyncio.sleep(2.0)

    @asynccontextmanager
    async def send(self, call: Call) -> AsyncIterator[Answer]:
        """Send a request to the replica that Ray Serve chooses with `PrefixRouter`."""
        parts = self._handle.remote(call)
        name = ""
        try:
            async with asyncio.timeout(self._patience):
                name, _, _ = await anext(parts)
        except TimeoutError:
            parts.cancel()
            raise NoReplicaError("no replica accepted the request in time") from None
        except (RayError, RayServeException, StopAsyncIteration) as error:
            raise ReplicaLostError(f"a replica was lost: {type(error).__name__}", name) from error
        self._loads[name] = self._loads.get(name, 0) + 1
        try:
            _, status, headers = await self._next(parts, name, None)
            yield Answer(name, status, headers, self._chunks(parts, name, _STREAM_TIMEOUT if call.streams else None))
        finally:
            self._loads[name] = max(0, self._loads.get(name, 1) - 1)
            parts.cancel()

    async def _chunks(self, parts: Any, name: str, timeout: float | None) -> AsyncIterator[bytes]:
        while (part := await self._next(parts, name, timeout)) is not None:
            yield part

    async def _next(self, parts: Any, name: str, timeout: float | None) -> Any:
        """Return the next part of an answer, or None at its end."""
        try:
            async with asyncio.timeout(timeout):
                return await anext(parts, None)
        except (RayError, RayServeException, TimeoutError) as error:
            raise ReplicaLostError(f"replica {name} was lost: {type(error).__name__}", name) from error


class RouterIngress:
    """The router as a deployment, to which the proxy of Ray Serve passes requests."""

    def __init__(self, handle: Any, settings: ServerSettings) -> None:
        self.router = Router(RayReplicas(handle), settings)

    def __serve_build_asgi_app__(self) -> Any:
        """Return the ASGI application to serve. Ray Serve calls this once."""
        return build_router(self.router)
