"""The draft of prompt lookup in one launch: one program searches the text of a row and writes its chains.

The text is searched from its end, a chunk at a time, so of equally long matches the later ones are found first. A place
has one number for its rank, longer matches first and later ones among equals, and the program keeps the best of them. A
place found later enters only if its match is longer than the shortest one kept, which is rare even in repetitive texts.
The loops end with the text, not with its buffer. They are `while` loops, because Triton's interpreter before 3.7 has no
`for` loops with a length of the data.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device

__all__ = ["Chains", "Search", "can_look_up", "draft_by_lookup"]

_CHUNK = 2048  # places compared at a time
_WARPS = 8
_DRAFTS, _DRAFTED, _LONGEST = 16, 128, 32  # limits of drafts, their tokens and matches: more would spill registers
_SLOTS = 1 << 25  # so that ranks are below 2^31
_NONE = tl.constexpr(-2147483648)  # the rank of a place without a match
_LARGEST = tl.constexpr(2147483647)


class Search(NamedTuple):
    """The settings of a search, as of `spectr.draft.lookup.Lookup`."""

    drafts: int
    length: int
    nodes: int
    shortest: int
    places: int  # places considered for all drafts together


class Chains(NamedTuple):
    """The N nodes of a draft of chains."""

    tokens: Tensor  # (B, N) int64
    parents: Tensor  # (B, N) int64
    alive: Tensor  # (B, N) bool
    fixed: Tensor  # (B, N) bool


@triton.jit
def _ranked(text, at, end, size, SHORTEST: tl.constexpr, LONGEST: tl.constexpr):
    """Return ranks of places: the length of the match before each, and among equals the place itself."""
    equal = (at < end).to(tl.int32)
    matched = tl.zeros_like(at)
    for back in tl.static_range(1, LONGEST + 1):
        last = tl.load(text + end - back, mask=end >= back, other=-1)
        before = tl.load(text + at - back, mask=(at >= back) & (at < end), other=-1)
        equal = tl.where((before == last) & (last >= 0), equal, 0)
        matched += equal
    return tl.where(matched >= SHORTEST, matched * size + at, _NONE)


@triton.jit
def _best_places(
    text, end, size,
    SHORTEST: tl.constexpr, LONGEST: tl.constexpr, PLACES: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return the largest ranks, in no order. Where there are fewer than PLACES the rest is negative; what is behind
    PLACES is larger than any rank. No two are equal."""
    slot = tl.arange(0, WIDE)
    best = tl.where(slot < PLACES, slot - PLACES, _LARGEST - slot)
    least = tl.min(best, 0)
    part = tl.cdiv(end, CHUNK)
    while (part > 0) & (least < LONGEST * size):  # earlier places rank below equally long matches
        part -= 1
        ranks = _ranked(text, part * CHUNK + tl.arange(0, CHUNK), end, size, SHORTEST, LONGEST)
        most = tl.max(ranks, 0)
        while most > least:
            best = tl.where(best == least, most, best)
            ranks = tl.where(ranks == most, _NONE, ranks)
            most = tl.max(ranks, 0)
            least = tl.min(best, 0)
    return best


@triton.jit
def _chosen(text, best, place, count, LENGTH: tl.constexpr):
    """Return whether no better place has the same continuation, and the index of a place among those of which this
    holds, best first. The other places follow them."""
    slot = tl.arange(0, best.shape[0])
    better = best[None, :] > best[:, None]
    covered = better
    for step in tl.static_range(LENGTH):
        token = tl.load(text + place + step, mask=step < count, other=-1)  # a shorter one differs where it ends
        covered = covered & ((token[None, :] == token[:, None]) | (step >= count)[:, None])
    fresh = (count > 0) & (tl.sum(covered.to(tl.int32), 1) == 0)
    is_fresh = fresh.to(tl.int32)
    ahead = tl.sum(tl.where(better, is_fresh[None, :], 0), 1)
    stale = tl.sum(tl.where(slot[None, :] < slot[:, None], 1 - is_fresh[None, :], 0), 1)
    return fresh, tl.where(fresh, ahead, tl.sum(is_fresh, 0) + stale)


@triton.jit(do_not_specialize=["stride", "size"])
def _look_up(
    texts, ends, roots, tokens, parents, alive, fixed, stride, size, drafts, nodes,
    SHORTEST: tl.constexpr, LENGTH: tl.constexpr, PLACES: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the draft of one row. Each place writes one chain; a place that is not drafted writes dead nodes."""
    row = tl.program_id(0).to(tl.int64)
    text = texts + row * stride
    end = tl.minimum(tl.load(ends + row), size).to(tl.int32)
    best = _best_places(text, end, size, SHORTEST, SHORTEST + LENGTH - 1, PLACES, WIDE, CHUNK)
    found = (best > 0) & (tl.arange(0, WIDE) < PLACES)
    place = tl.where(found, best % size, 0)
    count = tl.where(found, best // size - SHORTEST + 1, 0)
    for step in tl.static_range(LENGTH):
        inside = tl.load(text + place + step, mask=found & (place + step < end), other=-1) >= 0
        count = tl.where(inside, count, tl.minimum(count, step))
    fresh, chain = _chosen(text, best, place, count, LENGTH)
    first = row * nodes
    for step in tl.static_range(LENGTH):
        node = 1 + chain * LENGTH + step
        lives = fresh & (step < count)
        in_range = (chain < drafts) & (node < nodes)
        tl.store(tokens + first + node, tl.load(text + place + step, mask=lives, other=0), mask=in_range)
        tl.store(parents + first + node, tl.where(lives & (step > 0), node - 1, 0).to(tl.int64), mask=in_range)
        tl.store(alive + first + node, lives, mask=in_range)
        tl.store(fixed + first + node, lives, mask=in_range)
    tl.store(tokens + first, tl.load(roots + row))
    tl.store(parents + first, 0)
    tl.store(alive + first, True)
    tl.store(fixed + first, False)


def can_look_up(search: Search, size: int) -> bool:
    """Return whether `draft_by_lookup` supports these settings and texts of `size` slots."""
    longest = search.shortest + search.length - 1
    is_small = search.drafts <= _DRAFTS and search.drafts * search.length <= _DRAFTED and longest <= _LONGEST
    return is_small and size <= _SLOTS


@on_own_device
def draft_by_lookup(root: Tensor, texts: Tensor, end: Tensor, search: Search) -> Chains:
    """Draft the tokens that followed earlier occurrences of the last tokens of texts (B, M), which end before `end`
    (B,), below roots (B,): up to `search.drafts` chains of `search.length` tokens, cut to `search.nodes` nodes."""
    batch, size = texts.shape
    texts = texts if texts.stride(1) == 1 else texts.contiguous()
    drafts = min(search.drafts, size)
    nodes = min(search.nodes, 1 + drafts * search.length)
    tokens, parents = (torch.empty(batch, nodes, dtype=torch.int64, device=texts.device) for _ in range(2))
    alive, fixed = (torch.empty(batch, nodes, dtype=torch.bool, device=texts.device) for _ in range(2))
    _look_up[(batch,)](
        texts, end.contiguous(), root.contiguous(), tokens, parents, alive, fixed, texts.stride(0), size, drafts, nodes,
        SHORTEST=search.shortest, LENGTH=search.length, PLACES=search.places,
        WIDE=triton.next_power_of_2(search.places), CHUNK=_CHUNK, num_warps=_WARPS,
    )  # fmt: skip
    return Chains(tokens, parents, alive, fixed)
