"""Draws a token tree from draft laws with coins, one depth at a time.

No child is dropped after it was drawn, and the number of a node's children is decided from its draft law before any of
them is drawn. That keeps the coupling rules lossless on trees whose shape depends on data.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from spectr.coins import Purpose
from spectr.errors import ArgumentError
from spectr.rows import constant, pick_rows
from spectr.transport.hybrid import fixed_count
from spectr.transport.laws import without
from spectr.trees.shape import Shape
from spectr.types import Coins, Draft, Siblings

__all__ = ["ChildCounts", "Growth", "LawAt", "grow"]

LawAt = Callable[[Tensor, list[int]], Tensor]
"""Maps the tokens (B, N) drawn so far and node ids (M) to the draft laws (B, M, V) after those nodes. Called once for
each depth, for all its nodes that have children."""

ChildCounts = Callable[[Tensor], Tensor]
"""Maps draft laws (B, M, V) to the number of children of each node, (B, M); the shape's number is the maximum."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a tree is drawn: its shape, the kind of siblings, the number of children of a node, and for hybrid siblings
    how many of them are fixed."""

    shape: Shape
    siblings: Siblings = "iid"
    child_counts: ChildCounts | None = None  # None: the shape's numbers
    fixed: Callable[[Tensor, int], Tensor] = fixed_count  # (laws (B, M, V), most children) → (B, M)


@dataclass(frozen=True, slots=True)
class _Children:
    """The children of M nodes with C slots each."""

    tokens: Tensor  # (B, M, C)
    fixed: Tensor  # (B, M, C) bool
    exists: Tensor  # (B, M, C) bool: False beyond the support of the draft law


def _iid(law: Tensor, slots: Tensor, coins: Coins) -> _Children:
    tokens = torch.stack([coins.pick(law, node, Purpose.DRAFT) for node in slots.unbind(-1)], -1)
    return _Children(tokens, torch.zeros_like(tokens, dtype=torch.bool), torch.ones_like(tokens, dtype=torch.bool))


def _without_replacement(law: Tensor, slots: Tensor, coins: Coins) -> _Children:
    """Draw children in order, at most as many as the law's support has tokens."""
    tokens, exists = [], []
    for node in slots.unbind(-1):
        exists.append((law > 0).any(-1))
        tokens.append(coins.pick(law, node, Purpose.DRAFT))
        law = without(law, tokens[-1][..., None], torch.ones_like(tokens[-1][..., None], dtype=torch.bool))
    drawn = torch.stack(tokens, -1)
    return _Children(drawn, torch.zeros_like(drawn, dtype=torch.bool), torch.stack(exists, -1))


def _top(law: Tensor, count: int) -> Tensor:
    """Return the `count` likeliest tokens, best first, (B, M, count); padded with 0 beyond the vocabulary."""
    best = law.topk(min(count, law.shape[-1]), -1).indices
    return torch.nn.functional.pad(best, (0, count - best.shape[-1]))


def _fixed(law: Tensor, slots: Tensor) -> _Children:
    """Take the likeliest tokens, at most as many as the law's support has."""
    tokens = _top(law, slots.shape[-1])
    places = torch.arange(slots.shape[-1], device=law.device) < (law > 0).sum(-1, keepdim=True)
    return _Children(tokens, torch.ones_like(places), places)


def _hybrid(law: Tensor, slots: Tensor, pinned: Tensor, coins: Coins) -> _Children:
    """Take the `pinned` (B, M) likeliest tokens and draw the others from the rest of the law, if any mass is left."""
    best = _top(law, slots.shape[-1])
    flags = torch.arange(slots.shape[-1], device=law.device) < pinned[..., None]
    off = without(law, best, flags)
    drawn = _iid(off, slots, coins).tokens
    return _Children(torch.where(flags, best, drawn), flags, flags | (off > 0).any(-1, keepdim=True))


def _race(law: Tensor, slots: Tensor, depth: int, coins: Coins) -> _Children:
    """Take the first finishers of the race on the draft law at this depth."""
    count = slots.shape[-1]
    front = coins.top_racers(
        law.log(), torch.full_like(law[..., 0], depth, dtype=torch.int64), min(count, law.shape[-1])
    )
    tokens = torch.nn.functional.pad(front, (0, count - front.shape[-1]))
    places = torch.arange(count, device=law.device) < (law > 0).sum(-1, keepdim=True)
    return _Children(tokens, torch.zeros_like(places), places)


@dataclass(frozen=True, slots=True)
class _Group:
    """Nodes of one depth with the same number of children: their indices among the parents of that depth."""

    places: list[int]
    children: list[list[int]]


@dataclass(frozen=True, slots=True)
class _Level:
    """The nodes of one depth that have children."""

    depth: int
    nodes: list[int]
    paths: list[list[int]]  # from the root to each of them
    groups: list[_Group]
    fewest: int  # the smallest number of children


def _draw_siblings(law: Tensor, slots: Tensor, level: _Level, growth: Growth, coins: Coins) -> _Children:
    """Draw children in the node `slots` (B, M, C) from laws (B, M, V).

    The number of fixed ones depends on the law and the depth alone: copies of one prefix must agree on it, because a
    rule treats their children as one set.
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


@cache
def _levels(shape: Shape) -> list[_Level]:
    """Group the nodes that have children by depth, and within a depth by the number of children."""
    levels = []
    for depth, nodes in enumerate(shape.parents_by_depth):
        children = [[n for n, p in enumerate(shape.parents) if n and p == node] for node in nodes]
        sizes = sorted({len(kids) for kids in children})
        places = [[at for at, kids in enumerate(children) if len(kids) == size] for size in sizes]
        groups = [_Group(members, [children[at] for at in members]) for members in places]
        levels.append(_Level(depth, nodes, [shape.way(node) for node in nodes], groups, sizes[0]))
    return levels


def _as_drawn(law: Tensor) -> Tensor:
    """Return the law in float32 or better, divided by its float64 sum, so that the stored law is the one drawn from."""
    law = law.to(torch.promote_types(law.dtype, torch.float32))
    return (law / law.sum(-1, keepdim=True, dtype=torch.float64)).to(law.dtype)


def _of_first_copies(law: Tensor, words: Tensor) -> Tensor:
    """Give copies of one path of tokens the law of the first; laws are (B, M, V), paths are `words` (B, M, D).

    A model may return laws for copies that differ in the last bits, and a rule reads one law for all their children."""
    same = (words[:, :, None] == words[:, None]).all(-1)  # (B, M, M)
    return pick_rows(law, same.to(torch.int8).argmax(-1))


def _draw_children(drawn: Draft, law: Tensor, level: _Level, growth: Growth, coins: Coins) -> None:
    """Write tokens, alive and fixed of the children of one level into `drawn`; `law` (B, M, V) is that of its nodes."""
    batch, device = law.shape[0], law.device
    for group in level.groups:
        nodes = constant(tuple(level.nodes[place] for place in group.places), device)
        own = law if len(nodes) == law.shape[1] else law[:, constant(tuple(group.places), device)]
        slots = constant(tuple(map(tuple, group.children)), device)  # (M, C)
        children = _draw_siblings(own, slots.expand(batch, *slots.shape), level, growth, coins)
        exists = children.exists & drawn.alive[:, nodes][..., None]
        if growth.child_counts is not None:
            exists &= torch.arange(slots.shape[-1], device=device) < growth.child_counts(own)[..., None]
        places = slots.flatten()
        drawn.tokens[:, places] = children.tokens.flatten(1)
        drawn.alive[:, places], drawn.fixed[:, places] = exists.flatten(1), (exists & children.fixed).flatten(1)


def grow(root: Tensor, law_at: LawAt, growth: Growth, coins: Coins) -> Draft:
    """Draw a tree for rows whose last committed tokens are `root` (B,)."""
    shape = growth.shape
    if shape.depth == 0:
        raise ArgumentError("a tree must have at least one node below its root")
    tokens = root[:, None].repeat(1, len(shape.parents))
    none = torch.zeros_like(tokens, dtype=torch.bool)
    alive = none.clone()
    alive[:, 0] = True
    parents = constant(shape.parents, root.device).expand_as(tokens)
    draft = Draft(tokens, parents, alive, none, None, growth.siblings, shape.depth, shape.width)
    laws: Tensor | None = None
    for level in _levels(shape):
        law = _as_drawn(law_at(tokens, level.nodes))  # (B, M, V)
        if growth.siblings in ("iid", "hybrid") and len(level.nodes) > 1:
            law = _of_first_copies(law, tokens[:, constant(tuple(map(tuple, level.paths)), root.device)])
        laws = law.new_zeros(*tokens.shape, law.shape[-1]) if laws is None else laws
        laws[:, constant(tuple(level.nodes), root.device)] = law
        _draw_children(draft, law, level, growth, coins)
    return replace(draft, laws=laws)
