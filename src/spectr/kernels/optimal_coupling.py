"""Kernels for the optimal selection: a histogram, the level tables of a row, level distributions and chances of drafts.

Programs of rows with at most one live draft return at once, so the cost depends on the nodes that branch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device

__all__ = ["class_law", "optimal_selection"]

_CHUNK = 512  # small, because few rows branch and these should fill the chip


@triton.jit
def _class(owed, given, lowest: tl.constexpr, width: tl.constexpr, BINS: tl.constexpr):
    """Return the class of a token, as `transport.optimal.Bins.of` defines it. The borders are constants, because a
    plain argument would be rounded to float32 and move them."""
    ratio = tl.where(given > 0, owed / tl.where(given > 0, given, 1.0), float("inf"))
    place = (tl.log(ratio) - lowest) / width + 1.0
    return tl.minimum(tl.maximum(place, 0.0), BINS - 1.0).to(tl.int64)


@triton.jit
def _histogram(
    target,
    draft,
    count,
    masses,
    vocabulary,
    lowest: tl.constexpr,
    width: tl.constexpr,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
):
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
def _class_law(
    target, draft, mean, out, vocabulary,
    lowest: tl.constexpr, width: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocabulary
    owed = tl.load(target + row * vocabulary + token, mask=inside, other=0.0).to(tl.float64)
    given = tl.load(draft + row * vocabulary + token, mask=inside, other=0.0).to(tl.float64)
    scale = tl.load(mean + row * BINS + _class(owed, given, lowest, width, BINS), mask=inside, other=0.0)
    tl.store(out + row * vocabulary + token, (given * scale).to(tl.float32), mask=inside)


@on_own_device
def class_law(target: Tensor, draft: Tensor, mean: Tensor, lowest: float, width: float) -> Tensor:
    """Return draft × mean of the class, float32 (…, V), for means (…, bins): `transport.optimal.Bins.law` in one
    pass."""
    vocabulary, bins = target.shape[-1], mean.shape[-1]
    rows = [x.reshape(-1, x.shape[-1]).contiguous() for x in (target, draft, mean)]
    out = torch.empty_like(rows[0])
    grid = (len(out), triton.cdiv(vocabulary, _CHUNK))
    _class_law[grid](*rows, out, vocabulary, lowest, width, BINS=bins, CHUNK=_CHUNK)
    return out.view(target.shape)


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _tables(masses, count, tables, MOST: tl.constexpr, BINS: tl.constexpr):
    """Write value, mean, up, down, and the mean divided by the sum of the draft's distribution, BINS entries each."""
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
    undrafted = tl.load(base + 2 * BINS)
    all_owed = tl.sum(owed, 0) + undrafted
    owed, undrafted = owed / all_owed, undrafted / all_owed
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
    tail_owed = tl.associative_scan(owed, 0, _add, reverse=True) + undrafted
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
    """Return the distribution over all levels of a draft of class `own`."""
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
def _laws(
    target, draft, tokens, live, count, tables, laws, vocabulary, lowest: tl.constexpr, width: tl.constexpr,
    K: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Write the level distribution of one draft and its running sum, (2, BINS)."""
    row, draft_slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = row * K + draft_slot
    if tl.load(count + row) < 2:
        return
    if tl.load(live + at) == 0:
        return
    token = row * vocabulary + tl.load(tokens + at)
    owed, given = tl.load(target + token).to(tl.float64), tl.load(draft + token).to(tl.float64)
    law = _level_law(tables + row * 5 * BINS, _class(owed, given, lowest, width, BINS), BINS)
    out = laws + at * 2 * BINS + tl.arange(0, BINS)
    tl.store(out, law)
    tl.store(out + BINS, tl.associative_scan(law, 0, _add))


@triton.jit
def _chances(live, count, laws, chance, K: tl.constexpr, BINS: tl.constexpr, PART: tl.constexpr):
    """Add the part of some levels to the probability that each draft has the highest level; ties go to the first."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(count + row) < 2:
        if part == 0:
            for draft_slot in range(K):
                tl.store(chance + row * K + draft_slot, tl.load(live + row * K + draft_slot).to(tl.float64))
        return
    place = part * PART + tl.arange(0, PART)
    for draft_slot in range(K):
        at = row * K + draft_slot
        if tl.load(live + at) != 0:
            alone = tl.load(laws + at * 2 * BINS + place)
            for other in range(K):
                rival = row * K + other
                if (other != draft_slot) & (tl.load(live + rival) != 0):
                    reach = tl.load(laws + rival * 2 * BINS + BINS + place)
                    below = reach - tl.load(laws + rival * 2 * BINS + place)
                    alone *= tl.where(other < draft_slot, below, reach)
            tl.atomic_add(chance + at, tl.sum(alone, 0))


@on_own_device
def optimal_selection(
    laws: tuple[Tensor, Tensor], tokens: Tensor, live: Tensor, bins: int, lowest: float, width: float
) -> tuple[Tensor, Tensor]:
    """Return the chance of each draft (…, k), and the mean of each class divided by the sum of the draft's distribution
    (…, bins), both float64. `laws` are the target's and the draft's distributions, float32 (…, V); `bins` is a power of
    two."""
    lead, k = tokens.shape[:-1], tokens.shape[-1]
    target, draft = (law.reshape(-1, law.shape[-1]).contiguous() for law in laws)
    ids, on = tokens.reshape(-1, k).contiguous(), live.reshape(-1, k).to(torch.int32)
    count, (rows, vocabulary) = on.sum(-1), target.shape
    masses = torch.zeros(rows, 2 * bins + 1, dtype=torch.float64, device=tokens.device)
    chance = torch.zeros(rows, k, dtype=torch.float64, device=tokens.device)
    tables = torch.empty(rows, 5, bins, dtype=torch.float64, device=tokens.device)
    level_laws = torch.empty(rows, k, 2, bins, dtype=torch.float64, device=tokens.device)
    grid = (rows, triton.cdiv(vocabulary, _CHUNK))
    _histogram[grid](target, draft, count, masses, vocabulary, lowest, width, BINS=bins, CHUNK=_CHUNK)
    _tables[(rows,)](masses, count, tables, MOST=k, BINS=bins, num_warps=16)
    _laws[(rows, k)](
        target, draft, ids, on, count, tables, level_laws, vocabulary, lowest, width, K=k, BINS=bins, num_warps=8
    )
    part = min(bins, 128)
    _chances[(rows, bins // part)](on, count, level_laws, chance, K=k, BINS=bins, PART=part)
    return chance.view(*lead, k), tables[:, 4].view(*lead, bins)
