"""What captured steps work on: buffers of a few sizes that serve one job after another, each with its graphs.

A graph knows tensors by where they lie. So a job whose rows and tokens fit into what an earlier one used takes over its
buffers, and finds the graphs made. Rows are filled up with some that have ended before they begin.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.models.graphs import Captured
from spectr.policy import Policy
from spectr.requests import Job, Memory, Request

if TYPE_CHECKING:
    from spectr.engine import Batch, Engine

__all__ = ["SIZES", "Stage", "Stages", "lasting", "shared_start"]

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Slots of a cache, and of the part of it that a graph looks at."""

_MOST = 4  # stages kept


@dataclass(slots=True)
class Stage:
    """Buffers for so many rows of so many slots, and the graphs of steps on them."""

    batch: "Batch"
    limit: Tensor  # (B,) tokens a row may come to
    room: int
    graphs: Captured = field(default_factory=Captured)
    is_taken: bool = False
    policies: dict[Policy, tuple[Policy, Policy]] = field(default_factory=dict)  # those that graphs were made with

    def own(self, job: Job) -> Job:
        """The job under the policy object that is known here: tensors of a policy must live as long as graphs do."""
        policy, self.batch.guesses = self.policies.setdefault(job.policy, (job.policy, job.policy.for_drafts))
        return replace(job, policy=policy)


@contextmanager
def lasting(device: torch.device) -> Iterator[None]:
    """What is made here is used by jobs to come, whatever mode and device the caller is in."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        yield


def _bucket(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


def _filled_up(job: Job, rows: int) -> tuple[Job, list[bool]]:
    """Requests for all rows, and which of them are real."""
    count = len(job.requests)
    idle = [Request(job.requests[0].prompt[:1], 0, 1)] * (rows - count)
    return replace(job, requests=[*job.requests, *idle]), [True] * count + [False] * len(idle)


def _limits(requests: Sequence[Request]) -> Tensor:
    return torch.tensor([len(request.prompt) + request.max_new_tokens for request in requests])


def shared_start(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common from the beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _begin_again(engine: "Engine", stage: Stage, full: Job, going: list[bool], memory: Memory | None) -> None:
    """Of a conversation, what is there already stays; should this fail midway, no more is taken for granted."""
    kept = 0 if memory is None else shared_start(memory.text, full.requests[0].prompt[:-1])
    if memory is not None:
        memory.text, memory.reused = memory.text[:kept], kept
    engine.begin_again(stage.batch, full, going, kept)
    stage.limit.copy_(_limits(full.requests))


@dataclass(slots=True)
class Stages:
    """The stages of an engine, the one used last at the end."""

    kept: dict[tuple[int, int], Stage] = field(default_factory=dict)

    @contextmanager
    def take(self, engine: "Engine", job: Job, memory: Memory | None) -> Iterator[Stage]:
        """A stage on which the job has begun. A conversation has one of its own, which knows its text."""
        rows, needed = _bucket(len(job.requests)), engine.slots(job) + 2 * engine.drafter.nodes
        room = next((size for size in SIZES if size >= needed), needed)
        full, going = _filled_up(job, rows)
        with lasting(engine.target.device):
            stage = self._known((rows, room), memory)
            if stage is None:
                stage = self._made(engine, full, going, room)
                self._keep((rows, room), stage, memory)
            else:
                _begin_again(engine, stage, full, going, memory)
        stage.is_taken = True
        try:
            yield stage
        finally:
            stage.is_taken = False

    def _known(self, key: tuple[int, int], memory: Memory | None) -> Stage | None:
        """One that fits and that nobody uses."""
        if memory is None:
            stage = self.kept.pop(key, None)
            if stage is not None:
                self.kept[key] = stage  # used last
            return None if stage is None or stage.is_taken else stage
        stage = memory.session
        fits = isinstance(stage, Stage) and not stage.is_taken and len(stage.limit) == key[0] and stage.room >= key[1]
        return stage if fits else None

    def _keep(self, key: tuple[int, int], stage: Stage, memory: Memory | None) -> None:
        """For the jobs to come."""
        if memory is not None:
            memory.session, memory.text, memory.reused = stage, [], 0
            return
        if key not in self.kept:
            self.kept[key] = stage

    def _made(self, engine: "Engine", full: Job, going: list[bool], room: int) -> Stage:
        """A new one; where memory is short without those that nobody uses."""
        self._let_go(_MOST - 1)
        try:
            return self._fresh(engine, full, going, room)
        except (ArgumentError, torch.OutOfMemoryError):
            if not self._let_go(0):
                raise
            return self._fresh(engine, full, going, room)

    def _let_go(self, most: int) -> int:
        """How many of the stages that nobody uses went, the oldest first."""
        idle = [key for key, stage in self.kept.items() if not stage.is_taken]
        gone = idle[: max(0, len(self.kept) - most)]
        for key in gone:
            del self.kept[key]
        if gone and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return len(gone)

    def _fresh(self, engine: "Engine", full: Job, going: list[bool], room: int) -> Stage:
        batch = engine.begin(full, None, room)
        batch.standing.going.copy_(torch.tensor(going))
        return Stage(batch, _limits(full.requests).to(engine.target.device), room)
