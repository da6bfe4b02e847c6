"""The loop with its step captured: the very step of the engine, replayed as one graph, its verdict read one step late.

All that a step begins with is on the device, so the next one can be launched before the host has seen what the last
one said. Rows that have ended, by a stop token or by length, accept nothing more; a stop string is found by the host,
and what was generated behind it is dropped. A graph is made for each size of the cache looked at, from a small menu.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spectr.metrics import Stats, count_step
from spectr.models.graphs import Captured
from spectr.reading import numbers_of, read_numbers
from spectr.requests import Job, Step

if TYPE_CHECKING:
    from spectr.engine import Batch, Engine

__all__ = ["obstacle", "stream"]

_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Slots of the cache that a graph looks at."""


def obstacle(engine: "Engine", job: Job) -> str | None:
    """Why a job cannot be captured, or None."""
    if not getattr(engine.drafter, "capturable", False):
        return f"drafter {engine.drafter.name!r} works on the host"
    if not engine.rule.card.capturable:
        return f"rule {engine.rule.card.name!r} needs the host"
    if job.policy.remembers:
        return "the policy looks at the text on the host (penalties, bad words, allowed, processors)"
    if job.logprobs or job.optimality_gap:
        return "log-probabilities and the optimality gap are read step by step"
    if job.requests[0].source is not None:
        return "encoder-decoder models are not captured"
    return None


@dataclass(slots=True)
class _Told:
    """The numbers of one step on their way to the host."""

    numbers: Tensor  # on the host, there once the event has happened
    event: Any = None

    def read(self) -> list[list[int]]:
        """Wait for them."""
        if self.event is not None:
            self.event.synchronize()
        rows: list[list[int]] = self.numbers.tolist()
        return rows


def _sent(numbers: Tensor) -> _Told:
    """Send numbers to the host without waiting."""
    if numbers.device.type != "cuda":
        return _Told(numbers.clone())
    held = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    held.copy_(numbers, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return _Told(held, event)


@dataclass(slots=True)
class _Runner:
    """A batch whose steps are captured."""

    engine: "Engine"
    job: Job
    batch: "Batch"
    limit: Tensor  # (B,) tokens a row may come to
    stops: Tensor  # (S,)
    room: int  # slots of the cache
    bound: int  # no row has more committed tokens
    since: float = field(default_factory=time.perf_counter)
    graphs: Captured = field(default_factory=Captured)

    def launch(self) -> _Told:
        """One step of all rows."""
        most = self.engine.drafter.nodes
        size = next((size for size in _SIZES if size >= self.bound + most), self.room)
        looked = min(size, self.room) - most
        holders: tuple[Any, ...] = (self.batch.session, self.batch.drafting)

        def step(_: Tensor) -> Tensor:
            for holder in holders:
                holder.assume(looked)
            scored = self.engine.score(self.batch, self.job, [])
            self._end()
            return numbers_of(scored)

        width = self.batch.standing.recent.shape[1]
        told = _sent(self.graphs((looked, width), step, self.batch.standing.going))
        self.bound += most
        return told

    def marks(self) -> list[float]:
        """Times for the statistics: a replayed step is one piece, and counts as the target's."""
        before, self.since = self.since, time.perf_counter()
        return [before, before, self.since, self.since]

    def _end(self) -> None:
        """Rows that met a stop token among those emitted, or their length, go no further."""
        standing = self.batch.standing
        places = torch.arange(standing.recent.shape[1], device=standing.root.device)
        stopped = torch.isin(standing.recent, self.stops) & (places < standing.fresh[:, None])
        standing.going &= ~stopped.any(-1) & (standing.committed < self.limit)


def _runner(engine: "Engine", job: Job, batch: "Batch") -> _Runner:
    device = engine.target.device
    most = [len(request.prompt) + request.max_new_tokens for request in job.requests]
    stops = torch.tensor(sorted(engine.stops), dtype=torch.int64, device=device)
    longest = max(len(request.prompt) for request in job.requests)
    room = batch.session.cache.size
    return _Runner(engine, job, batch, torch.tensor(most, device=device), stops, room, longest)


def stream(engine: "Engine", job: Job, stats: Sequence[Stats]) -> Iterator[Step]:
    """Steps of all rows as they come."""
    batch = engine.begin(job, None, spare=2 * engine.drafter.nodes)
    texts, batch.texts = batch.texts, []
    runner, open_rows = _runner(engine, job, batch), set(range(len(texts)))
    told: _Told | None = None
    while open_rows:
        ahead = runner.launch()
        if told is not None:
            yield from _read(runner, told, texts, stats, open_rows)
        told = ahead


def _read(
    runner: _Runner, told: _Told, texts: list[list[int]], stats: Sequence[Stats], open_rows: set[int]
) -> Iterator[Step]:
    """What a step gave to the rows that were still open."""
    pairs, marks = read_numbers(told.read()), runner.marks()
    for row in sorted(open_rows):
        tokens, counted = pairs[row]
        count, reason = runner.engine.end(runner.job.requests[row], tokens, len(texts[row]))
        counted = counted.cut(count)
        count_step(stats[row], counted, marks)
        texts[row] += tokens[:count]
        if reason:
            open_rows.discard(row)
        yield Step(row, tokens[:count], len(counted.ranks), counted.corrected, reason)
    runner.bound = max((len(texts[row]) for row in open_rows), default=0) + runner.engine.drafter.nodes
