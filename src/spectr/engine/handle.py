"""The two ends of a running request: the scheduler adds steps to a `Delivery`, and the caller takes them by a `Handle`.

The scheduler refers to deliveries only. So a handle that the caller has dropped is collected, which cancels its
request."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from spectr.engine.mailbox import Mailbox
from spectr.engine.metrics import Stats, StepCounts, count_step
from spectr.engine.request import Request, Result, Step, TokenLogprobs

__all__ = ["Delivery", "Handle"]


Delivered = tuple[Step, StepCounts, list[float]]
"""A step, its counts, and the times before draft, target and rule, and after."""


class Delivery:
    """The steps of one request that the caller has not taken yet."""

    def __init__(self, request: Request) -> None:
        self.request = request
        # Its own, so that a step of one request does not wake those that wait for another.
        self.news = threading.Condition()
        self.reused = 0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.is_cancelled = False
        self.has_ended = False
        self.error: BaseException | None = None
        self._steps: deque[Delivered] = deque()
        self._listeners: list[Callable[[], None]] = []

    def add(self, step: Step, counts: StepCounts, marks: list[float]) -> None:
        """Add a step; one with a finish reason is the last."""
        with self.news:
            self._steps.append((step, counts, marks))
            self.has_ended = step.finish_reason is not None
            self._notify()

    def fail(self, error: BaseException) -> None:
        """End the request with an error."""
        with self.news:
            if not self.has_ended:
                self.has_ended, self.error = True, error
                self._notify()

    def cancel(self) -> None:
        """End the request on behalf of the caller."""
        with self.news:
            if not self.has_ended:
                self.is_cancelled = self.has_ended = True
                self._notify()

    def take(self, timeout: float | None = None) -> Delivered | None:
        """Wait for the next step and return it; None if the request has ended."""
        with self.news:
            if not self.news.wait_for(self._is_ready, timeout):
                raise TimeoutError(f"no step came within {timeout} seconds; the request goes on")
            return self._steps.popleft() if self._steps and not self.is_cancelled else None

    def take_all(self) -> tuple[list[Delivered], bool]:
        """Return the steps that have arrived, without waiting, and whether the request has ended."""
        with self.news:
            steps, self._steps = self._steps, deque()
            return [] if self.is_cancelled else list(steps), self.has_ended

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` once, from any thread, when a step can be taken or the request has ended."""
        with self.news:
            if not self._is_ready():
                self._listeners.append(listener)
                return
        listener()

    def _is_ready(self) -> bool:
        return bool(self._steps) or self.has_ended

    def _notify(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()
        self.news.notify_all()


class Handle(Iterator[Step]):
    """Iterates over the steps of one request as they arrive, and holds the result so far. It can also be awaited, and
    iterated with `async for`."""

    def __init__(self, delivery: Delivery, wake: Callable[[], None]) -> None:
        self.request = delivery.request
        self._delivery, self._wake = delivery, wake
        stats = Stats(rejected_prediction_tokens=len(self.request.prediction))
        self._result = Result(stats=stats, logprobs=[] if self.request.logprobs is not None else None)

    @property
    def so_far(self) -> Result:
        """The result of the steps taken so far."""
        self._result.reused, self._result.prompt_logprobs = self._delivery.reused, self._delivery.prompt_logprobs
        return self._result

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end of the request, at most `timeout` seconds, and return its result; raise the error it failed
        with."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                delivered = self._delivery.take(None if end is None else max(0.0, end - time.monotonic()))
            except TimeoutError:
                raise TimeoutError(f"the text did not end within {timeout} seconds; the request goes on") from None
            if delivered is None:
                break
            self._add(*delivered)
        self._finish()
        return self.so_far

    def cancel(self) -> None:
        """Cancel the request; the result so far stays."""
        has_failed = isinstance(self._delivery.error, Exception)  # which nobody has heard of yet
        self._delivery.cancel()
        self._wake()
        if self._result.finish_reason is None:
            self._result.finish_reason = "error" if has_failed else "cancelled"

    def __iter__(self) -> "Handle":
        return self

    def __next__(self) -> Step:
        delivered = self._delivery.take()
        if delivered is None:
            self._finish()
            raise StopIteration
        return self._add(*delivered)

    def _add(self, step: Step, counts: StepCounts, marks: list[float]) -> Step:
        """Add a step to the result. Steps count when they are taken."""
        self._result.add(step)
        count_step(self._result.stats, counts, marks)
        return step

    def _finish(self) -> None:
        if self._delivery.error is not None:
            if isinstance(self._delivery.error, Exception):  # an interrupt is no failure: the text can be cancelled
                self._result.finish_reason = "error"
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
            await self._wait_until_ready()
            try:
                yield next(self)
            except StopIteration:
                return

    async def arrivals(self) -> AsyncIterator[list[Step]]:
        """Yield lists of the steps that have arrived since the last list; raise the error the request failed with."""
        has_ended = False
        while not has_ended:
            await self._wait_until_ready()
            steps, has_ended = self._delivery.take_all()
            if steps:
                yield [self._add(*delivered) for delivered in steps]
        self._finish()

    async def _wait_until_ready(self) -> None:
        """Return once a step can be taken without waiting."""
        loop = asyncio.get_running_loop()
        ready, mailbox = loop.create_future(), Mailbox.of(loop)
        self._delivery.listen(lambda: mailbox.post(ready))
        await ready

    def __del__(self) -> None:
        delivery = getattr(self, "_delivery", None)
        if delivery is not None and not delivery.has_ended:
            # Without a lock, since collection may happen in any thread; the lane checks this flag.
            delivery.is_cancelled = True
