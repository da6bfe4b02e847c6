"""The optimal selection in three kernels: a histogram, the level tables of a row, the chances of its drafts.

Rows with at most one live draft need none of it and are left at once, so the cost follows the nodes that branch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["optimal_selection"]

_CHUNK = 2048


@triton.jit
def _class(owed, given, lowest, width, BINS: tl.constexpr):
    """The class of a token, as `transport.optimal.Bins.of` has it."""
    ratio = tl.where(given > 0, owed / tl.where(given > 0, given, 1.0), float("inf"))
    place = (tl.log(ratio) - lowest) / width + 1.0
    return tl.minimum(tl.maximum(place, 0.0), BINS - 1.0).to(tl.int64)


@triton.jit
def _histogram(target, draft, count, masses, vocabulary, lowest, width, BINS: tl.constexpr, CHUNK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(count + row) < 2:
        return
    token = part * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocabulary
    owed = tl.load(target + row * vocabulary + token, mask=inside, other=0.0).to(tl.float64)
    given = tl.load(draft + row * vocabulary + token, mask=inside, other=0.0).to(tl.float64)
    place = _class(owed, given, lowest, width, BINS)
    base = masses + row * (2 * BINS + 1)
    tl.atomic_add(base + place, owed, mask=inside & (given > 0))
    tl.atomic_add(base + BINS + place, given, mask=inside & (given > 0))
    tl.atomic_add(base + 2 * BINS, tl.sum(tl.where(given > 0, 0.0, owed), 0))


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _tables(masses, count, tables, MOST: tl.constexpr, BINS: tl.constexpr):
    """value, mean, up, down and the mean over the draft law's sum, BINS each."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BINS)
    k = tl.load(count + row).to(tl.int32)
    out = tables + row * 5 * BINS + place
    if k < 2:
        tl.store(out + 4 * BINS, tl.zeros([BINS], tl.float64) + k.to(tl.float64))
        return
    base = masses + row * (2 * BINS + 1)
    owed = tl.load(base + place)
    given = tl.load(base + BINS + place)
    total = tl.sum(given, 0)
    given = given / total
    upper = tl.minimum(tl.associative_scan(given, 0, _add), 1.0)
    lower = tl.maximum(upper - given, 0.0)
    value = tl.zeros([BINS], tl.float64) + 1.0
    power = tl.zeros([BINS], tl.float64) + 1.0
    for turn in range(1, MOST):
        power = tl.where(turn < k, power * upper, power)
        value = tl.where(turn < k, value * lower + power, value)
    power = power * upper  # upper^k
    under = tl.associative_scan(owed, 0, _add)
    loss = tl.maximum(tl.max(power - under, 0), 0.0)
    tail = tl.associative_scan(given, 0, _add, reverse=True)
    tail_owed = tl.associative_scan(owed, 0, _add, reverse=True) + tl.load(base + 2 * BINS)
    low = tl.min(tl.where(upper > 1e-12, (loss + under) / tl.maximum(upper, 1e-12), float("inf")), 0)
    high = tl.max(tl.where(tail > 1e-12, (tail_owed - loss) / tl.maximum(tail, 1e-12), 0.0), 0)
    high = tl.minimum(tl.maximum(high, low), k.to(tl.float64))
    held = given > 0
    mean = tl.minimum(tl.maximum(owed / tl.where(held, given, 1.0), low), high)
    mean = tl.where(held, mean, value)
    off = tl.abs(tl.sum(given * mean, 0) - 1.0)
    mean = tl.where(off > 1e-9, value, tl.where(tl.abs(mean - value) < 1e-13 * value, value, mean))
    surplus = given * (mean - value)
    tl.store(out, value)
    tl.store(out + BINS, mean)
    tl.store(out + 2 * BINS, tl.associative_scan(tl.maximum(surplus, 0.0), 0, _add))
    tl.store(out + 3 * BINS, tl.associative_scan(tl.maximum(-surplus, 0.0), 0, _add))
    tl.store(out + 4 * BINS, mean / total)


@triton.jit
def _level_law(table, own, BINS: tl.constexpr):
    """Law of the level of a draft of class `own`, over all levels."""
    place = tl.arange(0, BINS)
    value, mean = tl.load(table + own), tl.load(table + BINS + own)
    rises = mean > value
    mine = table + tl.where(rises, 2, 3) * BINS
    theirs = table + tl.where(rises, 3, 2) * BINS
    end = tl.load(mine + own)
    start = tl.load(mine + own - 1, mask=own > 0, other=0.0)
    partner = tl.load(theirs + place)
    before = tl.load(theirs + place - 1, mask=place > 0, other=0.0)
    shared = tl.maximum(tl.minimum(end, partner) - tl.maximum(start, before), 0.0)
    gap = tl.load(table + place) - value
    swap = tl.where(gap != 0, (mean - value) / tl.where(gap != 0, gap, 1.0), 0.0)
    law = shared * tl.minimum(tl.maximum(swap, 0.0), 1.0) / tl.where(end > start, end - start, 1.0)
    stay = tl.maximum(1.0 - tl.sum(law, 0), 0.0)
    return law + tl.where(place == own, stay, 0.0)


@triton.jit
def _own(target, draft, token, lowest, width, BINS: tl.constexpr):
    owed, given = tl.load(target + token).to(tl.float64), tl.load(draft + token).to(tl.float64)
    return _class(owed, given, lowest, width, BINS)


@triton.jit
def _chances(
    target, draft, tokens, live, count, tables, scratch, chance, vocabulary, lowest, width,
    K: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Chance of each draft to sit highest, first of equals; `later` products wait in scratch (K, BINS)."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, BINS)
    if tl.load(count + row) < 2:
        for draft_slot in range(K):
            at = row * K + draft_slot
            tl.store(chance + at, tl.load(live + at).to(tl.float64))
        return
    table = tables + row * 5 * BINS
    owed, given = target + row * vocabulary, draft + row * vocabulary
    later = tl.zeros([BINS], tl.float64) + 1.0
    for turn in range(K):
        at = row * K + (K - 1 - turn)
        tl.store(scratch + at * BINS + slot, later)
        if tl.load(live + at) != 0:
            law = _level_law(table, _own(owed, given, tl.load(tokens + at), lowest, width, BINS), BINS)
            later *= tl.associative_scan(law, 0, _add)
    earlier = tl.zeros([BINS], tl.float64) + 1.0
    for draft_slot in range(K):
        at = row * K + draft_slot
        if tl.load(live + at) != 0:
            law = _level_law(table, _own(owed, given, tl.load(tokens + at), lowest, width, BINS), BINS)
            tl.store(chance + at, tl.sum(law * earlier * tl.load(scratch + at * BINS + slot), 0))
            earlier *= tl.associative_scan(law, 0, _add) - law
        else:
            tl.store(chance + at, tl.cast(0.0, tl.float64))


def optimal_selection(
    laws: tuple[Tensor, Tensor], tokens: Tensor, live: Tensor, bins: int, lowest: float, width: float
) -> tuple[Tensor, Tensor]:
    """(chance (…, k), mean of each class over the draft law's sum (…, bins)), float64, for laws (target, draft)
    float32 (…, V); `bins` is a power of two."""
    lead, k = tokens.shape[:-1], tokens.shape[-1]
    target, draft = (law.reshape(-1, law.shape[-1]).contiguous() for law in laws)
    ids, on = tokens.reshape(-1, k).contiguous(), live.reshape(-1, k).to(torch.int32)
    count, device = on.sum(-1), tokens.device
    rows, vocabulary = target.shape
    masses = torch.zeros(rows, 2 * bins + 1, dtype=torch.float64, device=device)
    tables = torch.empty(rows, 5, bins, dtype=torch.float64, device=device)
    scratch = torch.empty(rows, k, bins, dtype=torch.float64, device=device)
    chance = torch.empty(rows, k, dtype=torch.float64, device=device)
    grid = (rows, triton.cdiv(vocabulary, _CHUNK))
    _histogram[grid](target, draft, count, masses, vocabulary, lowest, width, BINS=bins, CHUNK=_CHUNK, num_warps=8)
    _tables[(rows,)](masses, count, tables, MOST=k, BINS=bins, num_warps=16)
    _chances[(rows,)](
        target, draft, ids, on, count, tables, scratch, chance, vocabulary, lowest, width, K=k, BINS=bins, num_warps=16
    )
    return chance.view(*lead, k), tables[:, 4].view(*lead, bins)
