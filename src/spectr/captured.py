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
from spectr.reading import numbers_of, read_row
from spectr.requests import Job, Memory, Step
from spectr.rows import constant, ladder
from spectr.stages import SIZES, Stage, lasting

if TYPE_CHECKING:
    from spectr.engine import Engine

__all__ = ["obstacle", "stream"]


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
    if len(set(map(str, _places(engine)))) > 1:
        return "the model lies on several devices"
    return None


def _places(engine: "Engine") -> list[Any]:
    """Where a model's parts are, if somebody has spread them."""
    drafter: Any = engine.drafter
    models = [engine.target, getattr(drafter, "model", None), getattr(drafter, "head", None)]
    maps = [getattr(getattr(model, "model", None), "hf_device_map", None) or {} for model in models]
    return [place for one in maps for place in one.values()]


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
    """A job on a stage: its steps are captured once and replayed."""

    engine: "Engine"
    job: Job
    stage: Stage
    stops: Tensor  # (S,)
    bound: int  # no open row has more committed tokens
    since: float = field(default_factory=time.perf_counter)

    def launch(self) -> _Told:
        """One step of all rows."""
        most, batch, room = self.engine.drafter.nodes, self.stage.batch, self.stage.room
        size = next((size for size in SIZES if size >= self.bound + most), room)
        looked = min(size, room) - most
        holders: tuple[Any, ...] = (batch.session, batch.drafting)

        def step(_: Tensor) -> Tensor:
            for holder in holders:
                holder.assume(looked)
            scored = self.engine.score(batch, self.job, [])
            self._end()
            return numbers_of(scored)

        key = (self.job.policy, looked, batch.standing.recent.shape[1])
        with lasting(self.engine.target.device):
            told = _sent(self.stage.graphs(key, step, batch.standing.going))
        self.bound += most
        return told

    def marks(self) -> list[float]:
        """Times for the statistics: a replayed step is one piece, and counts as the target's."""
        before, self.since = self.since, time.perf_counter()
        return [before, before, self.since, self.since]

    def _end(self) -> None:
        """Rows that met a stop token among those emitted, or their length, go no further."""
        standing = self.stage.batch.standing
        places = ladder(standing.recent.shape[1], standing.root.device)
        stops = (standing.recent[..., None] == self.stops).any(-1)  # isin sorts where there are many, and waits
        stopped = stops & (places < standing.fresh[:, None])
        standing.going &= ~stopped.any(-1) & (standing.committed < self.stage.limit)


def stream(engine: "Engine", job: Job, stats: Sequence[Stats], memory: Memory | None = None) -> Iterator[Step]:
    """Steps of all rows as they come."""
    with engine.stages.take(engine, job, memory) as stage:
        texts, stage.batch.texts = [list(request.prompt) for request in job.requests], []
        stops = constant(tuple(sorted(engine.stops)), engine.target.device)
        runner = _Runner(engine, stage.own(job), stage, stops, max(map(len, texts)))
        try:
            yield from _steps(runner, texts, stats)
        finally:
            if memory is not None and memory.session is stage:
                memory.text = texts[0][:-1]


def _steps(runner: _Runner, texts: list[list[int]], stats: Sequence[Stats]) -> Iterator[Step]:
    """Launch a step, then read the one before."""
    told, open_rows = None, set(range(len(texts)))
    while open_rows:
        ahead = runner.launch()
        if told is not None:
            yield from _read(runner, told, texts, stats, open_rows)
        told = ahead


def _read(
    runner: _Runner, told: _Told, texts: list[list[int]], stats: Sequence[Stats], open_rows: set[int]
) -> Iterator[Step]:
    """What a step gave to the rows that were still open."""
    numbers, marks = told.read(), runner.marks()
    for row in sorted(open_rows):
        tokens, counted = read_row(numbers[row])
        count, reason = runner.engine.end(runner.job.requests[row], tokens, len(texts[row]))
        counted = counted.cut(count)
        count_step(stats[row], counted, marks)
        texts[row] += tokens[:count]
        if reason:
            open_rows.discard(row)
        yield Step(row, tokens[:count], len(counted.ranks), counted.corrected, reason)
    runner.bound = max((len(texts[row]) for row in open_rows), default=0) + runner.engine.drafter.nodes
