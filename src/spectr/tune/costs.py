"""What a step costs on this machine: the target's call by nodes, drafting by beam and depth, and the rest.

Measured inside real steps: one generation takes all plans in turn, step by step, so that whatever else the machine does
hits all alike; medians are kept. Texts run on beyond their stop tokens.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from spectr.draft.adaptive import AdaptiveDrafter, Option, Timing, replanned
from spectr.draft.none import NoDrafter
from spectr.draft.plan import Plan
from spectr.engine import Engine, Job
from spectr.metrics import Stats
from spectr.types import Drafter, TreeModel
from spectr.verify import Rule

__all__ = [
    "CostTable",
    "Curve",
    "Drafting",
    "Timed",
    "Trio",
    "call_curve",
    "drafting_cost",
    "time_steps",
    "verdict_curve",
]


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured points, straight lines between them, and the first and last line beyond."""

    points: tuple[tuple[int, float], ...]  # by rising place

    @classmethod
    def of(cls, found: Mapping[int, float], *, rising: bool = False) -> "Curve":
        """With `rising`, neighbours that noise put the wrong way round share their mean: more work takes no less time.

        >>> Curve.of({1: 3.0, 2: 5.0, 3: 4.0}, rising=True).points
        ((1, 3.0), (2, 4.5), (3, 4.5))
        """
        levels = list[tuple[float, int]]()  # (mean, how many share it)
        for _, value in sorted(found.items()):
            levels.append((value, 1))
            while rising and len(levels) > 1 and levels[-2][0] > levels[-1][0]:
                (high, many), (low, few) = levels[-2:]
                levels[-2:] = [((high * many + low * few) / (many + few), many + few)]
        values = [mean for mean, many in levels for _ in range(many)]
        return cls(tuple(zip(sorted(found), values, strict=True)))

    def __call__(self, place: float) -> float:
        """The value at a place.

        >>> Curve.of({1: 10.0, 3: 14.0})(2), Curve.of({1: 10.0, 3: 14.0})(5)
        (12.0, 18.0)
        """
        if len(self.points) == 1:
            return self.points[0][1]
        at = min(max(bisect_left([x for x, _ in self.points], place), 1), len(self.points) - 1)
        (left, low), (right, high) = self.points[at - 1 : at + 1]
        return low + (high - low) * (place - left) / (right - left)

    def as_data(self) -> dict[str, float]:
        """For JSON."""
        return {str(place): value for place, value in self.points}


@dataclass(frozen=True, slots=True)
class Drafting:
    """Seconds of drafting: one call at the root, and one more for each further depth, dearer the wider the beam."""

    first: float
    deeper: Curve  # by beam; for a drafter without a plan zero

    def __call__(self, beam: int, depth: int) -> float:
        """Of a tree."""
        return self.first + (depth - 1) * max(0.0, self.deeper(beam))


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds, for batches of so many rows."""

    rows: int
    call: Curve  # by nodes: the target's call, the race's verdict, and keeping the path
    rest: float  # of a step besides
    drafting: Mapping[tuple[str, str], Drafting]  # by drafter and rule
    verdict: Mapping[tuple[str, str], Curve]  # by drafter and rule: what a verdict takes beyond the race's, by drafts

    @property
    def plain(self) -> float:
        """Of a step that drafts nothing."""
        return self.call(1) + self.rest

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": self.rows,
            "call": self.call.as_data(),
            "rest": self.rest,
            "drafting": [
                {"drafter": drafter, "rule": rule, "first": cost.first, "deeper": cost.deeper.as_data()}
                for (drafter, rule), cost in self.drafting.items()
            ],
            "verdict": [
                {"drafter": drafter, "rule": rule, "by_drafts": curve.as_data()}
                for (drafter, rule), curve in self.verdict.items()
            ],
        }


class InTurn:
    """All ways of a menu, one after the other."""

    def __init__(self, count: int) -> None:
        self._count, self._next = count, 0

    def pick(self) -> int:
        """The next."""
        index, self._next = self._next, (self._next + 1) % self._count
        return index

    def heard(self, index: int, tokens: float, seconds: float) -> None:
        """Nothing to learn."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Medians over the steps of one plan."""

    plan: Plan | None  # None: nothing was drafted, or by a drafter without one
    nodes: int
    drafting: float
    verifying: float
    rest: float


def _medians(plan: Plan | None, timings: Sequence[Timing]) -> Timed:
    nodes, *seconds = (median(getattr(t, name) for t in timings) for name in ("nodes", "drafting", "verifying", "rest"))
    return Timed(plan, round(nodes), *seconds)


@dataclass(frozen=True, slots=True)
class Trio:
    """What a step is made of."""

    target: TreeModel
    drafter: Drafter
    rule: Rule


def time_steps(trio: Trio, plans: Sequence[Plan], job: Job, repeats: int) -> list[Timed]:
    """Plain decoding, then the drafter by each of `plans`, or as it is where there are none; each `repeats` times in
    turn, after one round that is not counted."""
    drafters: list[Drafter] = [replanned(trio.drafter, plan) for plan in plans] or [trio.drafter]
    menu, log = (Option(NoDrafter()), *map(Option, drafters)), list[Timing]()
    turns, wanted = InTurn(len(menu)), (repeats + 1) * len(menu)
    made = Engine(trio.target, AdaptiveDrafter(menu, lambda _: turns, log.append), trio.rule)
    while len(log) < wanted:
        for step in made.stream(job, [Stats() for _ in job.requests]):
            if len(log) >= wanted or step.finish_reason:  # fewer rows would be another measurement
                break
    found = defaultdict[int, list[Timing]](list)
    for timing in log[len(menu) : wanted]:
        found[timing.index].append(timing)
    return [_medians(plan, found[index]) for index, plan in enumerate((None, *(plans or (None,))))]


def call_curve(timed: Iterable[Timed]) -> Curve:
    """The target's call, by nodes."""
    by_nodes = defaultdict[int, list[float]](list)
    for one in timed:
        by_nodes[one.nodes].append(one.verifying)
    return Curve.of({nodes: median(found) for nodes, found in by_nodes.items()}, rising=True)


def drafting_cost(timed: Sequence[Timed]) -> Drafting:
    """From steps that drafted, the first of them one deep."""
    drafted = timed[1:]  # the first drafted nothing
    first, by_beam = drafted[0].drafting, defaultdict[int, list[float]](list)
    for one in drafted:
        if one.plan is not None and one.plan.length > 1:
            by_beam[one.plan.drafts].append((one.drafting - first) / (one.plan.length - 1))
    deeper = {beam: median(found) for beam, found in by_beam.items()} or {1: 0.0}
    return Drafting(first, Curve.of(deeper, rising=True))


def verdict_curve(timed: Sequence[Timed], call: Curve) -> Curve:
    """What a rule's verdict takes beyond the race's, by drafts."""
    by_drafts = defaultdict[int, list[float]](list)
    for one in timed[1:]:
        if one.plan is not None:
            by_drafts[one.plan.drafts].append(max(0.0, one.verifying - call(one.nodes)))
    return Curve.of({drafts: median(found) for drafts, found in by_drafts.items()} or {1: 0.0})
