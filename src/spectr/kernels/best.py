"""The most likely tokens after every node: softmax, noise and selection over a large vocabulary in few passes.

The k largest values are in the k blocks with the largest maxima. The first pass computes the maximum of every block,
the second picks blocks, and the last two pick and sort among the few thousand values that are left. The selection is
exact: the k-th largest value is found bit by bit, and of equal values the first are taken.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device
from spectr.kernels.noise import _absorb, _mix, _rough_gumbel

__all__ = ["best_chances", "can_pick"]

_BLOCK = 32  # values per block
_CHUNK = 1024
_MOST = 256  # tokens to pick


@triton.jit
def _key(values):
    """Return int32 keys in the order of the values, all above the smallest int32."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _picked(key, count):
    """Return a mask of the `count` largest keys."""
    least = tl.where(tl.sum((key >= 0).to(tl.int32), 0) >= count, 0, -2147483648)
    for bit in tl.static_range(30, -1, -1):
        tried = least + (1 << bit)
        enough = tl.sum((key >= tried).to(tl.int32), 0) >= count
        least = tl.where(enough, tried, least)
    above, equal = key > least, key == least
    missing = count - tl.sum(above.to(tl.int32), 0)
    return above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= missing))


@triton.jit
def _survey(
    logits, seed, position, score_scale, quiet, scores, largest, sums, vocabulary, nodes, blocks, stream,
    NOISY: tl.constexpr, QUIET: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the scores of one chunk, the maximum of each of its blocks, and the chunk's part of the softmax sum."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocabulary
    value = tl.load(logits + row * vocabulary + token, mask=inside, other=-float("inf")).to(tl.float32)
    if NOISY:
        noisy = True
        if QUIET:
            noisy = tl.load(quiet + row // nodes) == 0
        if noisy:
            state = _absorb(tl.cast(stream, tl.uint64), tl.load(seed + row // nodes).to(tl.uint64))
            state = _absorb(state, tl.load(position + row).to(tl.uint64))
            value += _rough_gumbel(_mix(state + token.to(tl.uint64) * 0x9E3779B97F4A7C15))
    value *= tl.load(score_scale + row // nodes)
    value = tl.where(value == value, tl.minimum(value, 3.0e38), -float("inf"))  # a drafter may overflow
    tl.store(scores + row * vocabulary + token, value, mask=inside)
    block = part * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK)
    most = tl.max(tl.reshape(value, [CHUNK // BLOCK, BLOCK]), 1)
    tl.store(largest + row * blocks + block, most, mask=block < blocks)
    leader = tl.maximum(tl.max(most, 0), -3.0e38)
    place = 2 * (row * tl.num_programs(1) + part)
    tl.store(sums + place, leader)
    tl.store(sums + place + 1, tl.sum(tl.exp(value - leader), 0))


@triton.jit
def _pick_blocks(largest, picked, blocks, count, WIDE: tl.constexpr):
    """Write the numbers of the blocks with the largest maxima, in order."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, WIDE)
    value = tl.load(largest + row * blocks + block, mask=block < blocks, other=-float("inf"))
    taken = _picked(tl.where(block < blocks, _key(value), -2147483648), count)
    tl.store(picked + row * count + tl.cumsum(taken.to(tl.int32), 0) - 1, block, mask=taken)


@triton.jit
def _pick_tokens(
    scores, picked, sums, chosen, vocabulary, count, parts,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Write the best tokens of the blocks, in the order of the vocabulary, and the logarithm of the softmax sum."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDE)
    block = tl.load(picked + row * count + at // BLOCK, mask=at // BLOCK < count, other=0)
    token = block * BLOCK + at % BLOCK
    inside = (at // BLOCK < count) & (token < vocabulary)
    value = tl.load(scores + row * vocabulary + token, mask=inside, other=-float("inf"))
    taken = _picked(tl.where(inside, _key(value), -2147483648), count)
    tl.store(chosen + row * (count + 1) + tl.cumsum(taken.to(tl.int32), 0) - 1, token.to(tl.int64), mask=taken)
    part = tl.arange(0, PARTS)
    place = 2 * (row * parts + part)
    leader = tl.load(sums + place, mask=part < parts, other=-3.0e38)
    most = tl.max(leader, 0)
    total = tl.sum(tl.load(sums + place + 1, mask=part < parts, other=0.0) * tl.exp(leader - most), 0)
    whole = (most + tl.log(tl.maximum(total, 1.0e-38))).to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64)
    tl.store(chosen + row * (count + 1) + count, whole)


@triton.jit
def _rank(scores, chosen, values, tokens, vocabulary, count, WIDE: tl.constexpr):
    """Write log-probabilities and tokens, best first."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDE)
    real = at < count
    token = tl.load(chosen + row * (count + 1) + at, mask=real, other=0)
    value = tl.load(scores + row * vocabulary + token, mask=real, other=-float("inf"))
    key = tl.where(real, _key(value), -2147483648)
    ahead = (key[None, :] > key[:, None]) | ((key[None, :] == key[:, None]) & (at[None, :] < at[:, None]))
    place = row * count + tl.sum(ahead.to(tl.int32), 1)
    whole = tl.load(chosen + row * (count + 1) + count).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(values + place, tl.where(value > -float("inf"), value - whole, value), mask=real)
    tl.store(tokens + place, token, mask=real)


def can_pick(vocabulary: int, count: int) -> bool:
    """Return whether `best_chances` supports these sizes."""
    return count <= min(_MOST, vocabulary // _BLOCK)


@on_own_device
def best_chances(
    logits: Tensor, place: tuple[Tensor, Tensor, int] | None, score_scale: Tensor, quiet: Tensor | None, count: int
) -> tuple[Tensor, Tensor]:
    """Return the `count` largest log-probabilities (B, M, count) of softmax((logits + noise) · score_scale), best
    first, and their tokens.

    `place` selects the noise of logits (B, M, V): seed (B,), position (B, M) and stream. Without it, and in rows that
    are `quiet` (B,) bool, no noise is added. `score_scale` is (B,) float32. Rows do not depend on each other.
    """
    logits, score_scale = logits.contiguous(), score_scale.contiguous()
    batch, nodes, vocabulary = logits.shape
    rows, blocks, parts = batch * nodes, triton.cdiv(vocabulary, _BLOCK), triton.cdiv(vocabulary, _CHUNK)
    float32 = partial(torch.empty, dtype=torch.float32, device=logits.device)
    int64 = partial(torch.empty, dtype=torch.int64, device=logits.device)
    scores, largest, sums = float32(rows, vocabulary), float32(rows, blocks), float32(rows, parts, 2)
    picked, chosen = int64(rows, count), int64(rows, count + 1)
    values, tokens = float32(batch, nodes, count), int64(batch, nodes, count)
    seed, position, stream = (logits, logits, 0) if place is None else (place[0], place[1].contiguous(), place[2])
    silent = logits if quiet is None else quiet.contiguous()
    wide = triton.next_power_of_2
    _survey[(rows, parts)](
        logits, seed, position, score_scale, silent, scores, largest, sums, vocabulary, nodes, blocks, stream,
        NOISY=place is not None, QUIET=quiet is not None, CHUNK=_CHUNK, BLOCK=_BLOCK,
    )  # fmt: skip
    _pick_blocks[(rows,)](largest, picked, blocks, count, WIDE=wide(blocks), num_warps=8)
    _pick_tokens[(rows,)](
        scores, picked, sums, chosen, vocabulary, count, parts,
        WIDE=wide(count * _BLOCK), BLOCK=_BLOCK, PARTS=wide(parts), num_warps=8,
    )  # fmt: skip
    _rank[(rows,)](scores, chosen, values, tokens, vocabulary, count, WIDE=max(16, wide(count)))
    return values, tokens
