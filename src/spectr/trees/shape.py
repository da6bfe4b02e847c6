"""Static shapes of token trees, and the topology of a drafted tree.

The topology is batched, of fixed capacity, and computed without a host round trip: ancestors by repeated squaring, the
rest by comparing paths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.rows import cached_arange
from spectr.types import Draft

__all__ = ["Shape", "Topology", "as_shape", "path_tokens", "topology"]


@dataclass(frozen=True, slots=True)
class Shape:
    """A static shape: `parents[n] < n` is the parent of node n; node 0, the root, is its own parent."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parents or self.parents[0] != 0 or any(not 0 <= p < n for n, p in enumerate(self.parents) if n):
            raise ArgumentError(
                f"parents must start with 0 and otherwise be indices of earlier nodes, got {self.parents}"
            )

    @classmethod
    def branching(cls, widths: Sequence[int]) -> "Shape":
        """Return the shape in which every node at depth i has `widths[i]` children.

        >>> Shape.branching((2, 1)).parents
        (0, 0, 0, 1, 2)
        """
        if not widths or any(width < 1 for width in widths):
            raise ArgumentError(
                f"branching must have at least one depth and at least 1 child at each, got {tuple(widths)}"
            )
        parents, level = [0], [0]
        for width in widths:
            start = len(parents)
            parents += [node for node in level for _ in range(width)]
            level = list(range(start, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def chains(cls, count: int, length: int) -> "Shape":
        """Return the shape of `count` chains of `length` tokens from one root, as SpecTr drafts them."""
        if count < 1 or length < 1:
            raise ArgumentError(f"chains must be at least 1 chain of at least 1 token, got {count} of {length}")
        return cls.branching((count,) + (1,) * (length - 1))

    @property
    def depths(self) -> tuple[int, ...]:
        """The depth of each node."""
        depths = [0]
        for node in range(1, len(self.parents)):
            depths.append(depths[self.parents[node]] + 1)
        return tuple(depths)

    @property
    def levels(self) -> list[list[int]]:
        """The nodes of each depth, in order."""
        depths = self.depths
        return [[n for n, depth in enumerate(depths) if depth == level] for level in range(max(depths) + 1)]

    @property
    def parents_by_depth(self) -> list[list[int]]:
        """The nodes of each depth that have children, which are those a drafter scores."""
        parents = set(self.parents[1:])
        by_depth = [[node for node in level if node in parents] for level in self.levels]
        return [level for level in by_depth if level]

    def way(self, node: int) -> list[int]:
        """Return the nodes from the root to `node`, both included.

        >>> Shape.branching((2, 1)).way(4)
        [0, 2, 4]
        """
        return [node] if node == 0 else [*self.way(self.parents[node]), node]

    @property
    def depth(self) -> int:
        """The depth of the deepest node."""
        return max(self.depths)

    @property
    def width(self) -> int:
        """The largest number of nodes at one depth."""
        return max(len(level) for level in self.levels)


def as_shape(tree: Shape | Sequence[int]) -> Shape:
    """Return `tree` if it is a shape, else the shape with these branching numbers."""
    return tree if isinstance(tree, Shape) else Shape.branching(tuple(tree))


@dataclass(frozen=True, slots=True)
class Topology:
    """Parents and children in a drafted tree. Siblings with the same token are copies, and share their children."""

    ancestors: Tensor  # (B, N, N) bool: column is row or an ancestor of row; the attention mask of the tree
    depth: Tensor  # (B, N) int64
    path: Tensor  # (B, N, D + 1) int64: the node at each depth from the root down to this one, padded with -1
    canonical_node: Tensor  # (B, N) int64: the first alive node with the same path of tokens
    children: Tensor  # (B, N, W) int64: at the first copy, the children of all copies in node order; padded with -1


def _ancestors(parents: Tensor, depth: int) -> Tensor:
    """Return (B, N, N) bool: column is row or an ancestor of row."""
    nodes = parents.shape[1]
    ids = cached_arange(nodes, parents.device)
    reach = ((parents[..., None] == ids) | (ids[:, None] == ids)).float()
    for _ in range(max(depth - 1, 1).bit_length()):
        reach = (reach @ reach).clamp_max_(1)
    return reach > 0


def _paths(parents: Tensor, reach: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Return the depth of each node, (B, N), and its path, (B, N, D + 1)."""
    level = reach.sum(-1) - 1  # (B, N)
    batch, nodes = parents.shape
    ids = cached_arange(nodes, parents.device).expand(batch, nodes, nodes)
    # Entries that are no ancestors go to an extra last column.
    at = torch.where(reach, level.clamp_max(depth)[:, None, :], depth + 1)
    path = parents.new_full((batch, nodes, depth + 2), -1).scatter_(-1, at, ids)
    return level, path[..., : depth + 1]


def _first_where(mask: Tensor) -> Tensor:
    """Return the index of the first True in the last dimension, or its size if there is none."""
    ids = cached_arange(mask.shape[-1], mask.device)
    return torch.where(mask, ids, mask.shape[-1]).amin(-1)


def path_tokens(tokens: Tensor, path: Tensor) -> Tensor:
    """Return the tokens (B, N, L) of the nodes on paths (B, N, L), which are padded with -1 like these."""
    return torch.where(path >= 0, tokens.gather(1, path.clamp_min(0).flatten(1)).view_as(path), -1)


def _canonical_nodes(tokens: Tensor, path: Tensor, alive: Tensor) -> Tensor:
    texts = path_tokens(tokens, path)  # (B, N, D + 1)
    same = (texts[:, :, None] == texts[:, None]).all(-1) & alive[:, None, :]
    return torch.minimum(_first_where(same), cached_arange(tokens.shape[1], tokens.device))


def _children(home: Tensor, counted: Tensor, width: int) -> Tensor:
    """Return the table (B, N, W) of the `counted` nodes, listed under their parents `home` (B, N)."""
    batch, nodes = home.shape
    ids = cached_arange(nodes, home.device)
    same = (home[:, :, None] == home[:, None, :]) & counted[:, None, :]
    rank = same.tril(-1).sum(-1)
    table = home.new_full((batch, nodes * width + 1), -1)
    at = torch.where(counted & (rank < width), home * width + rank, nodes * width)
    return table.scatter_(-1, at, ids.expand(batch, nodes))[:, :-1].view(batch, nodes, width)


@cache
def _roots_alone(batch: int, depth: int, width: int, device: torch.device) -> Topology:
    """Return the topology of trees that have a root only; it is cached and must not be written to."""
    with torch.inference_mode(False):
        zeros = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        none = torch.full((batch, 1, max(depth, width)), -1, dtype=torch.int64, device=device)
        path = torch.cat([zeros[..., None], none[..., :depth]], -1)
        return Topology(zeros[..., None] == 0, zeros, path, zeros, none[..., :width])


def topology(draft: Draft) -> Topology:
    """Return the topology of a draft's trees."""
    if draft.tokens.shape[1] == 1:
        return _roots_alone(len(draft.tokens), draft.depth, draft.width, draft.tokens.device)
    reach = _ancestors(draft.parents, draft.depth)
    depth, path = _paths(draft.parents, reach, draft.depth)
    canonical_node = _canonical_nodes(draft.tokens, path, draft.alive)
    ids = cached_arange(draft.tokens.shape[1], draft.tokens.device)
    children = _children(canonical_node.gather(-1, draft.parents), draft.alive & (ids > 0), draft.width)
    return Topology(reach, depth, path, canonical_node, children)
