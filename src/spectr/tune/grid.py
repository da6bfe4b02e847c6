"""The planner's choice against an exhaustive grid: every plan of it is run, whatever was predicted.

All plans write a few texts, in turn; the best of them, plain decoding and the choice then write all texts again, in
turn. So the best of many noisy figures is not taken for the best plan.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from spectr.draft.profile import Way
from spectr.tune.measure import Speed, compare
from spectr.tune.planner import OTHER, Expected, Found, choose
from spectr.tune.progress import Progress
from spectr.tune.study import Study
from spectr.tune.ways import Bench

__all__ = ["Verdict", "against_grid", "grid_ways"]

_SIZES, _DEEPEST, _WIDEST = (2, 3, 4, 6, 8, 16, 64), 4, 4  # of pruned trees
_FINALISTS = 6
_FEW = 2  # texts of the first round


def grid_ways(bench: Bench) -> Iterator[Way]:
    """Of pruned trees several sizes with all depths and beams up to a few; of other ways all."""
    for name, rule in bench.pairs:
        pruned = rule == "race" and hasattr(bench.pairs[name, rule], "plan")
        yield from (way for way in bench.ways(name, rule) if not pruned or _in_grid(way))


def _in_grid(way: Way) -> bool:
    usual = way.spread == 1 and way.nodes in _SIZES
    return usual and (way.length or 1) <= _DEEPEST and (way.drafts or 1) <= _WIDEST


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the grid says of the choice."""

    choice: Way
    first: dict[Way, Speed]  # every plan, on a few texts
    final: dict[Way, Speed]  # the best of them, plain decoding and the choice, on all
    expected: dict[Way, Expected]

    @property
    def best(self) -> Way:
        """Of all."""
        return max(self.final, key=lambda way: self.final[way].tokens_per_second)

    @property
    def ratio(self) -> float:
        """The choice's speed in that of the best."""
        return self.final[self.choice].tokens_per_second / self.final[self.best].tokens_per_second

    @property
    def off(self) -> float:
        """The largest relative error of a predicted block efficiency, over all that was measured again."""
        pairs = [(self.expected[way].block_efficiency, speed.block_efficiency) for way, speed in self.final.items()]
        return max(abs(predicted / observed - 1) for predicted, observed in pairs)

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "plans": len(self.first),
            "choice": str(self.choice),
            "best": str(self.best),
            "ratio_to_best": self.ratio,
            "largest_error_of_block_efficiency": self.off,
            "final": [self._row(way, speed) for way, speed in self.final.items()],
            "all": [self._row(way, speed) for way, speed in self.first.items()],
        }

    def _row(self, way: Way, speed: Speed) -> dict[str, Any]:
        expected = self.expected[way]
        return {
            "name": str(way),
            "way": asdict(way),
            "predicted": {"tokens_per_second": expected.speed, "block_efficiency": expected.block_efficiency},
            "measured": {
                "tokens_per_second": speed.tokens_per_second,
                "block_efficiency": speed.block_efficiency,
                "tokens": speed.emitted,
            },
        }


def against_grid(bench: Bench, study: Study, found: Found, progress: Progress) -> Verdict:
    """Run the grid for one row, and compare."""
    choice, expected = choose(found.measured).expected.way, {one.way: one for one in found.expected}
    ways, jobs = list(dict.fromkeys([Way(), *grid_ways(bench)])), study.batches(1, 2 * OTHER)
    progress.say(f"measuring all {len(ways)} plans of the grid")
    speeds = compare([bench.engine(way) for way in ways], jobs[:_FEW], 1, progress)
    first = dict(zip(ways, speeds, strict=True))
    best = sorted(first, key=lambda way: -first[way].tokens_per_second)[:_FINALISTS]
    finalists = list(dict.fromkeys([Way(), choice, *best]))
    progress.say(f"measuring the best {len(best)} of them again, with the choice and plain decoding")
    final = compare([bench.engine(way) for way in finalists], jobs, study.repeats, progress)
    return Verdict(choice, first, dict(zip(finalists, final, strict=True)), expected)
