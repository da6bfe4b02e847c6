"""Tokens per call of every way, which no machine changes: with the race from one census for all trees, with rules that
couple laws from the acceptance by depth, for each number of drafts.

Where a tree of such a rule ends does not change what is accepted above: at least i tokens are kept with the same chance
for every length from i on. So one count of the longest drafts serves all shorter ones.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spectr.draft import Plan
from spectr.draft.adaptive import replanned
from spectr.draft.profile import Way
from spectr.metrics import Stats
from spectr.tune.study import Study
from spectr.tune.ways import Bench
from spectr.tune.yields import Pruning, Text, Yield, census, pool_yields, tree_yield
from spectr.types import Drafter

__all__ = ["Count", "count_ways"]


@dataclass(frozen=True, slots=True)
class Count:
    """What steps of a way give, and how many nodes their trees have: shares of steps."""

    block_efficiency: float
    nodes: dict[int, float]

    @classmethod
    def of(cls, found: Yield) -> "Count":
        """From steps that were walked."""
        return cls(found.block_efficiency, {size: steps / found.steps for size, steps in found.nodes.items()})


@dataclass(frozen=True, slots=True)
class _Witness:
    """Somebody who is asked in the census, and the ways that the answers serve."""

    drafter: Drafter
    ways: list[Way]
    pools: bool

    def counts(self, texts: Sequence[Text], place: int) -> dict[Way, Count]:
        """Of these ways."""
        if not self.pools:
            return {way: Count.of(tree_yield(texts, place)) for way in self.ways}
        trees = {way: _pruning(way) for way in self.ways}
        found = pool_yields(texts, place, trees.values())
        return {way: Count.of(found[tree]) for way, tree in trees.items()}


def _pruning(way: Way) -> Pruning:
    assert way.nodes is not None
    assert way.length is not None
    assert way.drafts is not None
    return Pruning(way.nodes, way.length, way.drafts, way.spread)


def _witnesses(bench: Bench, name: str) -> Iterator[_Witness]:
    """One for all pruned trees of a drafter, wide and deep enough for all; else one for each way."""
    base, ways, reach = bench.pairs[name, "race"], list(bench.ways(name, "race")), bench.reach
    if hasattr(base, "plan") and base.plan.prunes:
        widest = Plan("race", max(reach.beams), bench.deepest(base), max(reach.sizes))
        yield _Witness(replanned(base, widest), ways, pools=True)
    else:
        yield from (_Witness(bench.drafter(way), [way], pools=False) for way in ways)


def _count_race(bench: Bench, study: Study) -> dict[Way, Count]:
    names = [name for name, rule in bench.pairs if rule == "race"]
    asked = [witness for name in names for witness in _witnesses(bench, name)]
    if not asked:
        return {}
    texts = census(bench.engine(Way()), [one.drafter for one in asked], bench.reach.spreads, study.all_at_once())
    found = dict[Way, Count]()
    for place, witness in enumerate(asked):
        found |= witness.counts(texts, place)
    return found


def _by_length(stats: Sequence[Stats], drafts: int, longest: int) -> Iterator[Count]:
    """For each length, from what steps with the longest drafts kept at each depth."""
    steps, expected = sum(one.steps for one in stats), 1.0
    for depth in range(longest):
        expected += sum(sum(one.kept[depth : depth + 1]) for one in stats) / steps
        yield Count(expected, {1 + drafts * (depth + 1): 1.0})


def _count_coupled(bench: Bench, name: str, rule: str, study: Study) -> dict[Way, Count]:
    found, ways = dict[Way, Count](), list(bench.ways(name, rule))
    for drafts in Counter(way.drafts or 1 for way in ways):
        same = [way for way in ways if way.drafts == drafts]
        longest = max(same, key=lambda way: way.length or 0)
        results = bench.engine(longest).generate(study.all_at_once())
        counts = _by_length([result.stats for result in results], drafts, longest.length or 1)
        found |= dict(zip(same, counts, strict=True))
    return found


def count_ways(bench: Bench, study: Study, progress: Callable[[str], None]) -> dict[Way, Count]:
    """Of all ways of the bench."""
    progress(f"counting what drafts are worth, on {len(study.prompts)} texts of {study.tokens} tokens")
    found = _count_race(bench, study)
    for name, rule in bench.pairs:
        if rule != "race":
            progress(f"counting {rule}")
            found |= _count_coupled(bench, name, rule, study)
    return found
