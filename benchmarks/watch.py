"""Records when the steps of requests reach the host. The engine's own thread records, so that no thread is woken."""

import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spectr.engine import Engine, Handle, Request, Result

__all__ = ["Event", "Watch", "watched"]

_PATIENCE = 1.0  # seconds between checks whether requests have failed
_LET_GO = 30.0  # seconds to wait for an engine to release cancelled requests


class Event(NamedTuple):
    """A request received tokens, or has ended."""

    time: float
    number: int  # of the request
    tokens: int  # 0: the text has ended


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of one request that produces no text."""

    number: int
    watch: "Watch"

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Record the tokens of a step."""
        self.watch.log.append(Event(time.perf_counter(), self.number, len(tokens)))
        return "", None

    def finish(self) -> str:
        """Record that the text has ended."""
        self.watch.log.append(Event(time.perf_counter(), self.number, 0))
        self.watch.has_ended(self.number)
        return ""


@dataclass(slots=True)
class Watch:
    """Requests of an engine, and their events so far."""

    engine: Engine
    log: list[Event] = field(default_factory=list)
    handles: dict[int, Handle] = field(default_factory=dict)  # of the requests that have not ended
    results: dict[int, Result] = field(default_factory=dict)  # of the requests that have ended
    submitted: list[float] = field(default_factory=list)  # the time of each submission
    _ended: "queue.SimpleQueue[int]" = field(default_factory=queue.SimpleQueue)
    _checked: float = field(default_factory=time.perf_counter)

    def submit(self, requests: Sequence[Request]) -> None:
        """Submit requests at once, so that they begin in the same turn; they are numbered in order of submission."""
        numbers = range(len(self.submitted), len(self.submitted) + len(requests))
        own = [replace(request, reader=_Reader(n, self)) for n, request in zip(numbers, requests, strict=True)]
        for request in own:
            self.engine.check(request)
        self.submitted += [time.perf_counter()] * len(own)
        self.handles.update(zip(numbers, self.engine.submit_checked(own), strict=True))

    def has_ended(self, number: int) -> None:
        """Report the end of a request; the engine's thread calls this."""
        self._ended.put(number)

    def first_to_end(self, timeout: float | None = None) -> int | None:
        """Wait for the next request to end and return its number, or None if none ends within `timeout` seconds."""
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
        """Raise the error of a request that has failed. This takes the engine's lock, so it is done at intervals."""
        if time.perf_counter() - self._checked < _PATIENCE:
            return
        self._checked = time.perf_counter()
        for handle in self.handles.values():
            with suppress(TimeoutError):  # still running
                handle.result(timeout=0)

    def cancel(self) -> None:
        """Cancel the requests that are still running, and wait until the engine has released them."""
        for handle in self.handles.values():
            handle.cancel()
        self.handles.clear()
        until = time.perf_counter() + _LET_GO
        while self.engine.scheduler.is_busy and time.perf_counter() < until:
            time.sleep(0.001)


def watched(engine: Engine, requests: Sequence[Request], enough: int | None = None) -> list[Event]:
    """Run requests as a batch until all of them, or `enough`, have ended, and return their events."""
    watch = Watch(engine)
    watch.submit(requests)
    try:
        for _ in range(len(requests) if enough is None else enough):
            watch.first_to_end()
    finally:
        watch.cancel()
    return list(watch.log)
