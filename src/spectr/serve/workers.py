"""Threads for work that would block the event loop: tokenizing, and writing large bodies. Keys take turns."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from spectr.serve.errors import ApiError

__all__ = ["Workers"]

Found = TypeVar("Found")


class Workers:
    """A few threads, and a queue for each key: of the keys that wait, the one that was served longest ago is next. All
    calls are from the event loop."""

    def __init__(self, threads: int, most_waiting: int, name: str = "spectr-worker") -> None:
        self._threads, self._most = threads, most_waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._running = 0

    async def run(self, tenant: str, work: Callable[[], Found]) -> Found:
        """Run a function in a thread when it is this key's turn. If it is cancelled before, it does not run."""
        loop = asyncio.get_running_loop()
        await self._turn(tenant, loop)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._leave)

        try:
            future = self._pool.submit(work)
        except RuntimeError:
            self._leave()
            raise ApiError(503, "the server is shutting down", code="draining", wait=30) from None
        future.add_done_callback(ended)  # and not when the caller is cancelled: the thread is taken until the work ends
        return await asyncio.wrap_future(future)

    async def _turn(self, tenant: str, loop: asyncio.AbstractEventLoop) -> None:
        queue = self._queues.setdefault(tenant, deque())
        if len(queue) >= self._most:
            raise ApiError(
                429, f"{len(queue)} requests of this key wait for a worker, which is the limit; retry later",
                code="queue_full", wait=1,
            )  # fmt: skip
        turn: asyncio.Future[None] = loop.create_future()
        queue.append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came, and it was cancelled at once
                self._leave()
            elif turn in queue:
                queue.remove(turn)
            raise

    def _next(self) -> None:
        """Start the next calls, as long as there are threads."""
        while self._running < self._threads and self._queues:
            tenant, queue = self._queues.popitem(last=False)
            turn = queue.popleft() if queue else None
            if queue:
                self._queues[tenant] = queue  # as the last of all
            if turn is not None and not turn.done():
                self._running += 1
                turn.set_result(None)

    def _leave(self) -> None:
        self._running -= 1
        self._next()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
