"""A request under way, seen from both sides: the scheduler delivers steps, and whoever asked takes them.

The scheduler knows deliveries alone, so that a handle which nobody holds any more is collected, and its request
cancelled.
"""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from spectr.engine.metrics import Counted, Stats, count_step
from spectr.engine.request import Request, Result, Step, TokenLogprobs

__all__ = ["Delivery", "Handle"]


Delivered = tuple[Step, Counted, list[float]]
"""A step, what is counted of it, and the times before draft, target and rule, and after."""


class Delivery:
    """Steps of one request on their way."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.news = threading.Condition()  # of its own: a step of one request wakes nobody who waits for another
        self.reused = 0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.is_cancelled = False
        self.has_ended = False
        self.error: BaseException | None = None
        self._steps: deque[Delivered] = deque()
        self._listeners: list[Callable[[], None]] = []

    def add(self, step: Step, counted: Counted, marks: list[float]) -> None:
        """One step more, and what is counted of it; the last one says why."""
        with self.news:
            self._steps.append((step, counted, marks))
            self.has_ended = step.finish_reason is not None
            self._tell()

    def fail(self, error: BaseException) -> None:
        """Nothing more comes, because of this."""
        with self.news:
            if not self.has_ended:
                self.has_ended, self.error = True, error
                self._tell()

    def cancel(self) -> None:
        """Nobody wants to know any more."""
        with self.news:
            if not self.has_ended:
                self.is_cancelled = self.has_ended = True
                self._tell()

    def take(self, timeout: float | None = None) -> Delivered | None:
        """The next step, when it is there; None if there is none to come."""
        with self.news:
            if not self.news.wait_for(self._is_ready, timeout):
                raise TimeoutError(f"no step came within {timeout} seconds; the request goes on")
            return self._steps.popleft() if self._steps and not self.is_cancelled else None

    def take_all(self) -> tuple[list[Delivered], bool]:
        """The steps that have come and were not taken, without waiting, and whether no more will come."""
        with self.news:
            found, self._steps = self._steps, deque()
            return [] if self.is_cancelled else list(found), self.has_ended

    def listen(self, listener: Callable[[], None]) -> None:
        """Call once, from whichever thread, when the next step can be taken or nothing more comes."""
        with self.news:
            if not self._is_ready():
                self._listeners.append(listener)
                return
        listener()

    def _is_ready(self) -> bool:
        return bool(self._steps) or self.has_ended

    def _tell(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()
        self.news.notify_all()


class Mailbox:
    """Wakes futures of one event loop from other threads. A step of many rows makes one call to the loop, not one for
    each row."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._futures: deque[asyncio.Future[None]] = deque()
        self._is_called = False

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "Mailbox":
        """The mailbox of a loop."""
        if loop not in _mailboxes:
            _mailboxes[loop] = cls(loop)
        return _mailboxes[loop]

    def post(self, future: "asyncio.Future[None]") -> None:
        """Resolve a future soon. From any thread."""
        self._futures.append(future)
        loop = self._loop()
        if not self._is_called and loop is not None:
            self._is_called = True
            try:
                loop.call_soon_threadsafe(self._resolve)
            except BaseException as error:
                self._is_called = False  # a call that failed must not keep later posts from making one
                if not isinstance(error, RuntimeError):  # the loop was closed meanwhile: nobody waits
                    raise

    def _resolve(self) -> None:
        self._is_called = False  # before the futures are taken: what is posted from now on makes another call
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)


_mailboxes: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = weakref.WeakKeyDictionary()


class Handle(Iterator[Step]):
    """The steps of one request as they come, and all that came so far. It can also be awaited, and read with `async
    for`."""

    def __init__(self, delivery: Delivery, wake: Callable[[], None]) -> None:
        self.request = delivery.request
        self._delivery, self._wake = delivery, wake
        stats = Stats(rejected_prediction_tokens=len(self.request.reference))
        self._result = Result(stats=stats, logprobs=[] if self.request.logprobs is not None else None)

    @property
    def so_far(self) -> Result:
        """What has been taken."""
        self._result.reused, self._result.prompt_logprobs = self._delivery.reused, self._delivery.prompt_logprobs
        return self._result

    def result(self, timeout: float | None = None) -> Result:
        """The whole, once it is there; raises what the request failed with."""
        while (delivered := self._delivery.take(timeout)) is not None:
            self._add(*delivered)
        self._finish()
        return self.so_far

    def cancel(self) -> None:
        """Take no more steps; what came so far stays."""
        self._delivery.cancel()
        self._wake()
        if self._result.finish_reason is None:
            self._result.finish_reason = "cancelled"

    def __iter__(self) -> "Handle":
        return self

    def __next__(self) -> Step:
        delivered = self._delivery.take()
        if delivered is None:
            self._finish()
            raise StopIteration
        return self._add(*delivered)

    def _add(self, step: Step, counted: Counted, marks: list[float]) -> Step:
        """Count a step when it is taken: what nobody took does not count."""
        self._result.add(step)
        count_step(self._result.stats, counted, marks)
        return step

    def _finish(self) -> None:
        if self._delivery.error is not None:
            raise self._delivery.error
        if self._result.finish_reason is None and self._delivery.is_cancelled:
            self._result.finish_reason = "cancelled"

    def __await__(self) -> Generator[Any, None, Result]:
        return self._awaited().__await__()

    async def _awaited(self) -> Result:
        async for _ in self:
            pass
        return self.so_far

    async def __aiter__(self) -> AsyncIterator[Step]:
        while True:
            await self._readiness()
            try:
                yield next(self)
            except StopIteration:
                return

    async def arrivals(self) -> AsyncIterator[list[Step]]:
        """Steps as they come, all those at once that came since the last time; raises what the request failed with."""
        has_ended = False
        while not has_ended:
            await self._readiness()
            found, has_ended = self._delivery.take_all()
            if found:
                yield [self._add(*delivered) for delivered in found]
        self._finish()

    async def _readiness(self) -> None:
        """Until a step can be taken without waiting."""
        loop = asyncio.get_running_loop()
        ready, mailbox = loop.create_future(), Mailbox.of(loop)
        self._delivery.listen(lambda: mailbox.post(ready))
        await ready

    def __del__(self) -> None:
        delivery = getattr(self, "_delivery", None)
        if delivery is not None and not delivery.has_ended:
            delivery.is_cancelled = True  # without a lock: collection may happen anywhere; whoever runs it will see
