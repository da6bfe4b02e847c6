"""The overlap of two distributions and its gradient, one row of logits at a time; equals `spectr.train.objective`."""

import torch
import triton
import triton.language as tl

from spectr.kernels import on_own_device

__all__ = ["fused_acceptance"]


@triton.jit
def _acceptance(
    draft, target, weight, normalizers, overlap, entropy,
    size: tl.constexpr, inverse_temperature: tl.constexpr, mix: tl.constexpr, PARTIAL: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    draft += row * size
    target += row * size
    top_d, top_t = -float("inf"), -float("inf")
    sum_d, sum_t = 0.0, 0.0
    for start in range(0, size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        z = tl.load(draft + ids, mask=ids < size, other=-float("inf")).to(tl.float32) * inverse_temperature
        t = tl.load(target + ids, mask=ids < size, other=-float("inf")).to(tl.float32) * inverse_temperature
        new_d, new_t = tl.maximum(top_d, tl.max(z, 0)), tl.maximum(top_t, tl.max(t, 0))
        sum_d = sum_d * tl.exp(top_d - new_d) + tl.sum(tl.exp(z - new_d), 0)
        sum_t = sum_t * tl.exp(top_t - new_t) + tl.sum(tl.exp(t - new_t), 0)
        top_d, top_t = new_d, new_t
    norm_d, norm_t = top_d + tl.log(sum_d), top_t + tl.log(sum_t)
    if PARTIAL:
        norm_t = tl.load(normalizers + row)
    shared, below, cross, mass = 0.0, 0.0, 0.0, 0.0
    for start in range(0, size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        z = tl.load(draft + ids, mask=ids < size, other=-1e4).to(tl.float32) * inverse_temperature - norm_d
        t = tl.load(target + ids, mask=ids < size, other=-1e4).to(tl.float32) * inverse_temperature - norm_t
        q, p = tl.where(ids < size, tl.exp(z), 0.0), tl.where(ids < size, tl.exp(t), 0.0)
        shared += tl.sum(tl.minimum(p, q), 0)
        below += tl.sum(tl.where(q < p, q, 0.0), 0)
        mass += tl.sum(p, 0)
        cross -= tl.sum(p * tl.where(ids < size, z, 0.0), 0)
    tl.store(overlap + row, shared)
    tl.store(entropy + row, cross)
    scale = tl.load(weight + row) * inverse_temperature
    for start in range(0, size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        z = tl.load(draft + ids, mask=ids < size, other=-1e4).to(tl.float32) * inverse_temperature - norm_d
        t = tl.load(target + ids, mask=ids < size, other=-1e4).to(tl.float32) * inverse_temperature - norm_t
        q, p = tl.exp(z), tl.exp(t)
        grad = q * (below - tl.where(q < p, 1.0, 0.0)) + mix * (q * mass - p)
        tl.store(draft + ids, (grad * scale).to(draft.dtype.element_ty), mask=ids < size)


@on_own_device
def fused_acceptance(
    draft: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    inverse_temperature: float,
    mix: float,
    normalizers: torch.Tensor | None = None,
):
    """Return overlap and cross-entropy (M,) of logits (M, V); overwrite `draft` with the gradient of the weighted
    loss. `normalizers` (M,) are those of the target, if the logits are of some tokens only."""
    rows, size = draft.shape
    overlap = torch.empty(rows, dtype=torch.float32, device=draft.device)
    entropy = torch.empty_like(overlap)
    _acceptance[(rows,)](
        draft, target, weight, weight if normalizers is None else normalizers, overlap, entropy, size,
        inverse_temperature, mix, PARTIAL=normalizers is not None, BLOCK=4096, num_warps=8,
    )  # fmt: skip
    return overlap, entropy
