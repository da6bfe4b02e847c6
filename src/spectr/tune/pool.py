"""All children that one pruned draft met, and from them every smaller tree: which of its nodes a text goes through.

A pruned tree of n nodes is the best n of the children met, by score, and a child never scores above its parent. So one
draft with a wide beam, many nodes and all depths holds the trees of every smaller beam, size, depth and spread, and the
draft tokens that a text accepts from each of them can be counted without drawing it. Exact for the beam and spread that
were drawn; for others up to nodes that the draft did not expand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Level", "Places", "Pool", "accepted"]

Places = list[list[int]]
"""For each depth at which a tree may end: the places, in the order of scores, of the nodes that a text goes through."""


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth that were expanded, and their likeliest children."""

    paths: list[tuple[int, ...]]  # tokens below the root on the way to each of M nodes
    tokens: npt.NDArray[np.int64]  # (M, C)
    scores: npt.NDArray[np.float64]  # (M, C) before they are normalised, best first
    norms: npt.NDArray[np.float64]  # (M, S) what normalises them, for each spread
    place_of: dict[tuple[int, ...], int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place_of", {path: place for place, path in enumerate(self.paths)})

    def children(self, nodes: Sequence[int], above: npt.NDArray[np.float64], spread: tuple[int, float]) -> "_Scores":
        """Scores (len(nodes) · C,) of the paths to all children of `nodes`, whose own are `above`."""
        at, factor = spread
        fresh = self.scores[nodes] / factor - self.norms[nodes, at][:, None]
        return (above[:, None] + np.minimum(fresh, 0)).ravel()


_Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pool:
    """The levels of one draft, from the root down, and the spreads that they are normalised for."""

    levels: list[Level]
    spreads: tuple[float, ...]

    def places(self, text: Sequence[int], beam: int, spread: float) -> Places:
        """Of the nodes that `text` goes through, in trees that expand `beam` nodes at each depth."""
        nodes, above, here = [0], np.zeros(1), 0  # here: which of `nodes` the text goes through, -1 for none
        by_depth, mine = list[_Scores](), list[int]()
        for depth, level in enumerate(self.levels):
            scores = level.children(nodes, above, (self.spreads.index(spread), spread))
            by_depth.append(scores)
            width = level.tokens.shape[1]
            if here >= 0 and (place := _place(level.tokens[nodes[here]], text, depth)) >= 0:
                mine.append(here * width + place)
            else:
                here = -1
            if depth + 1 < len(self.levels):
                best = np.argsort(-scores, kind="stable")[:beam]
                found = [(int(b), self._next(depth, nodes[int(b) // width], int(b) % width)) for b in best]
                known = [(b, node) for b, node in found if node is not None]
                nodes, above = [node for _, node in known], scores[[b for b, _ in known]]
                here = next((at for at, (b, _) in enumerate(known) if here >= 0 and b == mine[-1]), -1)
            if not nodes:
                break
        return _ordered(by_depth, mine, len(self.levels))

    def _next(self, depth: int, node: int, child: int) -> int | None:
        """The place of a child among the nodes expanded one deeper."""
        level = self.levels[depth]
        return self.levels[depth + 1].place_of.get((*level.paths[node], int(level.tokens[node, child])))


def _place(tokens: npt.NDArray[np.int64], text: Sequence[int], depth: int) -> int:
    """Where the text's token stands among the children of a node, -1 for nowhere."""
    hits = np.flatnonzero(tokens == text[depth]) if depth < len(text) else np.empty(0)
    return int(hits[0]) if len(hits) else -1


def _ordered(by_depth: list[_Scores], mine: list[int], depths: int) -> Places:
    """How many nodes stand before each of `mine`, in trees that end at depth 1, 2, …; of equals the shallower first."""
    before = [
        [
            int((scores >= own).sum())
            if j < i
            else int((scores > own).sum() + (scores[:place] == own).sum() * (j == i))
            for j, scores in enumerate(by_depth)
        ]
        for i, place in enumerate(mine)
        for own in (by_depth[i][place],)
    ]
    return [[sum(counts[:depth]) for counts in before[:depth]] for depth in range(1, depths + 1)]


def accepted(places: Places, nodes: int, depth: int) -> int:
    """Draft tokens that the tree of so many nodes, the root included, and of this depth has of the text."""
    return sum(place < nodes - 1 for place in places[min(depth, len(places)) - 1])
