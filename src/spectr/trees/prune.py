"""Draws the race's tree: the N nodes most likely to win, given the shared noise.

Every child has a score, the log-probability that it wins given noise and draft law; scores add up along a path. The
best few nodes of each depth are expanded, and the best N of all candidate children are kept. Only the race allows this:
its text never depends on the draft, so a tree may be pruned by any known quantity.
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
"""Maps a frontier and a number C to the log-probabilities (B, M, C) of the likeliest C tokens after its nodes, best
first, and the tokens; C is smaller if there are fewer tokens."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The size of a pruned tree, and the width of the beam that searches it."""

    nodes: int = 17  # nodes of the tree, the root included
    beam: int = 4  # nodes expanded at each depth
    depth: int = 4

    def __post_init__(self) -> None:
        for name, least in (("nodes", 2), ("beam", 1), ("depth", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name} of a pruned tree must be at least {least}, got {getattr(self, name)}")

    @property
    def scored(self) -> int:
        """The number of nodes that the drafter scores, the root included."""
        return 1 + self.beam * (self.depth - 1)


@dataclass(frozen=True, slots=True)
class Pruned:
    """A draft, and the index of each node among the scored ones (B, N), -1 if it was not scored."""

    draft: Draft
    scored: Tensor


@dataclass(frozen=True, slots=True)
class _Candidates:
    """All P candidate children; a parent precedes its children."""

    tokens: Tensor  # (B, P) int64
    parents: Tensor  # (B, P) int64: the index of its parent among the candidates, -1 for the root
    scores: Tensor  # (B, P): score of the path down to it
    scored: Tensor  # (B, P) int64: its index among the scored nodes, -1 if it was not expanded


def _concatenate(parts: Sequence[_Candidates]) -> _Candidates:
    """Concatenate the candidates of all depths."""
    return _Candidates(
        *(torch.cat([getattr(candidates, name) for candidates in parts], 1) for name in _Candidates.__slots__)
    )


@dataclass(frozen=True, slots=True)
class _Beam:
    """The nodes of one depth that are expanded."""

    frontier: Frontier
    places: Tensor  # (B, M): their indices among the candidates, -1 for the root
    scores: Tensor  # (B, M): scores of the paths down to them


def _children(beam: _Beam, chances: Tensor, tokens: Tensor) -> _Candidates:
    """Return the children (B, M, C) of every node of the beam; a NaN log-probability counts as -inf."""
    chances = chances.float().nan_to_num(-torch.inf, 0.0, -torch.inf).clamp_max(0)
    scores = (chances + beam.scores[..., None]).flatten(1)
    parents = beam.places[..., None].expand_as(tokens).flatten(1)
    return _Candidates(tokens.flatten(1), parents, scores, torch.full_like(parents, -1))


def _expand(beam: _Beam, children: _Candidates, budget: Budget, before: int) -> tuple[_Beam, _Candidates]:
    """Return the beam of the next depth, and the children with the indices under which it scores them.

    `before` is the number of candidates at the depths above."""
    batch, each = beam.scores.shape[0], children.tokens.shape[1] // beam.scores.shape[1]
    best = children.scores.topk(min(budget.beam, children.tokens.shape[1]), -1)
    tokens = children.tokens.gather(1, best.indices)
    first = beam.frontier.ancestors.shape[-1]
    order = cached_arange(first + tokens.shape[1], tokens.device)[first:].expand(batch, -1)
    marked = _Candidates(
        children.tokens, children.parents, children.scores, children.scored.scatter(1, best.indices, order)
    )
    frontier = next_frontier(beam.frontier, best.indices // each, tokens)
    return _Beam(frontier, best.indices + before, best.values), marked


def _expand_by_kernel(
    beam: _Beam, best: tuple[Tensor, Tensor], budget: Budget, before: int
) -> tuple[_Beam, _Candidates] | None:
    """Compute the children and the next beam with one kernel; return None if no kernel can."""
    chances, tokens = best
    count = min(budget.beam, tokens.shape[1] * tokens.shape[2])
    if not usable(chances):
        return None
    from spectr.kernels.beam import BeamNodes, can_expand, expanded

    if not can_expand(tokens.shape[1], tokens.shape[2], count):
        notice(f"a beam of {count} nodes is too wide for the tree kernel; trees are pruned without it, which is slower")
        return None
    old = beam.frontier
    expansion = expanded(BeamNodes(beam.scores, beam.places, old.ancestors, old.paths), chances, tokens, count, before)
    above = expansion.came + (old.ancestors.shape[-1] - old.tokens.shape[1])
    frontier = Frontier(old.depth + 1, expansion.tokens, expansion.paths, expansion.ancestors, above)
    children = _Candidates(tokens.flatten(1), expansion.parents, expansion.scores, expansion.scored)
    return _Beam(frontier, expansion.places, expansion.best), children


def _best_candidates(candidates: _Candidates, count: int) -> Tensor:
    """Return the indices of the best `count` children, parents first, impossible ones last; (B, count).

    A child never scores above its parent, and the sort is stable, so the parent of a chosen child is chosen too."""
    best = candidates.scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    impossible = candidates.scores.gather(1, best) == -torch.inf
    return (best + impossible * candidates.scores.shape[1]).sort(-1).values % candidates.scores.shape[1]


def _trim(pruned: Pruned) -> Pruned:
    """Remove columns that are dead in every row; only on a CPU, where reading the mask needs no synchronisation."""
    draft = pruned.draft
    if draft.tokens.device.type != "cpu":
        return pruned
    count = int(draft.alive.sum(-1).max())
    tokens, parents, alive, fixed = (t[:, :count] for t in (draft.tokens, draft.parents, draft.alive, draft.fixed))
    shorter = replace(draft, tokens=tokens, parents=parents, alive=alive, fixed=fixed)
    return Pruned(shorter, pruned.scored[:, :count])


def _as_draft(candidates: _Candidates, root: Tensor, budget: Budget) -> Pruned:
    chosen = _best_candidates(candidates, budget.nodes - 1)  # (B, N - 1)
    batch, count = chosen.shape
    ids = cached_arange(count + 1, root.device)[1:].expand(batch, -1)
    node_of = torch.zeros_like(candidates.tokens).scatter_(1, chosen, ids)
    alive, above = candidates.scores.gather(1, chosen) > -torch.inf, candidates.parents.gather(1, chosen)
    parents = torch.where(alive & (above >= 0), node_of.gather(1, above.clamp_min(0)), 0)
    tokens, scored = candidates.tokens.gather(1, chosen), candidates.scored.gather(1, chosen)
    nothing = torch.zeros_like(root)[:, None]
    tokens, parents = torch.cat([root[:, None], tokens], 1), torch.cat([nothing, parents], 1)
    alive = torch.cat([nothing == 0, alive], 1)
    none = torch.zeros_like(alive)
    draft = Draft(tokens, parents, alive, none, None, "race", budget.depth, max(count, 1))
    return Pruned(draft, torch.cat([nothing, scored], 1))


def prune(root: Tensor, best_of: BestOf, budget: Budget) -> Pruned:
    """Return the best tree of `budget` for rows whose last committed tokens are `root` (B,).

    >>> law = torch.tensor([0.6, 0.3, 0.1]).log()
    >>> flat = lambda frontier, count: law.expand(*frontier.tokens.shape, 3).topk(min(count, 3))
    >>> tree = prune(torch.tensor([7]), flat, Budget(nodes=5, beam=2, depth=2)).draft
    >>> tree.tokens.tolist(), tree.parents.tolist()
    ([[7, 0, 1, 0, 1]], [[0, 0, 0, 1, 1]])
    """
    frontier = first_frontier(root)
    beam = _Beam(frontier, torch.full_like(frontier.tokens, -1), torch.zeros_like(frontier.tokens, dtype=torch.float32))
    parts, before = list[_Candidates](), 0
    for depth in range(budget.depth):
        best = best_of(beam.frontier, budget.nodes - 1)
        if depth + 1 == budget.depth:
            parts.append(_children(beam, *best))
            break
        quick = _expand_by_kernel(beam, best, budget, before)
        beam, children = quick or _expand(beam, _children(beam, *best), budget, before)
        parts.append(children)
        before += children.tokens.shape[1]
    return _trim(_as_draft(_concatenate(parts), root, budget))
