"""The methods that are compared, each with the tree that it draws."""

from dataclasses import dataclass

from spectr.bench.inflate.order import Grid
from spectr.bench.inflate.pair import Pair
from spectr.bench.methods import METHODS
from spectr.draft import Plan
from spectr.draft.plan import beam_for
from spectr.engine import Engine
from spectr.verify import rule as named_rule

__all__ = ["PLAIN", "Way", "compared", "race"]


@dataclass(frozen=True, slots=True)
class Way:
    """A method of `spectr bench run`, and its plan."""

    method: str
    plan: Plan | None = None

    @property
    def key(self) -> str:
        """One of its kind.

        >>> race(64, 6).key
        'race N=64 D=6'
        """
        return self.method if self.plan is None else f"{self.method} N={self.nodes} D={self.plan.length}"

    @property
    def nodes(self) -> int:
        """Of a tree, the root included."""
        return 1 if self.plan is None else self.plan.capacity

    def engine(self, pair: Pair) -> Engine:
        """On the large side, with its steps captured."""
        rule = named_rule(METHODS[self.method].rule or "race")
        made = Engine(pair.large.target, pair.large.drafter(self.plan), rule, pair.stops)
        made.capture = True
        return made


PLAIN = Way("plain")


def _way(method: str, drafts: int, length: int, nodes: int | None = None) -> Way:
    card = named_rule(METHODS[method].rule).card
    return Way(method, Plan(METHODS[method].siblings or card.draws or card.siblings[0], drafts, length, nodes))


def _pruned(method: str, nodes: int, depth: int | None = None) -> Way:
    beam, usual = beam_for(nodes)
    return _way(method, beam, depth or usual, nodes)


def race(nodes: int, depth: int | None = None) -> Way:
    """The race with a pruned tree."""
    return _pruned("race", nodes, depth)


def _chains(method: str, nodes: int) -> Way:
    """Drafts side by side, eight at most."""
    drafts = max(1, min(8, (nodes - 1) // 4))
    return _way(method, drafts, (nodes - 1) // drafts)


def compared(grid: Grid) -> list[Way]:
    """Everybody, plain decoding first."""
    return [
        PLAIN,
        *(_way("speculative", 1, length) for length in grid.chains),
        _pruned("topk", grid.tree),
        _chains("kseq", grid.tree),
        _chains("path_block", grid.tree),
        *(race(nodes, depth) for nodes in grid.race for depth in grid.depths or (None,)),
    ]
