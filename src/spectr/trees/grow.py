"""Growing a token tree from draft laws, one depth at a time, with coins. Knows not where the laws come from.

What is drawn stays: no child is ever dropped after it was drawn, and how many children a node has is decided from its
draft law before any of them is. That is what keeps the coupling rules lossless on trees whose shape is data.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.coins import Purpose
from spectr.errors import ArgumentError, MismatchError
from spectr.transport.laws import without
from spectr.trees.shape import Shape
from spectr.types import Coins, Draft, Siblings

__all__ = ["Growth", "fixed_count", "grow"]

LawAt = Callable[[Tensor, list[int]], Tensor]
"""(tokens (B, N) so far, node ids (M)) → draft laws (B, M, V) of the tokens after those nodes."""

Census = Callable[[Tensor], Tensor]
"""Draft laws (B, M, V) → how many children each node gets, (B, M), at most what the shape has room for."""


def fixed_count(law: Tensor, k: int) -> Tensor:
    """How many of k drafts to fix at the top of a draft law (…, V), from that law alone: (…) int64.

    A token that the remaining draws would be expected to repeat is better drafted once and for all: fix the top token
    while (draws left) × (its probability off the fixed ones) exceeds 2, and keep at least one draw.

    >>> fixed_count(torch.tensor([[0.7, 0.2, 0.1], [0.34, 0.33, 0.33]]), 4).tolist()
    [1, 0]
    """
    top = law.topk(min(k, law.shape[-1]), -1).values.to(torch.float64)
    before = top.cumsum(-1) - top
    draws = k - torch.arange(top.shape[-1], device=law.device)
    worth = (draws * top > 2.0 * (1 - before)) & (draws > 1)
    return worth.to(torch.int64).cumprod(-1).sum(-1)


@dataclass(frozen=True, slots=True)
class Growth:
    """How to draw children: their sibling law, how many a node gets, and for hybrids how many of them are fixed."""

    shape: Shape
    siblings: Siblings = "iid"
    census: Census | None = None  # None: as many as the shape has
    fixed: Callable[[Tensor, int], Tensor] = fixed_count  # (law, most children) → (B, M)

    def __post_init__(self) -> None:
        if self.siblings == "race":
            raise MismatchError(
                "siblings 'race' are drawn by shared noise, not by coins; grow them with a race drafter"
            )


def _draw_children(law: Tensor, slots: Tensor, growth: Growth, coins: Coins) -> tuple[Tensor, Tensor]:
    """Tokens and fixed flags (B, M, C) of the children in node `slots` (M, C), given their parents' laws (B, M, V)."""
    batch, count = law.shape[0], slots.shape[1]
    pinned = _fixed_children(law, count, growth)  # (B, M): the first so many children are the top of the law
    ranked = law.topk(min(count, law.shape[-1]), -1).indices
    ranked = torch.nn.functional.pad(ranked, (0, count - ranked.shape[-1]))
    flags = torch.arange(count, device=law.device) < pinned[..., None]  # (B, M, C)
    off = without(law, ranked, flags) if growth.siblings == "hybrid" else law
    tokens = []
    for child in range(count):
        node = slots[:, child].expand(batch, -1)
        drawn = coins.pick(off, node, Purpose.DRAFT) if growth.siblings != "fixed" else ranked[..., child]
        tokens.append(torch.where(flags[..., child], ranked[..., child], drawn))
        if growth.siblings == "without_replacement":
            off = without(off, tokens[-1][..., None], torch.ones_like(tokens[-1][..., None], dtype=torch.bool))
    return torch.stack(tokens, -1), flags


def _fixed_children(law: Tensor, count: int, growth: Growth) -> Tensor:
    if growth.siblings == "fixed":
        return torch.full(law.shape[:-1], min(count, law.shape[-1]), device=law.device)
    if growth.siblings == "hybrid":
        return growth.fixed(law, count)
    return torch.zeros(law.shape[:-1], dtype=torch.int64, device=law.device)


def _possible(law: Tensor, flags: Tensor, growth: Growth) -> Tensor:
    """How many children a law can feed (B, M): without replacement no more than its support; off a fixed set that
    holds all its mass none but the fixed ones."""
    support = (law > 0).sum(-1)
    if growth.siblings in ("without_replacement", "fixed"):
        return support
    pinned = flags.sum(-1)
    return torch.where((growth.siblings == "hybrid") & (support <= pinned), pinned, flags.shape[-1])


def grow(root: Tensor, law_at: LawAt, growth: Growth, coins: Coins) -> Draft:
    """A draft for rows whose last committed tokens are `root` (B,)."""
    shape, batch = growth.shape, root.shape[0]
    nodes, device = len(shape.parents), root.device
    parents = torch.tensor(shape.parents, device=device).expand(batch, nodes)
    tokens, fixed = root[:, None].repeat(1, nodes), torch.zeros(batch, nodes, dtype=torch.bool, device=device)
    alive, laws = torch.zeros_like(fixed), None
    alive[:, 0] = True
    for level in shape.levels:
        families = _families(shape, level)
        for group in sorted({len(kids) for kids in families.values() if kids}):
            members = [node for node in level if len(families[node]) == group]
            slots = torch.tensor([families[node] for node in members], device=device)  # (M, C)
            law = law_at(tokens, members)  # (B, M, V)
            drawn, flags = _draw_children(law, slots, growth, coins)
            room = _possible(law, flags, growth)
            wanted = room if growth.census is None else torch.minimum(growth.census(law), room)
            born = alive[:, members][..., None] & (torch.arange(group, device=device) < wanted[..., None])
            flat = slots.flatten()
            tokens[:, flat], fixed[:, flat], alive[:, flat] = (x.flatten(1) for x in (drawn, flags & born, born))
            laws = law.new_zeros(batch, nodes, law.shape[-1]) if laws is None else laws
            laws[:, members] = law
    if laws is None:
        raise ArgumentError("a tree must have at least one node below its root")
    return Draft(tokens, parents, alive, fixed, laws, growth.siblings, shape.depth, shape.width)


def _families(shape: Shape, level: list[int]) -> dict[int, list[int]]:
    return {node: [n for n, p in enumerate(shape.parents) if p == node and n] for node in level}
