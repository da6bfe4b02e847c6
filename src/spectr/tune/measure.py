"""Speed as it is: several ways on the same texts, in turn. Timed, so never a test.

A way writes the same text in the same steps whenever it is asked again, so of every step the least of several times is
kept: what else the machine does falls out. Prompts are read before the clock starts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spectr.engine import Engine, Job
from spectr.metrics import Stats
from spectr.tune.progress import Progress

__all__ = ["Speed", "compare"]

_WARM = 6  # tokens


@dataclass(frozen=True, slots=True)
class Speed:
    """What one way did with all texts."""

    tokens: int  # of all rows, without those of the first steps
    seconds: float
    emitted: int  # with them
    steps: int  # of all rows

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def block_efficiency(self) -> float:
        """Tokens per target call."""
        return self.emitted / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class _Run:
    """One batch, once: seconds before each piece, and how many tokens it had."""

    seconds: list[float]
    tokens: list[int]
    first: int  # pieces of the first step
    steps: int

    def least(self, other: "_Run") -> "_Run":
        """Of two runs of the same steps; of others, the faster."""
        if self.tokens != other.tokens:
            return min(self, other, key=lambda run: sum(run.seconds[run.first :]))
        return _Run(
            [min(pair) for pair in zip(self.seconds, other.seconds, strict=True)], self.tokens, self.first, self.steps
        )


def _run(engine: Engine, job: Job) -> _Run:
    stats, seconds, tokens = [Stats() for _ in job.requests], list[float](), list[int]()
    mark = time.perf_counter()
    for step in engine.stream(job, stats):
        now = time.perf_counter()
        seconds.append(now - mark)
        tokens.append(len(step.tokens))
        mark = now
    return _Run(seconds, tokens, len(job.requests), sum(one.steps for one in stats))


def _total(runs: Sequence[_Run]) -> Speed:
    seconds = sum(sum(run.seconds[run.first :]) for run in runs)
    tokens = sum(sum(run.tokens[run.first :]) for run in runs)
    return Speed(tokens, seconds, sum(sum(run.tokens) for run in runs), sum(run.steps for run in runs))


def compare(engines: Sequence[Engine], jobs: Sequence[Job], repeats: int, progress: Progress) -> list[Speed]:
    """Every engine on every job, another one first each time; `repeats` times, after a few steps that do not count."""
    for engine in engines:
        _run(engine, _short(jobs[0]))
    with progress.bar("measuring", repeats * len(jobs)) as tick:
        return _in_turn(engines, jobs, repeats, tick)


def _short(job: Job) -> Job:
    return replace(job, requests=[replace(request, max_new_tokens=_WARM) for request in job.requests])


def _in_turn(engines: Sequence[Engine], jobs: Sequence[Job], repeats: int, tick: Callable[[], None]) -> list[Speed]:
    best: list[list[_Run | None]] = [[None] * len(jobs) for _ in engines]
    for turn in range(repeats * len(jobs)):
        at = turn % len(jobs)
        for shift in range(len(engines)):
            who = (turn + shift) % len(engines)
            run, before = _run(engines[who], jobs[at]), best[who][at]
            best[who][at] = run if before is None else before.least(run)
        tick()
    return [_total([run for run in runs if run is not None]) for runs in best]
