"""The nodes of one depth, about to be scored by a drafter. Knows neither what scores them nor what it is for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from spectr.rows import cached_eye, constant
from spectr.trees.shape import Shape

__all__ = ["Frontier", "LogitsOf", "first_frontier", "next_frontier", "static_frontier"]


@dataclass(frozen=True, slots=True)
class Frontier:
    """M nodes of one depth, after S nodes that were scored at the depths above."""

    depth: int
    tokens: Tensor  # (B, M) int64
    paths: Tensor  # (B, M, depth) int64: the tokens below the root on the way to each node, its own the last
    ancestors: Tensor  # (B, M, S + M) bool: which scored nodes, and of the M, each is or descends from
    parents: Tensor  # (B, M) int64: the place of each one's parent among the S; 0 for the root


LogitsOf = Callable[[Frontier], Tensor]
"""Raw logits (B, M, V) of what follows the nodes of a frontier. Asked once for each depth, from the root down."""


def first_frontier(root: Tensor) -> Frontier:
    """The roots (B,) alone."""
    batch, device = root.shape[0], root.device
    ancestors = torch.ones(batch, 1, 1, dtype=torch.bool, device=device)
    return Frontier(0, root[:, None], root.new_empty(batch, 1, 0), ancestors, torch.zeros_like(root)[:, None])


def next_frontier(above: Frontier, parent: Tensor, tokens: Tensor) -> Frontier:
    """Children with `tokens` (B, M) of the nodes `parent` (B, M) of the frontier above."""

    def at_parent(values: Tensor) -> Tensor:
        return values.gather(1, parent[..., None].expand(-1, -1, values.shape[-1]))

    own = cached_eye(tokens.shape[1], tokens.device).expand(tokens.shape[0], -1, -1)
    paths = torch.cat([at_parent(above.paths), tokens[..., None]], -1)
    ancestors = torch.cat([at_parent(above.ancestors), own], -1)
    before = above.ancestors.shape[-1] - above.tokens.shape[1]
    return Frontier(above.depth + 1, tokens, paths, ancestors, parent + before)


@dataclass(frozen=True, slots=True)
class _Rung:
    """What never changes of one depth of a static shape."""

    depth: int
    ways: tuple[tuple[int, ...], ...]  # nodes below the root on the way to each node
    ancestors: tuple[tuple[bool, ...], ...]
    parents: tuple[int, ...]  # places among the nodes scored


@cache
def _rungs(shape: Shape) -> dict[tuple[int, ...], _Rung]:
    found, scored = {}, list[int]()
    for depth, nodes in enumerate(shape.parents_by_depth):
        scored += nodes
        ways = [shape.way(node) for node in nodes]
        seen = tuple(tuple(other in way for other in scored) for way in ways)
        parents = tuple(scored.index(shape.parents[node]) for node in nodes)
        found[tuple(nodes)] = _Rung(depth, tuple(tuple(way[1:]) for way in ways), seen, parents)
    return found


def static_frontier(shape: Shape, tokens: Tensor, nodes: list[int]) -> Frontier:
    """The `nodes` of one depth of a static shape that have children, with `tokens` (B, N) of the whole tree so far."""
    rung = _rungs(shape)[tuple(nodes)]
    device = tokens.device
    ways = constant(rung.ways, device)  # (M, depth)
    seen = constant(rung.ancestors, device, torch.bool).expand(tokens.shape[0], -1, -1)
    parents = constant(rung.parents, device).expand(tokens.shape[0], -1)
    return Frontier(rung.depth, tokens[:, constant(tuple(nodes), device)], tokens[:, ways], seen, parents)
