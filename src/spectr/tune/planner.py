"""The planner: every way's tokens per call and seconds a step, predicted; the best of them, measured; one chosen.

Plain decoding is one of the ways, and wins where nothing beats it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.draft.chooser import Prospect
from spectr.draft.profile import Choice, Profile, Way
from spectr.tune.costs import (
    CostTable,
    Timed,
    Trio,
    call_curve,
    drafting_cost,
    time_steps,
    verdict_curve,
)
from spectr.tune.counts import Count, count_ways
from spectr.tune.measure import Speed, compare
from spectr.tune.progress import Progress
from spectr.tune.study import Study
from spectr.tune.ways import Bench
from spectr.types import Drafter
from spectr.verify import rule as named_rule

__all__ = ["OTHER", "Expected", "Found", "Measured", "choose", "chosen", "expect", "profile_of", "time_all", "tune"]

_TIE = 0.01  # of the fastest: ways that near are as fast
_SHOWN = 5  # ways that are measured beside plain decoding
_MENU = 6  # ways that plan="auto" chooses from beside it
OTHER = 1_000_003  # from the seeds of what is predicted to those of what is measured
_TIMES = 12  # steps of each plan that costs are the medians of


@dataclass(frozen=True, slots=True)
class Expected:
    """A way, and what its steps should give and take."""

    way: Way
    block_efficiency: float
    seconds: float  # of a step

    @property
    def speed(self) -> float:
        """Tokens a second of each row."""
        return self.block_efficiency / self.seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """A prediction, and what came of it."""

    expected: Expected
    rows: int
    speed: Speed

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        expected, found = self.expected, self.speed
        return {
            "rows": self.rows,
            "way": asdict(expected.way),
            "name": str(expected.way),
            "predicted": {
                "tokens_per_second": self.rows * expected.speed,
                "block_efficiency": expected.block_efficiency,
                "ms_per_step": 1e3 * expected.seconds,
            },
            "measured": {
                "tokens_per_second": found.tokens_per_second,
                "block_efficiency": found.block_efficiency,
                "tokens": found.emitted,
            },
        }


@dataclass(frozen=True, slots=True)
class Found:
    """For so many rows: costs, all predictions, the best first, and what was measured, plain decoding first."""

    costs: CostTable
    expected: list[Expected]
    measured: list[Measured]


def _points(bench: Bench, base: Any) -> list[Plan]:
    """Plans whose steps tell what all others cost: one a single depth, then every size and beam at the full depth."""
    reach, depth = bench.reach, bench.deepest(base)
    if not hasattr(base, "plan"):
        return []
    if not base.plan.prunes:
        longest, draws = min(reach.length, depth), base.plan.siblings
        return [Plan(draws, 1, 1), *(Plan(draws, drafts, longest) for drafts in reach.drafts if longest > 1)]
    beams = [[beam for beam in reach.beams if beam < nodes] for nodes in reach.sizes]
    return [
        Plan("race", 1, 1, reach.sizes[0]),
        *(
            Plan("race", some[at % len(some)], depth, n)
            for at, (n, some) in enumerate(zip(reach.sizes, beams, strict=True))
        ),
    ]


def _sizes(bench: Bench) -> tuple[Drafter, list[Plan]]:
    """Trees of every size whose tokens cost nothing, for drafters that cannot draw them."""
    plans = [Plan("race", 1, 1, nodes) for nodes in bench.reach.sizes]
    return named_drafter("random", plan=plans[0]), plans


def time_all(bench: Bench, study: Study, rows: int) -> CostTable:
    """What steps of all drafters and rules cost."""
    target = bench.lm.opened.target

    def timed(drafter: Drafter, rule: str, plans: list[Plan]) -> list[Timed]:
        steps = (_TIMES + 1) * (len(plans) + 2)
        job = study.long(rows, 2 * steps, target.context)
        return time_steps(Trio(target, drafter, named_rule(rule)), plans, job, _TIMES)

    found = {(name, rule): timed(base, rule, _points(bench, base)) for (name, rule), base in bench.pairs.items()}
    raced = [one for (_, rule), many in found.items() if rule == "race" for one in many]
    if not any(one.plan for one in raced):
        drafter, plans = _sizes(bench)
        raced = timed(drafter, "race", plans)
    call = call_curve([one for one in raced if one.plan or one.nodes == 1])
    rest = min(one.rest for many in found.values() for one in many)
    drafting = {pair: drafting_cost(many) for pair, many in found.items()}
    verdicts = {pair: verdict_curve(many, call) for pair, many in found.items() if pair[1] != "race"}
    return CostTable(rows, call, rest, drafting, verdicts)


def expect(way: Way, count: Count, costs: CostTable) -> Expected:
    """What follows from counts and costs."""
    if way.plain:
        return Expected(way, 1.0, costs.plain)
    pair, drafts = (way.drafter, way.rule), way.drafts or 1
    call = sum(share * costs.call(nodes) for nodes, share in count.nodes.items())
    verdict = costs.verdict[pair](drafts) if pair in costs.verdict else 0.0
    drafting = costs.drafting[pair](drafts, way.length or 1)
    return Expected(way, count.block_efficiency, drafting + call + verdict + costs.rest)


def _distinct(expected: Iterable[Expected], most: int) -> list[Expected]:
    """The first of each drafter, rule and size."""
    kinds: dict[tuple[str, str, int], Expected] = {}
    for one in expected:
        way = one.way
        size = way.nodes or (way.drafts or 1) * (way.length or 1) + 1
        kinds.setdefault((way.drafter, way.rule, size), one)
    return list(kinds.values())[:most]


def tune(bench: Bench, study: Study, progress: Progress) -> list[Found]:
    """Counts once; then for each number of rows costs, predictions, and speeds of the best."""
    counts = count_ways(bench, study, progress.say)
    found = []
    for rows in study.rows:
        progress.say(f"timing steps of {rows} row{'s' * (rows > 1)}")
        costs = time_all(bench, study, rows)
        expected = sorted((expect(way, count, costs) for way, count in counts.items()), key=lambda e: -e.speed)
        plain = expect(Way(), Count(1.0, {1: 1.0}), costs)
        shown = [plain, *_distinct(expected, _SHOWN)]
        progress.say(f"measuring the best {len(shown) - 1} of {len(expected)} plans and plain decoding")
        engines = [bench.engine(one.way) for one in shown]
        speeds = compare(engines, study.batches(rows, OTHER), study.repeats, progress)
        measured = [Measured(one, rows, speed) for one, speed in zip(shown, speeds, strict=True)]
        found.append(Found(costs, sorted([plain, *expected], key=lambda e: -e.speed), measured))
    return found


def _preference(one: Measured) -> tuple[bool, bool, int]:
    """Among equals: plain decoding, then the race, whose text the seed alone decides, then the smaller tree."""
    way = one.expected.way
    return not way.plain, way.rule != "race", way.nodes or (way.drafts or 1) * (way.length or 1)


def choose(measured: Sequence[Measured], rule: str | None = None) -> Measured:
    """The fastest, where `rule` is given among those of it and plain decoding; of what is nearly as fast, what is
    preferred."""
    allowed = [one for one in measured if rule is None or one.expected.way.plain or one.expected.way.rule == rule]
    fastest = max(one.speed.tokens_per_second for one in allowed)
    near = [one for one in allowed if one.speed.tokens_per_second >= (1 - _TIE) * fastest]
    return min(near, key=_preference)


def chosen(found: Sequence[Found]) -> list[Measured]:
    """The choice for each number of rows; all have the rule of the first, since an engine has one."""
    first = choose(found[0].measured)
    rule = None if first.expected.way.plain else first.expected.way.rule
    return [first, *(choose(one.measured, rule) for one in found[1:])]


def profile_of(found: Sequence[Found], fingerprint: str, device: str) -> Profile:
    """What `spectr.load` needs of it: the choices, and a menu of trees around them."""
    ways = [one.expected.way for one in chosen(found)]
    every = [way for each in found for way in (one.way for one in each.expected) if not way.plain]
    rule = next((way.rule for way in ways if not way.plain), every[0].rule)
    around = [e.way for each in found for e in _distinct((e for e in each.expected if e.way.rule == rule), _MENU)]
    menu = tuple(dict.fromkeys([Way(), *ways, *(way for way in around if not way.plain)]))
    return Profile(fingerprint, device, menu, tuple(map(_choice(menu), found, ways)))


def _choice(menu: Sequence[Way]) -> Callable[[Found, Way], Choice]:
    def made(found: Found, way: Way) -> Choice:
        by_way, plain = {one.way: one for one in found.expected}, found.costs.plain
        prospects = [Prospect(by_way[one].block_efficiency, by_way[one].seconds / plain) for one in menu]
        return Choice(found.costs.rows, menu.index(way), tuple(prospects))

    return made
