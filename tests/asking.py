"""What tests of the engine ask with: requests, readers of their texts, and a scheduler that takes a turn when told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from spectr.engine import Engine, Handle, Request, Result
from spectr.engine.handle import Delivery
from spectr.engine.lane import Seat
from spectr.engine.scheduler import Scheduler
from spectr.policy import Policy

__all__ = ["EndReader", "LetterReader", "Stepped", "TakesForEver", "trace", "under"]


def under(policy: Policy, requests: Sequence[Request]) -> list[Request]:
    """The same requests, all with this policy."""
    return [replace(request, policy=policy) for request in requests]


def trace(result: Result) -> Any:
    """What came out step by step, and what the statistics say: equal where the same happened."""
    steps = [(step.tokens, step.accepted, step.corrected, step.finish_reason, step.text) for step in result.steps]
    stats = result.stats
    return steps, stats.drafted, stats.ranks, stats.kept, stats.reached


@dataclass(frozen=True, slots=True)
class EndReader:
    """Shows nothing, and ends a text where `ends`, given the tokens of a step, says after how many of them."""

    ends: Callable[[list[int]], int | None]

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Where the text ends among these tokens."""
        return "", self.ends(tokens)

    def finish(self) -> str:
        """Nothing was held back."""
        return ""


@dataclass(slots=True)
class LetterReader:
    """A letter for each token; ends a text after a stop string, wherever steps begin and end."""

    stop: str
    text: str = field(default="")

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """The letters up to the end."""
        for count, token in enumerate(tokens, start=1):
            self.text += chr(ord("a") + token)
            if self.text.endswith(self.stop):
                return self.text[-count:], count
        return self.text[len(self.text) - len(tokens) :], None

    def finish(self) -> str:
        """Something, so that it is seen once."""
        return "."


class TakesForEver(Exception):  # noqa: N818
    """Turns were taken in vain."""


class Stepped:
    """The requests of an engine, of which all take a turn when the test says so."""

    def __init__(self, engine: Engine) -> None:
        self.scheduler = Scheduler(engine.parts)

    def submit(self, request: Request) -> Handle:
        """Let a request wait for the next turn."""
        delivery = Delivery(request)
        self.scheduler._waiting.append(Seat(delivery, request.tokens))
        return Handle(delivery, self.scheduler._wake)

    def turn(self, count: int = 1) -> bool:
        """Take turns; whether there is more to do."""
        with torch.no_grad():
            return [self.scheduler.turn() for _ in range(count)][-1]

    def finish(self, handles: Sequence[Handle], most: int = 1_000) -> list[Result]:
        """Take turns until nothing is left to do."""
        for _ in range(most):
            if not self.turn():
                return [handle.result(timeout=0) for handle in handles]
        raise TakesForEver
