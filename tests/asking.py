"""Helpers for tests of the engine: requests, readers, and a scheduler whose turns the test takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from spectr.draft.model import ModelDrafting
from spectr.engine import LOCK, Engine, Handle, Request, Result
from spectr.engine.lane import Lane
from spectr.engine.scheduler import Scheduler
from spectr.policy import Policy

__all__ = ["EndReader", "LetterReader", "Stepped", "TakesForEver", "draft_readers", "trace", "under"]


def under(policy: Policy, requests: Sequence[Request]) -> list[Request]:
    """Return the same requests with this policy."""
    return [replace(request, policy=policy) for request in requests]


def trace(result: Result) -> Any:
    """Steps and statistics of a result, for comparison."""
    steps = [(step.tokens, step.accepted, step.corrected, step.finish_reason, step.text) for step in result.steps]
    stats = result.stats
    return steps, stats.drafted, stats.ranks, stats.kept, stats.reached


@dataclass(frozen=True, slots=True)
class EndReader:
    """Shows no text, and ends a text after as many tokens of a step as `ends` returns."""

    ends: Callable[[list[int]], int | None]

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Return where the text ends among these tokens."""
        return "", self.ends(tokens)

    def finish(self) -> str:
        """Return no text."""
        return ""


@dataclass(slots=True)
class LetterReader:
    """Decodes each token to a letter, and ends a text after a stop string, wherever steps begin and end."""

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
        """Return a full stop, so that tests see that it is called once."""
        return "."


class TakesForEver(Exception):  # noqa: N818
    """The requests did not end within a number of turns."""


def draft_readers(drafting: Any) -> list[ModelDrafting]:
    """Return the draft models in a drafting."""
    if isinstance(drafting, ModelDrafting):
        return [drafting]
    parts = [*getattr(drafting, "parts", ()), *getattr(drafting, "draftings", ())]
    parts += [drafting.inner] if hasattr(drafting, "inner") else []
    return [found for part in parts for found in draft_readers(part)]


def check_rows(lane: Lane) -> None:
    """Check that text, cache and draft model of each active row have the same length, and that the host has no more
    tokens than the device."""
    if lane.memory.rows is None:
        return
    rows, session, drafting = lane.memory.opened()
    count = len(lane.active)
    runs = rows.active[:count]
    assert not rows.active[count:].any()
    lengths = rows.history.length[:count]
    assert torch.equal(session.filled[:count][runs], lengths[runs] - 1)
    for row, state in enumerate(lane.active):
        assert rows.history.tokens[row, : len(state.text)].tolist() == state.text
        assert lane.runner.lag or len(state.text) == int(lengths[row])
    for row, state in enumerate(lane.prefilling, start=count):
        assert int(session.filled[row]) == state.prefilled
    for reader in draft_readers(drafting):
        skipped = torch.tensor(reader._skipped[:count], dtype=torch.int64, device=reader.counts.device)
        assert torch.equal(reader.session.filled[:count], reader.counts[:count] - skipped)
        assert (reader.counts[:count][runs] < lengths[runs]).all()


class Stepped:
    """The requests of an engine, whose scheduler takes a turn when the test calls it."""

    def __init__(self, engine: Engine, *, checks: bool = True) -> None:
        self.scheduler, self.checks = Scheduler(engine.parts), checks

    def submit(self, request: Request) -> Handle:
        """Queue a request for the next turn."""
        return self.scheduler.queue([request])[0]

    def turn(self, count: int = 1) -> bool:
        """Take turns, check the rows after each, and return whether there is more to do."""
        for _ in range(count):
            with LOCK, torch.no_grad():  # as an engine's thread: others may run the same model meanwhile
                is_busy = self.scheduler.turn()
            for lane in self.scheduler.lanes.values() if self.checks else ():
                check_rows(lane)
        return is_busy

    def finish(self, handles: Sequence[Handle], most: int = 1_000) -> list[Result]:
        """Take turns until all requests have ended."""
        for _ in range(most):
            if not self.turn():
                return [handle.result(timeout=0) for handle in handles]
        raise TakesForEver
