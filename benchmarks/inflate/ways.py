"""The ways that are compared: methods, each with the plan of its trees."""

from dataclasses import dataclass

from benchmarks.inflate.order import Grid
from benchmarks.inflate.pair import Pair
from spectr.bench.methods import METHODS
from spectr.draft import Plan
from spectr.draft.plan import beam_for
from spectr.engine import Engine
from spectr.verify import rule as named_rule

__all__ = ["PLAIN", "Way", "batched", "compared", "race"]


@dataclass(frozen=True, slots=True)
class Way:
    """A method of `spectr bench run` with a plan."""

    method: str
    plan: Plan | None = None

    @property
    def key(self) -> str:
        """The way's unique name.

        >>> race(64, 6).key
        'race N=64 D=6'
        """
        return self.method if self.plan is None else f"{self.method} N={self.nodes} D={self.plan.length}"

    @property
    def nodes(self) -> int:
        """Nodes of a tree, including the root."""
        return 1 if self.plan is None else self.plan.capacity

    def engine(self, pair: Pair, rows: int = 1) -> Engine:
        """Make an engine of the large side with room for `rows` texts at once."""
        rule = named_rule(METHODS[self.method].rule or "race")
        return Engine(pair.large.target, pair.large.drafter(self.plan), rule, pair.stops, rows=rows)


PLAIN = Way("plain")


def _way(method: str, drafts: int, length: int, nodes: int | None = None) -> Way:
    card = named_rule(METHODS[method].rule).card
    return Way(method, Plan(METHODS[method].siblings or card.draws or card.siblings[0], drafts, length, nodes))


def _pruned(method: str, nodes: int, depth: int | None = None) -> Way:
    beam, usual = beam_for(nodes)
    return _way(method, beam, depth or usual, nodes)


def race(nodes: int, depth: int | None = None) -> Way:
    """Return the race with a pruned tree."""
    return _pruned("race", nodes, depth)


def _chains(method: str, nodes: int, depth: int | None) -> list[Way]:
    """Return parallel chains: eight, and if a depth is given also as many as the nodes allow."""
    deep = min(depth or max(1, (nodes - 1) // 8), nodes - 1)
    most = (nodes - 1) // deep
    return [_way(method, drafts, deep) for drafts in sorted({min(8, most), most if depth else min(8, most)})]


def compared(grid: Grid) -> list[Way]:
    """Return all ways, plain decoding first; those with trees use the same depths."""
    depths = grid.depths or (None,)
    return [
        PLAIN,
        *(_way("speculative", 1, length) for length in grid.chains),
        *(_pruned("topk", grid.tree, depth) for depth in depths),
        *(way for method in ("kseq", "path_block") for depth in depths for way in _chains(method, grid.tree, depth)),
        *(race(nodes, depth) for nodes in grid.race for depth in depths),
    ]


def batched(grid: Grid) -> list[Way]:
    """Return plain decoding and trees of several sizes, no deeper than the smallest requested depth."""
    least = min(grid.depths, default=None)
    return [PLAIN, *(race(nodes, least and min(least, beam_for(nodes)[1])) for nodes in grid.row_nodes)]
