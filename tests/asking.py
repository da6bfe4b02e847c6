"""Helpers for tests of the engine: requests, readers of their texts, and a scheduler that is stepped by the test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from spectr.draft.model import ModelDrafting
from spectr.engine import LOCK, Engine, Handle, Request, Result
from spectr.engine.handle import Delivery
from spectr.engine.lane import Lane, Seat
from spectr.engine.scheduler import Scheduler
from spectr.policy import Policy

__all__ = ["EndReader", "LetterReader", "Stepped", "TakesForEver", "trace", "under"]


def under(policy: Policy, requests: Sequence[Request]) -> list[Request]:
    """Return the requests with this policy."""
    return [replace(request, policy=policy) for request in requests]


def trace(result: Result) -> Any:
    """Return the tokens of each step and the statistics; they are equal if the same happened."""
    steps = [(step.tokens, step.accepted, step.corrected, step.finish_reason, step.text) for step in result.steps]
    stats = result.stats
    return steps, stats.drafted, stats.ranks, stats.kept, stats.reached


@dataclass(frozen=True, slots=True)
class EndReader:
    """Shows no text, and ends it after as many tokens of a step as `ends` returns."""

    ends: Callable[[list[int]], int | None]

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Return where the text ends among these tokens."""
        return "", self.ends(tokens)

    def finish(self) -> str:
        """Return nothing: no text is held back."""
        return ""


@dataclass(slots=True)
class LetterReader:
    """Shows a letter for each token, and ends a text after a stop string, regardless of the boundaries of steps."""

    stop: str
    text: str = field(default="")

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Return the letters up to the end."""
        for count, token in enumerate(tokens, start=1):
            self.text += chr(ord("a") + token)
            if self.text.endswith(self.stop):
                return self.text[-count:], count
        return self.text[len(self.text) - len(tokens) :], None

    def finish(self) -> str:
        """Return a marker that must be seen exactly once."""
        return "."


class TakesForEver(Exception):  # noqa: N818
    """Raised when the engine does not finish within a number of turns."""


def _readers(drafting: Any) -> list[ModelDrafting]:
    """Return the draft models of a drafting."""
    if isinstance(drafting, ModelDrafting):
        return [drafting]
    parts = [*getattr(drafting, "parts", ()), *getattr(drafting, "draftings", ())]
    parts += [drafting.inner] if hasattr(drafting, "inner") else []
    return [found for part in parts for found in _readers(part)]


def check_rows(lane: Lane) -> None:
    """Check that text, cache and draft model of each active row have the same length, and that host and device
    agree."""
    if lane._rows is None:
        return
    rows, count = lane._rows, len(lane.active)
    runs = rows.active[:count]
    assert not rows.active[count:].any()
    lengths = rows.history.length[:count]
    assert torch.equal(lane._session.filled[:count][runs], lengths[runs] - 1)
    for row, seat in enumerate(lane.active):
        assert rows.history.tokens[row, : len(seat.text)].tolist() == seat.text
        assert lane.lag or len(seat.text) == int(lengths[row])
    for row, seat in enumerate(lane.reading, start=count):
        assert int(lane._session.filled[row]) == seat.read
    for reader in _readers(lane._drafting):
        skipped = torch.tensor(reader._skipped[:count], dtype=torch.int64, device=reader.counts.device)
        assert torch.equal(reader.session.filled[:count], reader.counts[:count] - skipped)
        assert (reader.counts[:count][runs] < lengths[runs]).all()


class Stepped:
    """An engine whose turns are taken by the test."""

    def __init__(self, engine: Engine, *, checks: bool = True) -> None:
        self.scheduler, self.checks = Scheduler(engine.parts), checks

    def submit(self, request: Request) -> Handle:
        """Queue a request for the next turn."""
        delivery = Delivery(request)
        self.scheduler._waiting.append(Seat(delivery, request.tokens))
        return Handle(delivery, self.scheduler._wake)

    def turn(self, count: int = 1) -> bool:
        """Take turns, check the rows after each, and return whether there is more to do."""
        for _ in range(count):
            with LOCK, torch.no_grad():  # as an engine's thread: others may run the same model meanwhile
                is_busy = self.scheduler.turn()
            for lane in self.scheduler.lanes.values() if self.checks else ():
                check_rows(lane)
        return is_busy

    def finish(self, handles: Sequence[Handle], most: int = 1_000) -> list[Result]:
        """Take turns until all requests are finished."""
        for _ in range(most):
            if not self.turn():
                return [handle.result(timeout=0) for handle in handles]
        raise TakesForEver
