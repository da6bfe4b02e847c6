"""Chooses the static tree of N nodes with the most expected accepted tokens, given acceptance by depth and rank.

A node is kept if its whole path is, so its value is the product of the probabilities along the path, which is never
more than that of its parent or of an earlier sibling. The best N nodes therefore form a tree, and the greedy choice is
optimal.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spectr.errors import ArgumentError
from spectr.trees.shape import Shape

__all__ = ["Valued", "best_shape"]

Chances = Sequence[Sequence[float]]
"""For each depth, the probabilities that a reached node continues to its first child, its second, …; the last entry
applies to all deeper depths."""


@dataclass(frozen=True, slots=True)
class Valued:
    """A shape, and the probability that each of its nodes is kept."""

    shape: Shape
    values: tuple[float, ...]

    @property
    def expected(self) -> float:
        """The expected number of tokens per step: the sum of the probabilities, the root's 1 counting the bonus
        token."""
        return sum(self.values)


def _check(chances: Chances, nodes: int) -> None:
    if nodes < 1:
        raise ArgumentError(f"nodes must be at least 1 (the root), got {nodes}")
    if not chances or not all(chances):
        raise ArgumentError("chances must have at least one depth, and at least one rank in each")
    for depth, row in enumerate(chances, start=1):
        falling = all(first >= second for first, second in pairwise(row))
        if not (falling and min(row) >= 0 and sum(row) <= 1 + 1e-9):  # which no NaN passes
            raise ArgumentError(f"chances at depth {depth} must fall with rank and sum to at most 1, got {list(row)}")


def best_shape(chances: Chances, nodes: int) -> Valued:
    """Return the tree of at most `nodes` nodes, the root included, with the highest expected number of kept nodes.

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
