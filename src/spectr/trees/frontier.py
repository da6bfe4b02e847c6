"""The nodes of one depth that a drafter scores next."""

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
    """M nodes of one depth; S nodes were scored at the depths above."""

    depth: int
    tokens: Tensor  # (B, M) int64
    paths: Tensor  # (B, M, depth) int64: the tokens from below the root to each node, its own last
    ancestors: Tensor  # (B, M, S + M) bool: which scored or current nodes are the node itself or an ancestor of it
    parents: Tensor  # (B, M) int64: the index of each node's parent among the S; 0 for the root


LogitsOf = Callable[[Frontier], Tensor]
"""Returns the raw logits (B, M, V) after the nodes of a frontier. Called once for each depth, from the root down."""


def first_frontier(root: Tensor) -> Frontier:
    """Return the frontier that consists of the roots (B,)."""
    batch, device = root.shape[0], root.device
    ancestors = torch.ones(batch, 1, 1, dtype=torch.bool, device=device)
    return Frontier(0, root[:, None], root.new_empty(batch, 1, 0), ancestors, torch.zeros_like(root)[:, None])


def next_frontier(above: Frontier, parent: Tensor, tokens: Tensor) -> Frontier:
    """Return the frontier of the children with `tokens` (B, M), whose parents are `parent` (B, M) in `above`."""

    def at_parent(values: Tensor) -> Tensor:
        return values.gather(1, parent[..., None].expand(-1, -1, values.shape[-1]))

    own = cached_eye(tokens.shape[1], tokens.device).expand(tokens.shape[0], -1, -1)
    paths = torch.cat([at_parent(above.paths), tokens[..., None]], -1)
    ancestors = torch.cat([at_parent(above.ancestors), own], -1)
    before = above.ancestors.shape[-1] - above.tokens.shape[1]
    return Frontier(above.depth + 1, tokens, paths, ancestors, parent + before)


@dataclass(frozen=True, slots=True)
class _StaticLevel:
    """The constant parts of a frontier at one depth of a static shape."""

    depth: int
    paths: tuple[tuple[int, ...], ...]  # nodes from below the root to each node
    ancestors: tuple[tuple[bool, ...], ...]
    parents: tuple[int, ...]  # indices among the scored nodes


@cache
def _static_levels(shape: Shape) -> dict[tuple[int, ...], _StaticLevel]:
    levels, scored = {}, list[int]()
    for depth, nodes in enumerate(shape.parents_by_depth):
        scored += nodes
        paths = [shape.way(node) for node in nodes]
        ancestors = tuple(tuple(other in path for other in scored) for path in paths)
        parents = tuple(scored.index(shape.parents[node]) for node in nodes)
        levels[tuple(nodes)] = _StaticLevel(depth, tuple(tuple(path[1:]) for path in paths), ancestors, parents)
    return levels


def static_frontier(shape: Shape, tokens: Tensor, nodes: list[int]) -> Frontier:
    """Return the frontier of `nodes`, those of one depth of a static shape that have children.

    `tokens` (B, N) are those of the whole tree, as far as it was drawn."""
    level = _static_levels(shape)[tuple(nodes)]
    device = tokens.device
    paths = constant(level.paths, device)  # (M, depth)
    ancestors = constant(level.ancestors, device, torch.bool).expand(tokens.shape[0], -1, -1)
    parents = constant(level.parents, device).expand(tokens.shape[0], -1)
    return Frontier(level.depth, tokens[:, constant(tuple(nodes), device)], tokens[:, paths], ancestors, parents)
