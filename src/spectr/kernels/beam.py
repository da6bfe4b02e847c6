"""One depth of a pruned tree in two passes: children are added to the pool of nodes, and the best become the next beam.

The children of a node are sorted, best first, so the best W of all are among the first W of each node. These are few,
and each of them counts how many are better.
"""

from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device

__all__ = ["BeamNodes", "Expansion", "can_expand", "expanded"]

_CHUNK = 32
_MOST = 1024  # candidates for the beam


class BeamNodes(NamedTuple):
    """The M nodes of a beam."""

    scores: Tensor  # (B, M) float32
    places: Tensor  # (B, M) indices in the pool
    ancestors: Tensor  # (B, M, S) bool
    paths: Tensor  # (B, M, depth)


class Expansion(NamedTuple):
    """The P children of a beam, and the W best of them, which are expanded next."""

    scores: Tensor  # (B, P)
    parents: Tensor  # (B, P) indices in the pool
    scored: Tensor  # (B, P) indices among the scored nodes, -1 if not scored
    tokens: Tensor  # (B, W)
    came: Tensor  # (B, W) index of the parent in the beam
    places: Tensor  # (B, W) indices in the pool
    best: Tensor  # (B, W) scores
    ancestors: Tensor  # (B, W, S + W)
    paths: Tensor  # (B, W, depth + 1)


@triton.jit
def _value(chances, above, row, node, child, nodes, count, real):
    """Return scores of children: log-probability plus the parent's score; −inf for NaN."""
    chance = tl.load(chances + row * nodes * count + child, mask=real, other=-float("inf"))
    chance = tl.where(chance == chance, tl.minimum(chance, 0.0), -float("inf"))
    return chance + tl.load(above + row * nodes + node, mask=real, other=0.0)


@triton.jit
def _place(
    chances, tokens, above, above_places, scores, parents, scored, chosen, came, places, best,
    nodes, count, few, beam, before, first,
    CHILDREN: tl.constexpr, CANDIDATES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write all children of one row, and the best of them."""
    row = tl.program_id(0).to(tl.int64)
    every = row * nodes * count
    child = tl.arange(0, CHILDREN)
    real = child < nodes * count
    node = child // count
    tl.store(scores + every + child, _value(chances, above, row, node, child, nodes, count, real), mask=real)
    tl.store(parents + every + child, tl.load(above_places + row * nodes + node, mask=real, other=0), mask=real)
    tl.store(scored + every + child, tl.full([CHILDREN], -1, tl.int64), mask=real & (child % count >= few))
    one = tl.arange(0, CANDIDATES)
    runs = one < nodes * few
    node, child = one // few, one // few * count + one % few
    value = _value(chances, above, row, node, child, nodes, count, runs)
    ahead = tl.zeros([CANDIDATES], tl.int32)
    for start in range(0, CANDIDATES, CHUNK):
        other = start + tl.arange(0, CHUNK)
        there = other < nodes * few
        theirs = _value(chances, above, row, other // few, other // few * count + other % few, nodes, count, there)
        first_of_equals = (theirs[None, :] == value[:, None]) & (other[None, :] < one[:, None])
        ahead += tl.sum((((theirs[None, :] > value[:, None]) | first_of_equals) & there[None, :]).to(tl.int32), 1)
    won = runs & (ahead < beam)
    tl.store(scored + every + child, tl.where(won, first + ahead, -1).to(tl.int64), mask=runs)
    at = row * beam + ahead
    tl.store(chosen + at, tl.load(tokens + every + child, mask=won, other=0), mask=won)
    tl.store(came + at, node.to(tl.int64), mask=won)
    tl.store(places + at, (before + child).to(tl.int64), mask=won)
    tl.store(best + at, value, mask=won)


@triton.jit
def _inherit(
    chosen, came, above_ancestors, above_paths, ancestors, paths, nodes, beam, first, depth,
    SEEN: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """Write ancestors and path of one node of the beam: its parent's and itself."""
    row, own = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = row * beam + own
    parent = row * nodes + tl.load(came + line)
    at = tl.arange(0, SEEN)
    seen = tl.load(above_ancestors + parent * first + at, mask=at < first, other=0) != 0
    tl.store(ancestors + line * (first + beam) + at, seen | (at == first + own), mask=at < first + beam)
    step = tl.arange(0, DEEP)
    way = tl.load(above_paths + parent * depth + step, mask=step < depth, other=0)
    tl.store(
        paths + line * (depth + 1) + step, tl.where(step == depth, tl.load(chosen + line), way), mask=step <= depth
    )


def can_expand(nodes: int, count: int, beam: int) -> bool:
    """Return whether `expanded` supports these sizes."""
    return nodes * min(count, beam) <= _MOST


@on_own_device
def expanded(above: BeamNodes, chances: Tensor, tokens: Tensor, beam: int, before: int) -> Expansion:
    """Expand a beam by children (B, M, C), sorted best first for each node, and pick the `beam` best of them. `before`
    is the number of nodes that are already in the pool."""
    batch, nodes, count = chances.shape
    first, depth = above.ancestors.shape[-1], above.paths.shape[-1]
    few = min(beam, count)
    int64 = partial(torch.empty, dtype=torch.int64, device=chances.device)
    float32 = partial(torch.empty, dtype=torch.float32, device=chances.device)
    made = Expansion(
        float32(batch, nodes * count), int64(batch, nodes * count), int64(batch, nodes * count),
        int64(batch, beam), int64(batch, beam), int64(batch, beam), float32(batch, beam),
        torch.empty(batch, beam, first + beam, dtype=torch.bool, device=chances.device), int64(batch, beam, depth + 1),
    )  # fmt: skip
    wide = triton.next_power_of_2
    _place[(batch,)](
        chances.contiguous(), tokens.contiguous(), above.scores.contiguous(), above.places.contiguous(), *made[:7],
        nodes, count, few, beam, before, first,
        CHILDREN=wide(nodes * count), CANDIDATES=max(_CHUNK, wide(nodes * few)), CHUNK=_CHUNK, num_warps=8,
    )  # fmt: skip
    _inherit[(batch, beam)](
        made.tokens, made.came, above.ancestors.contiguous(), above.paths.contiguous(), made.ancestors, made.paths,
        nodes, beam, first, depth, SEEN=wide(first + beam), DEEP=wide(depth + 1), num_warps=1,
    )  # fmt: skip
    return made
