"""Attention of a small tree over a long text: many short pieces of the text in parallel, whose results are then
combined.

A step has a few dozen queries for each group of heads. Kernels for long queries leave most of the chip idle with so
few, and need a copy of the mask for every head. Here one program handles one piece of the text for one group. The mask
is read without copies, and the output has the layout that the next product reads.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device

__all__ = ["blocks_per_program", "tree_attention"]

_PROGRAMS = 200  # programs to start in parallel
_LONG = 32  # blocks of keys; in longer texts the cost of combining pieces matters less
_PROGRAMS_LONG = 264
_MANY = 64  # queries of a head; with one row and no more than these, few slots behind its end would be read


class _Block(NamedTuple):
    """Sizes of what one program holds at a time."""

    queries: int  # upper bound
    keys: int
    stages: int


_BLOCKS = {128: _Block(64, 64, 3), 256: _Block(32, 32, 2)}
"""By the width of a head, upper bound: blocks that fit into the shared memory of every chip since 2020."""


@triton.jit
def _pieces(
    query, key, value, mask, ends, out, found, scale,
    heads, groups, count, length,
    query_row, query_head, query_token, key_row, key_head, key_slot, value_row, value_head, value_slot,
    mask_row, mask_token, mask_slot,
    WIDTH: tl.constexpr, KEY_WIDE: tl.constexpr, DEEP: tl.constexpr, VALUE_WIDE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, TURNS: tl.constexpr, WHOLE: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Attend with the queries of one group to one piece of the text; with WHOLE the piece is all of it, and the result
    is written to `out`. With ENDS each row is read up to its own end."""
    block, pair, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    at = block * QUERIES + tl.arange(0, QUERIES)
    real = at < groups * count
    own, token = head * groups + at // count, at % count
    wide, deep = tl.arange(0, KEY_WIDE), tl.arange(0, VALUE_WIDE)
    asked = tl.load(
        query + row * query_row + (own * query_head + token * query_token)[:, None] + wide[None, :],
        mask=real[:, None] & (wide < WIDTH)[None, :], other=0.0,
    )  # fmt: skip
    most = tl.full([QUERIES], -3.0e38, tl.float32)  # masked scores are lower and get weight zero
    total = tl.zeros([QUERIES], tl.float32)
    answer = tl.zeros([QUERIES, VALUE_WIDE], tl.float32)
    keys = key + row * key_row + head * key_head
    values = value + row * value_row + head * value_head
    masks = mask + row * mask_row
    turns = TURNS
    if ENDS:
        left = tl.load(ends + row).to(tl.int32) - piece * TURNS * KEYS
        turns = tl.minimum(TURNS, tl.maximum(0, tl.cdiv(left, KEYS)))
    for turn in range(turns):
        slot = (piece * TURNS + turn) * KEYS + tl.arange(0, KEYS)
        inside = slot < length
        held = tl.load(
            keys + (slot * key_slot)[None, :] + wide[:, None],
            mask=inside[None, :] & (wide < WIDTH)[:, None], other=0.0,
        )  # fmt: skip
        added = tl.load(
            masks + (token * mask_token)[:, None] + (slot * mask_slot)[None, :],
            mask=real[:, None] & inside[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        scores = tl.dot(asked, held, input_precision="ieee") * scale + added
        scores = tl.where(inside[None, :], scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(most - higher)
        given = tl.load(
            values + (slot * value_slot)[:, None] + deep[None, :],
            mask=inside[:, None] & (deep < DEEP)[None, :], other=0.0,
        )  # fmt: skip
        total = total * fade + tl.sum(weights, 1)
        answer = answer * fade[:, None] + tl.dot(weights.to(given.dtype), given, input_precision="ieee")
        most = higher
    queries = groups * count
    if WHOLE:
        place = ((row * count + token) * heads * groups + own) * DEEP
        tl.store(
            out + place[:, None] + deep[None, :], (answer / tl.maximum(total, 1e-30)[:, None]).to(out.dtype.element_ty),
            mask=real[:, None] & (deep < DEEP)[None, :],
        )  # fmt: skip
    else:
        place = ((piece * tl.num_programs(1) + pair).to(tl.int64) * queries + at) * (DEEP + 2)
        tl.store(found + place[:, None] + deep[None, :], answer, mask=real[:, None] & (deep < DEEP)[None, :])
        tl.store(found + place + DEEP, most, mask=real)
        tl.store(found + place + DEEP + 1, total, mask=real)


@triton.jit
def _join(
    found, out, heads, groups, count, pieces, pairs,
    DEEP: tl.constexpr, VALUE_WIDE: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Combine the pieces of one query, weighted by their softmax sums."""
    at, pair = tl.program_id(0), tl.program_id(1)
    row, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    piece, deep = tl.arange(0, PIECES), tl.arange(0, VALUE_WIDE)
    there, wide = piece < pieces, deep < DEEP
    place = ((piece * pairs + pair).to(tl.int64) * (groups * count) + at) * (DEEP + 2)
    part = tl.load(found + place[:, None] + deep[None, :], mask=there[:, None] & wide[None, :], other=0.0)
    most = tl.load(found + place + DEEP, mask=there, other=-float("inf"))
    total = tl.load(found + place + DEEP + 1, mask=there, other=0.0)
    rise = tl.exp(most - tl.max(most, 0))
    answer = tl.sum(part * rise[:, None], 0) / tl.maximum(tl.sum(total * rise, 0), 1e-30)
    own = head * groups + at // count
    tl.store(out + ((row * count + at % count) * heads * groups + own) * DEEP + deep, answer, mask=wide)


def blocks_per_program(programs: int, length: int, keys: int) -> int:
    """Return how many blocks of keys one program takes: all, so that nothing has to be combined, or so few that there
    are enough programs. The result is rounded so that few kernels are compiled: to four values per power of two, or to
    a power of two."""
    blocks = triton.cdiv(length, keys)
    pieces = (_PROGRAMS if blocks <= _LONG else _PROGRAMS_LONG) // programs
    if pieces <= 1:
        step = 1 << max(0, (blocks - 1).bit_length() - 3)
        return int(triton.cdiv(blocks, step) * step)
    return 1 << int(triton.cdiv(blocks, pieces)).bit_length() - 1


def _even(part: Tensor) -> Tensor:
    """Return the tensor with a stride of 1 in the last dimension."""
    return part if part.stride(-1) == 1 else part.contiguous()


@torch.library.custom_op("spectr::tree_attention", mutates_args=())
@on_own_device
def tree_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, ends: Tensor | None = None
) -> Tensor:
    """Return the attention (B, T, H, e) of queries (B, H, T, d) over keys (B, K, M, d) and values (B, K, M, e), which
    are shared by groups of heads, with an additive mask (B, 1, T, M). Heads are at most 256 wide. If `ends` (B,) is
    given, no query attends to the slots of its row from there on, and they are not read."""
    batch, every, count, width = query.shape
    heads, length, deep = key.shape[1], key.shape[2], value.shape[-1]
    out = query.new_empty(batch, count, every, deep)
    if 0 in (batch, count, length):
        return out.zero_()
    block = next(block for most, block in _BLOCKS.items() if max(width, deep) <= most)
    groups = every // heads
    queries = max(16, min(block.queries, triton.next_power_of_2(groups * count)))
    pairs, blocks = batch * heads, triton.cdiv(groups * count, queries)
    turns = blocks_per_program(pairs * blocks, length, block.keys)
    pieces = triton.cdiv(length, turns * block.keys)
    parts = (pieces, pairs, groups * count, deep + 2)
    found = out if pieces == 1 else torch.empty(parts, dtype=torch.float32, device=query.device)
    value_wide = max(16, triton.next_power_of_2(deep))
    query, key, value, mask = _even(query), _even(key), _even(value), mask.expand(batch, 1, count, length)
    cut = ends is not None and (batch > 1 or count > _MANY)
    _pieces[(blocks, pairs, pieces)](
        query, key, value, mask, ends if cut else mask, out, found, scale,
        heads, groups, count, length,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], mask.stride(0), *mask.stride()[2:],
        WIDTH=width, KEY_WIDE=max(16, triton.next_power_of_2(width)), DEEP=deep, VALUE_WIDE=value_wide,
        QUERIES=queries, KEYS=block.keys, TURNS=turns, WHOLE=pieces == 1, ENDS=cut,
        num_warps=4, num_stages=block.stages,
    )  # fmt: skip
    if pieces > 1:
        together = triton.next_power_of_2(pieces)
        _join[(groups * count, pairs)](
            found, out, heads, groups, count, pieces, pairs, DEEP=deep, VALUE_WIDE=value_wide, PIECES=together,
            num_warps=1 if together <= 16 else 4,
        )  # fmt: skip
    return out


@tree_attention.register_fake
def _(query: Tensor, _key: Tensor, value: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
