"""`plan="auto"` where drafts are worth little, against plain decoding of the same texts, on this machine.

With the race both write the same tokens, so their clocks can be compared at every token: over all of a case, and over
its worst stretch of `WINDOW` tokens after the first `GRACE`. Timed, so never a test: the chooser's promise is tested by
replay.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from spectr.draft import drafter as named_drafter
from spectr.draft.chooser import WINDOW
from spectr.draft.menu import Ground, adaptive
from spectr.draft.options import DraftOptions
from spectr.draft.plan import Plan
from spectr.engine import Engine, Job, Request
from spectr.errors import MismatchError
from spectr.lm import LM
from spectr.metrics import Stats
from spectr.pairing import pair
from spectr.policy import Policy
from spectr.tune.progress import Progress
from spectr.types import Drafter
from spectr.verify import rule as named_rule

__all__ = ["CASES", "Case", "Clocked", "live", "worst_stretch"]

GRACE = 50  # tokens in which a chooser may find its feet

_CODE = (
    "Write a Python function that merges two sorted lists, with tests.",
    "Write a Python class for a stack with push, pop and peek, and show how it is used.",
)
_POETRY = (
    "Write a poem about a heron who has forgotten the river.",
    "Write free verse about rust, velvet and the number nine.",
)
_TALK = ("Explain how tides work.", "Plan a birthday party for ten children in a small flat.")


@dataclass(frozen=True, slots=True)
class Case:
    """Texts one after the other, with one chooser that remembers."""

    name: str
    prompts: tuple[str, ...]
    temperature: float = 1.0
    random: bool = False  # the drafter knows nothing


CASES = (
    Case("usual texts", (*_TALK, *_CODE)),
    Case("a drafter that knows nothing", (*_TALK, *_CODE), random=True),
    Case("code, then poetry", (*_CODE, *_POETRY)),
    Case("T=1.5", (*_TALK, *_CODE), 1.5),
)


@dataclass(frozen=True, slots=True)
class Clocked:
    """The steps of one way through a case: tokens, and seconds; reading a prompt counts with its first step."""

    tokens: list[int]
    seconds: list[float]

    def __add__(self, other: "Clocked") -> "Clocked":
        return Clocked(self.tokens + other.tokens, self.seconds + other.seconds)

    @property
    def clock(self) -> dict[int, float]:
        """Seconds gone when so many tokens were there."""
        return dict(zip(accumulate(self.tokens, initial=0), accumulate(self.seconds, initial=0.0), strict=True))


def worst_stretch(auto: Clocked, plain: Clocked, window: int = WINDOW, grace: int = GRACE) -> float | None:
    """How much longer the slowest stretch of at least `window` tokens took; None if there are too few."""
    mine, theirs = auto.clock, plain.clock
    marks = [mark for mark in mine if mark >= grace and mark in theirs]
    found, end = list[float](), 0
    for start in marks:
        while end < len(marks) and marks[end] - start < window:
            end += 1
        if end == len(marks):
            break
        stop = marks[end]
        found.append((mine[stop] - mine[start]) / (theirs[stop] - theirs[start]) - 1)
    return max(found, default=None)


def _clocked(engine: Engine, request: Request, policy: Policy) -> Clocked:
    tokens, seconds, mark = list[int](), list[float](), time.perf_counter()
    for step in engine.stream(Job([request], policy), [Stats()]):
        now = time.perf_counter()
        tokens.append(len(step.tokens))
        seconds.append(now - mark)
        mark = now
    return Clocked(tokens, seconds)


def _base(lm: LM, drafter: str, case: Case) -> Drafter:
    if case.random:
        return named_drafter("random", plan=Plan())
    return pair(drafter, lm.opened, named_rule("race").card, DraftOptions())


def _run(lm: LM, drafter: str, case: Case, tokens: int) -> dict[str, Any]:
    """Both ways on every text, the other one first each time."""
    target, stops, race = lm.opened.target, lm.opened.stops, named_rule("race")
    made = adaptive(_base(lm, drafter, case), Ground(target.device.type == "cpu"))
    engines = [Engine(target, one, race, stops) for one in (made, named_drafter("none"))]
    both = [Clocked([], []), Clocked([], [])]
    for at, prompt in enumerate(case.prompts):
        request = Request(lm.encode(prompt), at, tokens)
        for who in (0, 1) if at % 2 else (1, 0):
            both[who] += _clocked(engines[who], request, Policy(case.temperature))
    auto, plain = both
    if sum(auto.tokens) != sum(plain.tokens):
        raise MismatchError("texts with and without drafts differ in length, so their clocks cannot be compared")
    return {
        "case": case.name,
        "tokens": sum(auto.tokens),
        "tokens_per_call": sum(auto.tokens) / len(auto.tokens),
        "longer_than_plain": sum(auto.seconds) / sum(plain.seconds) - 1,
        "worst_stretch": worst_stretch(auto, plain),
    }


def live(lm: LM, drafter: str, tokens: int, progress: Progress, cases: Sequence[Case] = CASES) -> list[dict[str, Any]]:
    """Every case, with a chooser that begins with guesses."""
    _run(lm, drafter, Case("warm", _TALK[:1]), 8)
    found = []
    with progress.bar("plan=auto", len(cases)) as tick:
        for case in cases:
            found.append(_run(lm, drafter, case, tokens))
            progress.say(f"{case.name}: {found[-1]['longer_than_plain']:+.1%} against plain decoding")
            tick()
    return found
