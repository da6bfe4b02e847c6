"""Successive halving over plans, as functions of what was measured so far. Nothing here runs a model or reads a clock,
so a run that was interrupted goes on from its measurements alone.

Plans are numbered, and plan 0 is plain decoding, which is measured in every round and never dropped. A plan's score is
the median over rounds of its tokens per second divided by those of plain decoding in the same round, so that a machine
that slows down for a while slows down both.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from spectr.draft.profile import PLAIN, DecodingPlan

__all__ = ["Measurement", "Result", "choose", "next_round", "results", "rungs"]

ROUNDS = 3  # rounds that plans are measured for before the slower half of them is dropped
_SURE = 0.95  # chance that the interval covers the median ratio, where there are enough rounds


@dataclass(frozen=True, slots=True)
class Measurement:
    """One batch, written by one plan."""

    rows: int
    round: int
    plan: int
    tokens: int  # of all rows
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Result:
    """What all rounds say about one plan."""

    rows: int
    plan: int
    rounds: int
    rate: float  # tokens per second, the median
    quartiles: tuple[float, float]
    ratio: float  # to plain decoding in the same rounds, the median
    interval: tuple[float, float]  # of that median: 95 % from six rounds on, with fewer the range


def rungs(plans: int) -> Iterator[int]:
    """How many plans beside plain decoding are measured in each rung.

    >>> list(rungs(8))
    [7, 4, 2, 1]
    """
    left = plans - 1
    while left > 1:
        yield left
        left = -(-left // 2)
    yield left


def next_round(
    found: Sequence[Measurement], plans: int, left_out: Collection[int] = ()
) -> tuple[int, list[int]] | None:
    """The number of the next round and the plans that it has to measure, or None when there is nothing left to find
    out. `found` is of one number of rows. Every round begins with another plan."""
    by_cell = {(one.round, one.plan): one for one in found}
    alive = [plan for plan in range(1, plans) if plan not in left_out]
    start = 0
    while True:
        for number in range(start, start + ROUNDS):
            everybody = [PLAIN, *alive]
            turned = [everybody[(at + number) % len(everybody)] for at in range(len(everybody))]
            if missing := [plan for plan in turned if (number, plan) not in by_cell]:
                return number, missing
        if len(alive) < 2:
            return None
        start += ROUNDS
        so_far = [one for one in found if one.round < start]  # later rounds do not bring anybody back
        scores = {plan: median(_ratios(so_far, plan)) for plan in alive}
        alive = sorted(sorted(alive, key=lambda plan: -scores[plan])[: -(-len(alive) // 2)])


def _ratios(found: Sequence[Measurement], plan: int) -> list[float]:
    """Tokens per second of a plan over those of plain decoding, for each round that has both."""
    plain = {one.round: one.rate for one in found if one.plan == PLAIN}
    return [one.rate / plain[one.round] for one in found if one.plan == plan and one.round in plain]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Order statistics that the median lies between with the chance `_SURE`; with fewer than six values their range."""
    ordered, count = sorted(values), len(values)
    outside, cut = 0.0, 0
    while 2 * (outside + math.comb(count, cut) / 2**count) <= 1 - _SURE:
        outside += math.comb(count, cut) / 2**count
        cut += 1
    cut = max(1, cut)
    return ordered[cut - 1], ordered[count - cut]


def results(found: Sequence[Measurement]) -> list[Result]:
    """A result for each plan that was measured together with plain decoding, for one number of rows."""
    made = []
    for plan in sorted({one.plan for one in found}):
        ratios, rates = _ratios(found, plan), [one.rate for one in found if one.plan == plan]
        if ratios:
            low, _, high = quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
            made.append(
                Result(found[0].rows, plan, len(ratios), median(rates), (low, high), median(ratios), _interval(ratios))
            )
    return made


def choose(found: Mapping[int, Sequence[Result]], plans: Sequence[DecodingPlan]) -> dict[int, int]:
    """The plan for each number of rows: under the race the fastest for each, under another rule, whose text depends
    on the plan, one for all. A plan that drafts is only chosen where its whole interval, of at least `ROUNDS` rounds,
    lies above plain decoding."""
    by_rows = {rows: {one.plan: one for one in several} for rows, several in found.items()}

    def gain(rows: int, plan: int) -> float:
        if plan not in by_rows[rows]:
            return -math.inf
        one = by_rows[rows][plan]
        pays = one.rounds >= ROUNDS and one.interval[0] > 1
        return math.log(one.ratio) if pays else min(0.0, math.log(one.ratio))

    races = [place for place, plan in enumerate(plans) if plan.rule == "race"]  # plain decoding is the first
    assignments = [{rows: max(races, key=lambda plan: (gain(rows, plan), -plan)) for rows in found}]
    for place, plan in enumerate(plans):
        if plan.rule != "race":
            assignments.append(dict.fromkeys(found, place))
    totals = [sum(gain(rows, plan) for rows, plan in one.items()) for one in assignments]
    return assignments[totals.index(max(totals))]
