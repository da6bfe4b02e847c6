"""Successive halving over plans, as pure functions of the measurements so far.

Nothing here runs a model or reads a clock, so an interrupted run can continue from its measurements alone.

Plans are numbered, and plan 0 is plain decoding, which is measured in every round and never dropped. A plan's score is
the median over rounds of its tokens per second divided by those of plain decoding in the same round, so that a
temporary slowdown of the machine affects both.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from spectr.draft.profile import PLAIN, DecodingPlan

__all__ = ["Measurement", "Result", "choose", "next_round", "results", "rungs"]

ROUNDS = 3  # rounds before the slower half of the plans is dropped
_SURE = 0.95  # probability that the interval covers the median ratio, if there are enough rounds


@dataclass(frozen=True, slots=True)
class Measurement:
    """One batch generated with one plan."""

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
    """The results of one plan over all rounds."""

    rows: int
    plan: int
    rounds: int
    rate: float  # median of tokens per second
    quartiles: tuple[float, float]
    ratio: float  # median of the ratio to plain decoding in the same round
    interval: tuple[float, float]  # of that median: 95 % with at least six rounds, the range with fewer


def rungs(plans: int) -> Iterator[int]:
    """Yield the number of plans besides plain decoding in each rung of the halving.

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
    """Return the number of the next round and the plans it must measure, or None if all rounds are complete.

    `found` are the measurements at one batch size. The order of the plans rotates from round to round."""
    by_cell = {(one.round, one.plan): one for one in found}
    alive = [plan for plan in range(1, plans) if plan not in left_out]
    start = 0
    while True:
        for number in range(start, start + ROUNDS):
            everyone = [PLAIN, *alive]
            turned = [everyone[(at + number) % len(everyone)] for at in range(len(everyone))]
            if missing := [plan for plan in turned if (number, plan) not in by_cell]:
                return number, missing
        if len(alive) < 2:
            return None
        start += ROUNDS
        so_far = [one for one in found if one.round < start]  # later rounds do not bring dropped plans back
        scores = {plan: median(_ratios(so_far, plan)) for plan in alive}
        alive = sorted(sorted(alive, key=lambda plan: -scores[plan])[: -(-len(alive) // 2)])


def _ratios(found: Sequence[Measurement], plan: int) -> list[float]:
    """Return the ratio of a plan's tokens per second to plain decoding's, for each round that has both."""
    plain = {one.round: one.rate for one in found if one.plan == PLAIN}
    return [one.rate / plain[one.round] for one in found if one.plan == plan and one.round in plain]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return order statistics that enclose the median with probability `_SURE`; the range of fewer than six values."""
    ordered, count = sorted(values), len(values)
    outside, cut = 0.0, 0
    while 2 * (outside + math.comb(count, cut) / 2**count) <= 1 - _SURE:
        outside += math.comb(count, cut) / 2**count
        cut += 1
    cut = max(1, cut)
    return ordered[cut - 1], ordered[count - cut]


def results(found: Sequence[Measurement]) -> list[Result]:
    """Return a result for each plan that was measured together with plain decoding, at one batch size."""
    summaries = []
    for plan in sorted({one.plan for one in found}):
        ratios, rates = _ratios(found, plan), [one.rate for one in found if one.plan == plan]
        if ratios:
            low, _, high = quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
            summaries.append(
                Result(found[0].rows, plan, len(ratios), median(rates), (low, high), median(ratios), _interval(ratios))
            )
    return summaries


def choose(found: Mapping[int, Sequence[Result]], plans: Sequence[DecodingPlan]) -> dict[int, int]:
    """Return the plan for each batch size: with the race the fastest for each; with another rule, whose text depends on
    the plan, one for all. A plan that drafts is chosen only if its whole interval, over at least `ROUNDS` rounds, is
    above plain decoding."""
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
