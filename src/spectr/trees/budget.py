"""Which static tree to draw: the one of N nodes that is expected to keep most, from acceptance by depth and rank.

A node is kept if its whole path is, so it is worth the product of the chances on the way, never more than its parent or
an earlier sibling. The best N nodes are therefore a tree already, and the greedy choice is the optimum.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spectr.errors import ArgumentError
from spectr.trees.shape import Shape

__all__ = ["Valued", "best_shape"]

Chances = Sequence[Sequence[float]]
"""By depth and rank: how often a node that is reached goes on to its first child, its second, …; below the last depth
given, the last holds."""


@dataclass(frozen=True, slots=True)
class Valued:
    """A shape, and the chance that each node is kept."""

    shape: Shape
    values: tuple[float, ...]

    @property
    def expected(self) -> float:
        """Tokens a step emits: the bonus, and every node as often as it is kept."""
        return sum(self.values)


def _check(chances: Chances, nodes: int) -> None:
    if nodes < 1:
        raise ArgumentError(f"nodes must be at least 1, the root, got {nodes}")
    if not chances or not all(chances):
        raise ArgumentError("chances must have at least one depth, and at least one rank in each")
    for depth, row in enumerate(chances, start=1):
        falling = all(first >= second for first, second in pairwise(row))
        if not falling or min(row) < 0 or sum(row) > 1 + 1e-9:
            raise ArgumentError(f"chances at depth {depth} must fall with rank and sum to at most 1, got {list(row)}")


def best_shape(chances: Chances, nodes: int) -> Valued:
    """The tree of at most `nodes` nodes, the root included, with the highest expected number of kept nodes.

    >>> best = best_shape([[0.6, 0.2], [0.5, 0.1]], 4)
    >>> best.shape.parents, round(best.expected, 2)
    ((0, 0, 1, 0), 2.1)
    """
    _check(chances, nodes)
    parents, values, depths = [0], [1.0], [0]
    waiting = [(-chances[0][0], 0, 0)]  # (−value, parent, rank)
    while waiting and len(parents) < nodes:
        value, parent, rank = heapq.heappop(waiting)
        if value == 0:
            break
        node, depth = len(parents), depths[parent] + 1
        parents.append(parent)
        values.append(-value)
        depths.append(depth)
        below, beside = chances[min(depth, len(chances) - 1)], chances[min(depth - 1, len(chances) - 1)]
        heapq.heappush(waiting, (value * below[0], node, 0))
        if rank + 1 < len(beside):
            heapq.heappush(waiting, (-values[parent] * beside[rank + 1], parent, rank + 1))
    return Valued(Shape(tuple(parents)), tuple(values))
