"""Runs requests in a closed loop: when one ends, the next is submitted after a short random delay."""

import heapq
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.record import Found
from benchmarks.watch import Event, Watch
from spectr.engine import Engine, Request, Result

__all__ = ["Flow", "flow", "percentiles"]


def percentiles(values: Sequence[float]) -> Found:
    """Return the median and the 95th percentile, None if there are no values.

    >>> percentiles([3.0, 1.0, 2.0])
    {'median': 2.0, 'p95': 3.0, 'count': 3}
    """
    if not values:
        return {"median": None, "p95": None, "count": 0}
    high = sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
    return {"median": statistics.median(values), "p95": high, "count": len(values)}


@dataclass(slots=True)
class Flow:
    """The events of a closed loop, and the time interval that is measured."""

    begun: float
    ended: float
    log: list[Event]
    submitted: Sequence[float]
    requests: list[Request] = field(default_factory=list)
    results: dict[int, Result] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The length of the measured interval."""
        return self.ended - self.begun

    def row(self) -> Found:
        """Summarise the measured interval."""
        inside = [event for event in self.log if self.begun <= event.time < self.ended]
        tokens = sum(event.tokens for event in inside)
        steps, emitted = sum(r.stats.steps for r in self.results.values()), sum(map(_length, self.results.values()))
        return {
            "seconds": self.seconds, "tokens": tokens, "tokens_per_second": tokens / self.seconds,
            "requests_submitted": len(self.requests), "requests_ended": sum(not event.tokens for event in inside),
            "time_to_first_token": percentiles(self._waits()), "time_per_output_token": percentiles(self._paces()),
            "prompt_tokens": _mean([len(request.prompt) for request in self.requests]),
            "output_tokens": _mean([request.max_new_tokens for request in self.requests]),
            "tokens_per_step_of_a_row": emitted / steps if steps else None,
            "reused_tokens": sum(result.reused for result in self.results.values()),
        }  # fmt: skip

    def _waits(self) -> list[float]:
        """Return the times to first token, for the texts whose first token is within the interval."""
        firsts = self._firsts()
        return [e.time - self.submitted[n] for n, e in firsts.items() if self.begun <= e.time < self.ended]

    def _paces(self) -> list[float]:
        """Return the seconds per token after the first step, for the texts that end within the interval."""
        firsts, found = self._firsts(), list[float]()
        for event in self.log:
            rest = self.requests[event.number].max_new_tokens - firsts[event.number].tokens
            if not event.tokens and self.begun <= event.time < self.ended and rest > 0:
                found.append((event.time - firsts[event.number].time) / rest)
        return found

    def _firsts(self) -> dict[int, Event]:
        found: dict[int, Event] = {}
        for event in self.log:
            found.setdefault(event.number, event)
        return found


def _length(result: Result) -> int:
    return len(result.tokens)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


@dataclass(slots=True)
class _Pump:
    """Keeps requests in flight; `due` has the times at which the next ones are submitted."""

    watch: Watch
    next: Callable[[], Request | None]
    delay: Callable[[], float]
    due: list[float]
    requests: list[Request] = field(default_factory=list)

    def work(self, until: float) -> None:
        """Submit requests when they are due and wait for their ends, until a time or until no requests are left."""
        while (now := time.perf_counter()) < until and (self.due or self.watch.handles):
            if self.due and self.due[0] <= now:
                heapq.heappop(self.due)
                self._submit()
            elif self.watch.first_to_end(min([until, *self.due[:1]]) - now) is not None:
                heapq.heappush(self.due, time.perf_counter() + self.delay())

    def _submit(self) -> None:
        request = self.next()
        if request is not None:
            self.requests.append(request)
            self.watch.submit([request])


def flow(
    engine: Engine, given: Callable[[], Request | None], in_flight: int, delay: float, times: tuple[float, float]
) -> Flow:
    """Keep `in_flight` requests running until none are left or the time is over.

    `times` has the seconds of the warm-up and those of the measurement.
    """
    chance, warm, counted = random.Random(in_flight), *times
    watch, start = Watch(engine), time.perf_counter()

    def pause() -> float:
        return chance.expovariate(1 / delay) if delay else 0.0

    pump = _Pump(watch, given, pause, sorted(start + pause() for _ in range(in_flight)))
    try:
        pump.work(start + warm + counted)
        ended = min(time.perf_counter(), start + warm + counted)
    finally:
        watch.cancel()
    return Flow(start + warm, ended, list(watch.log), watch.submitted, pump.requests, dict(watch.results))
