"""When the steps of requests reach the host: noted by the engine's own thread, so that nobody is woken for a step."""

import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spectr.engine import Engine, Handle, Request, Result

__all__ = ["Event", "Watch", "watched"]

_PATIENCE = 1.0  # seconds after which requests are asked whether they have failed
_LET_GO = 30.0  # seconds that an engine gets to end a step


class Event(NamedTuple):
    """A request got tokens, or none because it has ended."""

    time: float
    number: int  # of the request
    tokens: int  # 0: the text has ended


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of one request that shows nothing."""

    number: int
    watch: "Watch"

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """A step reached the host."""
        self.watch.log.append(Event(time.perf_counter(), self.number, len(tokens)))
        return "", None

    def finish(self) -> str:
        """That was the last one."""
        self.watch.log.append(Event(time.perf_counter(), self.number, 0))
        self.watch.has_ended(self.number)
        return ""


@dataclass(slots=True)
class Watch:
    """Requests of an engine, and what they have told so far."""

    engine: Engine
    log: list[Event] = field(default_factory=list)
    handles: dict[int, Handle] = field(default_factory=dict)  # of those that have not ended
    results: dict[int, Result] = field(default_factory=dict)  # of those that have
    submitted: list[float] = field(default_factory=list)  # when each was
    _ended: "queue.SimpleQueue[int]" = field(default_factory=queue.SimpleQueue)
    _checked: float = field(default_factory=time.perf_counter)

    def submit(self, requests: Sequence[Request]) -> None:
        """Submit requests all at once, so that they begin in the same turn; they are numbered as they come."""
        numbers = range(len(self.submitted), len(self.submitted) + len(requests))
        own = [replace(request, reader=_Reader(n, self)) for n, request in zip(numbers, requests, strict=True)]
        for request in own:
            self.engine.check(request)
        self.submitted += [time.perf_counter()] * len(own)
        self.handles.update(zip(numbers, self.engine.scheduler.submit(own), strict=True))

    def has_ended(self, number: int) -> None:
        """Called by the engine's thread."""
        self._ended.put(number)

    def first_to_end(self, timeout: float | None = None) -> int | None:
        """The next request that has ended, once there is one; None if none has within `timeout` seconds."""
        until = None if timeout is None else time.perf_counter() + timeout
        while True:
            left = _PATIENCE if until is None else min(_PATIENCE, until - time.perf_counter())
            try:
                number = self._ended.get(timeout=max(0.0, left))
            except queue.Empty:
                self._check()
                if until is not None and time.perf_counter() >= until:
                    return None
            else:
                self.results[number] = self.handles.pop(number).result()
                return number

    def _check(self) -> None:
        """Raise what some request has failed with; now and then, since it takes the engine's lock."""
        if time.perf_counter() - self._checked < _PATIENCE:
            return
        self._checked = time.perf_counter()
        for handle in self.handles.values():
            with suppress(TimeoutError):  # it goes on
                handle.result(timeout=0)

    def cancel(self) -> None:
        """Take no more steps of those that go on, and wait until the engine has let them go."""
        for handle in self.handles.values():
            handle.cancel()
        self.handles.clear()
        until = time.perf_counter() + _LET_GO
        while self.engine.scheduler.is_busy and time.perf_counter() < until:
            time.sleep(0.001)


def watched(engine: Engine, requests: Sequence[Request], enough: int | None = None) -> list[Event]:
    """Run requests side by side until all of them, or `enough`, have ended."""
    watch = Watch(engine)
    watch.submit(requests)
    try:
        for _ in range(len(requests) if enough is None else enough):
            watch.first_to_end()
    finally:
        watch.cancel()
    return list(watch.log)
