"""Finds K-SEQ's ρ and φ by sectioning: each pass evaluates 32 candidates in registers; rows with one draft are
skipped."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device

__all__ = ["kseq_plan"]

_CHUNK = 512  # small, because few rows branch and these should fill the chip
_PASSES = 5  # 32^5 sections give ρ to float32 precision
_SECTIONS = 32


@triton.jit
def _per_visit(chance, k, MOST: tl.constexpr):
    """Return (1 − (1 − chance)^k) / chance as the sum Σ (1 − chance)^i over i < k, which has no cancellation."""
    total = tl.zeros_like(chance)
    power = tl.zeros_like(chance) + 1.0
    for turn in range(MOST):
        total += tl.where(turn < k, power, 0.0)
        power *= 1.0 - chance
    return total


@triton.jit
def _narrow(low, high, sums, k, MOST: tl.constexpr, J: tl.constexpr):
    """Return the ends of the section in which 1 − (1 − S/ρ)^k − S first falls to zero."""
    step = tl.arange(0, J)
    ratio = tl.log(high / low) / J
    rho = tl.where(step == J - 1, high, low * tl.exp(ratio * (step + 1)))
    surplus = sums / rho * _per_visit(sums / rho, k, MOST) - sums
    fallen = (surplus <= 0.0) | (step == J - 1)
    first = tl.min(tl.where(fallen, step, J), 0)
    new_high = tl.sum(tl.where(step == first, rho, 0.0), 0)
    new_low = tl.where(first == 0, low, tl.sum(tl.where(step == first - 1, rho, 0.0), 0))
    return new_low, new_high


@triton.jit
def _section(
    target, draft, count, ends, sums, vocabulary, turn, rows,
    MOST: tl.constexpr, J: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = tl.load(count + row).to(tl.int32)
    if k < 2:
        return
    step = tl.arange(0, J)
    low, high = tl.cast(1.0, tl.float64), k.to(tl.float64)
    if turn > 0:
        before = (turn - 1) * rows + row
        low, high = tl.load(ends + 2 * before), tl.load(ends + 2 * before + 1)
        low, high = _narrow(low, high, tl.load(sums + before * J + step), k, MOST, J)
    here = turn * rows + row
    if part == 0:
        tl.store(ends + 2 * here, low)
        tl.store(ends + 2 * here + 1, high)
    rho = tl.where(step == J - 1, high, low * tl.exp(tl.log(high / low) / J * (step + 1))).to(tl.float32)
    token = part * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocabulary
    owed = tl.load(target + row * vocabulary + token, mask=inside, other=0.0)
    given = tl.load(draft + row * vocabulary + token, mask=inside, other=0.0)
    clipped = tl.minimum(owed[:, None], given[:, None] * rho[None, :])
    tl.atomic_add(sums + here * J + step, tl.sum(clipped.to(tl.float64), 0))


@triton.jit
def _visits(
    target, draft, count, ends, sums, plan, vocabulary, rows,
    PASSES: tl.constexpr, MOST: tl.constexpr, J: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the upper end of the last section as ρ, and sum the mass that one visit accepts at exactly that ρ."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = tl.load(count + row).to(tl.int32)
    if k < 2:
        if part == 0:
            tl.store(plan + 3 * row, tl.cast(1.0, tl.float64))
        return
    step = tl.arange(0, J)
    last = (PASSES - 1) * rows + row
    low, high = tl.load(ends + 2 * last), tl.load(ends + 2 * last + 1)
    low, high = _narrow(low, high, tl.load(sums + last * J + step), k, MOST, J)
    rho = high * (1.0 + 4.8e-7)
    if part == 0:
        tl.store(plan + 3 * row, rho)
    token = part * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocabulary
    owed = tl.load(target + row * vocabulary + token, mask=inside, other=0.0)
    given = tl.load(draft + row * vocabulary + token, mask=inside, other=0.0)
    visit = tl.minimum(given, tl.div_rn(owed, tl.zeros_like(owed) + rho.to(tl.float32)))  # rounds as torch does
    tl.atomic_add(plan + 3 * row + 2, tl.sum(visit.to(tl.float64), 0))


@triton.jit
def _phi(plan, count, rows, MOST: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    k = tl.load(count + row, mask=inside, other=0).to(tl.float64)
    beta = tl.minimum(tl.load(plan + 3 * row + 2, mask=inside, other=0.0), 1.0)
    tl.store(plan + 3 * row + 1, tl.where(k < 2, k, _per_visit(beta, k, MOST)), mask=inside)


@on_own_device
def kseq_plan(target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
    """Return (ρ, φ) of each row, float64 (…, 2), for float32 distributions (…, V) and k (…) ≤ most live drafts."""
    vocabulary = target.shape[-1]
    owed, given, count = (x.reshape(-1, *x.shape[k.dim() :]).contiguous() for x in (target, draft, k))
    rows = len(count)
    grid, fixed = (rows, triton.cdiv(vocabulary, _CHUNK)), {"MOST": most, "J": _SECTIONS, "CHUNK": _CHUNK}
    ends = torch.empty(_PASSES, rows, 2, dtype=torch.float64, device=target.device)
    sums = torch.zeros(_PASSES, rows, _SECTIONS, dtype=torch.float64, device=target.device)
    plan = torch.zeros(rows, 3, dtype=torch.float64, device=target.device)
    for turn in range(_PASSES):
        _section[grid](owed, given, count, ends, sums, vocabulary, turn, rows, **fixed)
    _visits[grid](owed, given, count, ends, sums, plan, vocabulary, rows, PASSES=_PASSES, **fixed)
    _phi[(triton.cdiv(rows, 64),)](plan, count, rows, MOST=most, BLOCK=64)
    return plan[:, :2].view(*k.shape, 2)
