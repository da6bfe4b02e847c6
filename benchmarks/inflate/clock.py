"""Timing: how long a function takes on a device, and at what pace texts are generated. Does not depend on models."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.watch import Event, watched
from spectr.engine import Engine, Request
from spectr.models.graphs import Captured

__all__ = ["WARM", "Pace", "durations", "joined", "pace_of", "paced", "timed"]

WARM = 4  # warm-up runs: eager, captured, and replayed


def durations(run: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """Return the milliseconds of `repeats` runs after a warm-up; on a GPU they are queued without waiting between."""
    for _ in range(WARM):
        run()
    if device.type != "cuda":
        return [_by_the_host(run) for _ in range(repeats)]
    marks = [(_event(), _event()) for _ in range(repeats)]
    for before, after in marks:
        before.record()
        run()
        after.record()
    torch.cuda.synchronize(device)
    return [float(before.elapsed_time(after)) for before, after in marks]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def _by_the_host(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def timed(make: Callable[[Tensor], Tensor], given: Tensor, repeats: int) -> float:
    """Return the median milliseconds of `make`; on a GPU those of a replayed graph."""
    held = Captured()  # with its own memory, into which no other graph writes
    return statistics.median(durations(lambda: held("it", make, given), given.device, repeats))


@dataclass(slots=True)
class Pace:
    """Rounds of steps, one step per row: when the host received each, and its tokens."""

    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # rows that had not ended

    @property
    def seconds(self) -> float:
        """Seconds from the first step to the last, without prefill."""
        return self.times[-1] - self.times[0]

    @property
    def emitted(self) -> int:
        """Tokens received in that time."""
        return sum(self.tokens[1:])

    @property
    def gaps(self) -> list[float]:
        """Seconds of each step after the first."""
        return [later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False)]


def paced(engine: Engine, requests: Sequence[Request]) -> Pace:
    """Run requests as a batch until more than a quarter of them have ended, so that only nearly full batches count."""
    enough = len(requests) // 4 + 1
    return pace_of(watched(engine, requests, enough), len(requests), enough)


def pace_of(log: Sequence[Event], count: int, enough: int) -> Pace:
    """Return the rounds from the first in which all `count` requests have begun until `enough` of them have ended."""
    pace, begun, here, ended = Pace(), set[int](), set[int](), 0
    for event in log:
        if not event.tokens:
            ended += 1
            continue
        if event.number in here or not here:  # a request occurs once per round
            if ended >= enough:
                break
            if len(begun) < count:
                pace = Pace()
            here = set()
            pace.times.append(event.time)
            pace.tokens.append(0)
            pace.rows.append(0)
        here.add(event.number)
        begun.add(event.number)
        pace.tokens[-1] += event.tokens
        pace.rows[-1] += 1
    return pace if len(begun) == count else Pace()


def joined(paces: Sequence[Pace]) -> dict[str, Any]:
    """Summarise the paces of several texts. The `steady` values use the median step, so outliers do not count."""
    gaps = [gap for pace in paces for gap in pace.gaps]
    if not gaps or not all(gaps):
        return {"tokens": 0, "steps": 0, "seconds": 0.0}
    seconds, tokens = sum(pace.seconds for pace in paces), sum(pace.emitted for pace in paces)
    step = statistics.median(gaps)
    return {
        "tokens": tokens,
        "steps": len(gaps),
        "seconds": seconds,
        "tokens_per_call": tokens / len(gaps),
        "rows_going": sum(sum(pace.rows[1:]) for pace in paces) / len(gaps),
        "tokens_per_second": tokens / seconds,
        "ms_per_step": 1e3 * seconds / len(gaps),
        "steady_tokens_per_second": tokens / len(gaps) / step,
        "steady_ms_per_step": 1e3 * step,
    }
