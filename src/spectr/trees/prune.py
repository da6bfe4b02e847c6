"""The tree the race draws: the best nodes by shared noise, wherever they hang.

Every child has a score, the logarithm of the chance that it wins given noise and draft law; scores add up along a path.
The best few nodes of each depth are expanded, and of all children met the best N are kept. Only the race allows this:
its text never depends on the draft, so a tree may be pruned by anything that is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.kernels import usable
from spectr.notices import notice
from spectr.rows import cached_arange
from spectr.trees.frontier import Frontier, first_frontier, next_frontier
from spectr.types import Draft

__all__ = ["Budget", "Pruned", "prune"]

BestOf = Callable[[Frontier, int], tuple[Tensor, Tensor]]
"""Log chances (B, M, C) of the likeliest C tokens after the nodes of a frontier, best first, and the tokens; C is what
is asked for, or all there are."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How large a tree may be, and how hard to look for it."""

    nodes: int = 17  # of the tree, the root included
    beam: int = 4  # nodes expanded at each depth
    depth: int = 4

    def __post_init__(self) -> None:
        for name, least in (("nodes", 2), ("beam", 1), ("depth", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name} of a pruned tree must be at least {least}, got {getattr(self, name)}")

    @property
    def scored(self) -> int:
        """Nodes that are scored by the drafter, the root included."""
        return 1 + self.beam * (self.depth - 1)


@dataclass(frozen=True, slots=True)
class Pruned:
    """A draft, and the place of each node among those scored (B, N), -1 where it was not."""

    draft: Draft
    scored: Tensor


@dataclass(frozen=True, slots=True)
class _Pool:
    """Every child met, P of them; a parent stands before its children."""

    tokens: Tensor  # (B, P) int64
    parents: Tensor  # (B, P) int64: its parent's place in the pool, -1 for the root
    scores: Tensor  # (B, P) of the path down to it
    scored: Tensor  # (B, P) int64: its place among the scored nodes, -1 if it was not expanded


def _joined(pools: Sequence[_Pool]) -> _Pool:
    """All, in order."""
    return _Pool(*(torch.cat([getattr(pool, name) for pool in pools], 1) for name in _Pool.__slots__))


@dataclass(frozen=True, slots=True)
class _Beam:
    """The nodes of one depth that are expanded."""

    frontier: Frontier
    places: Tensor  # (B, M) their places in the pool, -1 for the root
    scores: Tensor  # (B, M) of the paths down to them


def _children(beam: _Beam, chances: Tensor, tokens: Tensor) -> _Pool:
    """Children (B, M, C) of every node of the beam; what has no number for a chance has none."""
    chances = chances.float().nan_to_num(-torch.inf, 0.0, -torch.inf).clamp_max(0)
    scores = (chances + beam.scores[..., None]).flatten(1)
    parents = beam.places[..., None].expand_as(tokens).flatten(1)
    return _Pool(tokens.flatten(1), parents, scores, torch.full_like(parents, -1))


def _expand(beam: _Beam, children: _Pool, budget: Budget, before: int) -> tuple[_Beam, _Pool]:
    """The beam of the next depth, and the children marked with where it scores them; `before` stood in the pool."""
    batch, each = beam.scores.shape[0], children.tokens.shape[1] // beam.scores.shape[1]
    best = children.scores.topk(min(budget.beam, children.tokens.shape[1]), -1)
    tokens = children.tokens.gather(1, best.indices)
    first = beam.frontier.ancestors.shape[-1]
    order = cached_arange(first + tokens.shape[1], tokens.device)[first:].expand(batch, -1)
    marked = _Pool(children.tokens, children.parents, children.scores, children.scored.scatter(1, best.indices, order))
    frontier = next_frontier(beam.frontier, best.indices // each, tokens)
    return _Beam(frontier, best.indices + before, best.values), marked


def _expand_by_kernel(
    beam: _Beam, best: tuple[Tensor, Tensor], budget: Budget, before: int
) -> tuple[_Beam, _Pool] | None:
    """The children and the next beam at once, where there is a kernel for it."""
    chances, tokens = best
    count = min(budget.beam, tokens.shape[1] * tokens.shape[2])
    if not usable(chances):
        return None
    from spectr.kernels.beam import BeamNodes, can_expand, expanded

    if not can_expand(tokens.shape[1], tokens.shape[2], count):
        notice(f"a beam of {count} nodes is too wide for the tree kernel, so trees are pruned without it, slower")
        return None
    old = beam.frontier
    made = expanded(BeamNodes(beam.scores, beam.places, old.ancestors, old.paths), chances, tokens, count, before)
    above = made.came + (old.ancestors.shape[-1] - old.tokens.shape[1])
    frontier = Frontier(old.depth + 1, made.tokens, made.paths, made.ancestors, above)
    children = _Pool(tokens.flatten(1), made.parents, made.scores, made.scored)
    return _Beam(frontier, made.places, made.best), children


def _chosen(pool: _Pool, count: int) -> Tensor:
    """Places of the best `count` children, parents first, impossible ones last; (B, count).

    A child never scores above its parent, and the sort is stable, so a chosen child's parent is chosen."""
    best = pool.scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    hopeless = pool.scores.gather(1, best) == -torch.inf
    return (best + hopeless * pool.scores.shape[1]).sort(-1).values % pool.scores.shape[1]


def _trimmed(pruned: Pruned) -> Pruned:
    """Without columns that are dead in every row; where the host may look."""
    draft = pruned.draft
    if draft.tokens.device.type != "cpu":
        return pruned
    count = int(draft.alive.sum(-1).max())
    tokens, parents, alive, fixed = (t[:, :count] for t in (draft.tokens, draft.parents, draft.alive, draft.fixed))
    shorter = replace(draft, tokens=tokens, parents=parents, alive=alive, fixed=fixed)
    return Pruned(shorter, pruned.scored[:, :count])


def _as_draft(pool: _Pool, root: Tensor, budget: Budget) -> Pruned:
    chosen = _chosen(pool, budget.nodes - 1)  # (B, N - 1)
    batch, count = chosen.shape
    ids = cached_arange(count + 1, root.device)[1:].expand(batch, -1)
    node_of = torch.zeros_like(pool.tokens).scatter_(1, chosen, ids)
    alive, above = pool.scores.gather(1, chosen) > -torch.inf, pool.parents.gather(1, chosen)
    parents = torch.where(alive & (above >= 0), node_of.gather(1, above.clamp_min(0)), 0)
    tokens, scored = pool.tokens.gather(1, chosen), pool.scored.gather(1, chosen)
    nothing = torch.zeros_like(root)[:, None]
    tokens, parents = torch.cat([root[:, None], tokens], 1), torch.cat([nothing, parents], 1)
    alive = torch.cat([nothing == 0, alive], 1)
    none = torch.zeros_like(alive)
    draft = Draft(tokens, parents, alive, none, None, "race", budget.depth, max(count, 1))
    return Pruned(draft, torch.cat([nothing, scored], 1))


def prune(root: Tensor, best_of: BestOf, budget: Budget) -> Pruned:
    """The best tree of `budget` for rows whose last committed tokens are `root` (B,).

    >>> law = torch.tensor([0.6, 0.3, 0.1]).log()
    >>> flat = lambda frontier, count: law.expand(*frontier.tokens.shape, 3).topk(min(count, 3))
    >>> tree = prune(torch.tensor([7]), flat, Budget(nodes=5, beam=2, depth=2)).draft
    >>> tree.tokens.tolist(), tree.parents.tolist()
    ([[7, 0, 1, 0, 1]], [[0, 0, 0, 1, 1]])
    """
    frontier = first_frontier(root)
    beam = _Beam(frontier, torch.full_like(frontier.tokens, -1), torch.zeros_like(frontier.tokens, dtype=torch.float32))
    pools, before = list[_Pool](), 0
    for depth in range(budget.depth):
        best = best_of(beam.frontier, budget.nodes - 1)
        if depth + 1 == budget.depth:
            pools.append(_children(beam, *best))
            break
        quick = _expand_by_kernel(beam, best, budget, before)
        beam, children = quick or _expand(beam, _children(beam, *best), budget, before)
        pools.append(children)
        before += children.tokens.shape[1]
    return _trimmed(_as_draft(_joined(pools), root, budget))
