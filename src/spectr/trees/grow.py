"""Growing a token tree from draft laws, one depth at a time, with coins. Knows not where the laws come from.

What is drawn stays: no child is ever dropped after it was drawn, and how many children a node has is decided from its
draft law before any of them is. That is what keeps the coupling rules lossless on trees whose shape is data.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.coins import Purpose
from spectr.errors import ArgumentError
from spectr.transport.hybrid import fixed_count
from spectr.transport.laws import without
from spectr.trees.shape import Shape
from spectr.types import Coins, Draft, Siblings

__all__ = ["Census", "Growth", "LawAt", "grow"]

LawAt = Callable[[Tensor, list[int]], Tensor]
"""(tokens (B, N) so far, node ids (M)) → draft laws (B, M, V) of the tokens after those nodes."""

Census = Callable[[Tensor], Tensor]
"""Draft laws (B, M, V) → how many children each node gets, (B, M); the shape's own number is the most."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a tree is drawn: its shape, the sibling law, how many children a node gets, and for hybrids how many of
    them are fixed."""

    shape: Shape
    siblings: Siblings = "iid"
    census: Census | None = None  # None: as many as the shape has
    fixed: Callable[[Tensor, int], Tensor] = fixed_count  # (laws (B, M, V), most children) → (B, M)


@dataclass(frozen=True, slots=True)
class _Brood:
    """The children of M nodes with C places each."""

    tokens: Tensor  # (B, M, C)
    fixed: Tensor  # (B, M, C) bool
    born: Tensor  # (B, M, C) bool: a place the law can fill


def _iid(law: Tensor, slots: Tensor, coins: Coins) -> _Brood:
    tokens = torch.stack([coins.pick(law, node, Purpose.DRAFT) for node in slots.unbind(-1)], -1)
    return _Brood(tokens, torch.zeros_like(tokens, dtype=torch.bool), torch.ones_like(tokens, dtype=torch.bool))


def _without_replacement(law: Tensor, slots: Tensor, coins: Coins) -> _Brood:
    """In the order drawn; no more than the law's support."""
    tokens, born = [], []
    for node in slots.unbind(-1):
        born.append((law > 0).any(-1))
        tokens.append(coins.pick(law, node, Purpose.DRAFT))
        law = without(law, tokens[-1][..., None], torch.ones_like(tokens[-1][..., None], dtype=torch.bool))
    drawn = torch.stack(tokens, -1)
    return _Brood(drawn, torch.zeros_like(drawn, dtype=torch.bool), torch.stack(born, -1))


def _top(law: Tensor, count: int) -> Tensor:
    """The `count` likeliest tokens, best first, (B, M, count); padded with 0 beyond the vocabulary."""
    best = law.topk(min(count, law.shape[-1]), -1).indices
    return torch.nn.functional.pad(best, (0, count - best.shape[-1]))


def _fixed(law: Tensor, slots: Tensor) -> _Brood:
    """The likeliest tokens, no more than the law's support."""
    tokens = _top(law, slots.shape[-1])
    places = torch.arange(slots.shape[-1], device=law.device) < (law > 0).sum(-1, keepdim=True)
    return _Brood(tokens, torch.ones_like(places), places)


def _hybrid(law: Tensor, slots: Tensor, pinned: Tensor, coins: Coins) -> _Brood:
    """The `pinned` (B, M) likeliest, then draws off them; none of those where nothing is left to draw."""
    best = _top(law, slots.shape[-1])
    flags = torch.arange(slots.shape[-1], device=law.device) < pinned[..., None]
    off = without(law, best, flags)
    drawn = _iid(off, slots, coins).tokens
    return _Brood(torch.where(flags, best, drawn), flags, flags | (off > 0).any(-1, keepdim=True))


def _race(law: Tensor, slots: Tensor, depth: int, coins: Coins) -> _Brood:
    """The first of the race on the draft law at this depth."""
    count = slots.shape[-1]
    front = coins.front(law.log(), torch.full_like(law[..., 0], depth, dtype=torch.int64), min(count, law.shape[-1]))
    tokens = torch.nn.functional.pad(front, (0, count - front.shape[-1]))
    places = torch.arange(count, device=law.device) < (law > 0).sum(-1, keepdim=True)
    return _Brood(tokens, torch.zeros_like(places), places)


@dataclass(frozen=True, slots=True)
class _Level:
    """Nodes of one depth that have equally many children."""

    depth: int
    nodes: list[int]
    children: list[list[int]]
    fewest: int  # children of any node of this depth that has some


def _brood(law: Tensor, slots: Tensor, level: _Level, growth: Growth, coins: Coins) -> _Brood:
    """Children in the node `slots` (B, M, C) for laws (B, M, V).

    How many are fixed depends on the law and on the depth alone: copies of one prefix must agree on it, since their
    children are pooled.
    """
    match growth.siblings:
        case "iid":
            return _iid(law, slots, coins)
        case "without_replacement":
            return _without_replacement(law, slots, coins)
        case "fixed":
            return _fixed(law, slots)
        case "hybrid":
            return _hybrid(law, slots, growth.fixed(law, level.fewest), coins)
        case "race":
            return _race(law, slots, level.depth, coins)


def _levels(shape: Shape) -> list[_Level]:
    """The nodes that have children, by depth and by how many."""
    found = []
    for depth, nodes in enumerate(shape.levels):
        children = {node: [n for n, p in enumerate(shape.parents) if n and p == node] for node in nodes}
        sizes = sorted({len(kids) for kids in children.values() if kids})
        for size in sizes:
            members = [node for node in nodes if len(children[node]) == size]
            found.append(_Level(depth, members, [children[node] for node in members], sizes[0]))
    return found


def _as_drawn(law: Tensor) -> Tensor:
    """float32 or better, divided by its float64 sum: the law that is stored is the law that is drawn from."""
    law = law.to(torch.promote_types(law.dtype, torch.float32))
    return (law / law.sum(-1, keepdim=True, dtype=torch.float64)).to(law.dtype)


def grow(root: Tensor, law_at: LawAt, growth: Growth, coins: Coins) -> Draft:
    """A draft for rows whose last committed tokens are `root` (B,)."""
    shape, batch, device = growth.shape, root.shape[0], root.device
    if shape.depth == 0:
        raise ArgumentError("a tree must have at least one node below its root")
    tokens = root[:, None].repeat(1, len(shape.parents))
    fixed, alive = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
    alive[:, 0] = True
    laws: Tensor | None = None
    for level in _levels(shape):
        law, slots = (
            _as_drawn(law_at(tokens, level.nodes)),
            torch.tensor(level.children, device=device),
        )  # (B, M, V), (M, C)
        laws = law.new_zeros(batch, tokens.shape[1], law.shape[-1]) if laws is None else laws
        laws[:, level.nodes] = law
        brood = _brood(law, slots.expand(batch, *slots.shape), level, growth, coins)
        born = brood.born & alive[:, level.nodes][..., None]
        if growth.census is not None:
            born &= torch.arange(slots.shape[-1], device=device) < growth.census(law)[..., None]
        places = slots.flatten()
        tokens[:, places] = brood.tokens.flatten(1)
        alive[:, places], fixed[:, places] = born.flatten(1), (born & brood.fixed).flatten(1)
    parents = torch.tensor(shape.parents, device=device).expand_as(tokens)
    return Draft(tokens, parents, alive, fixed, laws, growth.siblings, shape.depth, shape.width)
