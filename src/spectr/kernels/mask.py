"""The slots that each fresh token attends to, in one pass: the committed text and its part of the scratch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device

__all__ = ["seen_slots"]

_CHUNK = 1024


@triton.jit
def _seen(filled, slots, within, out, count, scratch, used, CHUNK: tl.constexpr):
    """Write one chunk of one token's mask. Scratch slots follow the text; the slots of padding are elsewhere."""
    line, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = line // count
    start = tl.load(filled + row)
    slot = part * CHUNK + tl.arange(0, CHUNK)
    after = slot - start
    is_scratch = (after >= 0) & (after < scratch)
    there = tl.load(slots + row * scratch + after, mask=is_scratch, other=-1) == slot
    allowed = tl.load(within + line * scratch + after, mask=is_scratch, other=0) != 0
    tl.store(out + line * used + slot, (after < 0) | (there & allowed), mask=slot < used)


@on_own_device
def seen_slots(filled: Tensor, slots: Tensor, within: Tensor, used: int) -> Tensor:
    """Return (B, T, used) bool: slots below `filled` (B,), and those of `slots` (B, S) that `within` (B, T, S)
    allows."""
    batch, count, scratch = within.shape
    out = torch.empty(batch, count, used, dtype=torch.bool, device=filled.device)
    grid = (batch * count, triton.cdiv(used, _CHUNK))
    _seen[grid](filled, slots.contiguous(), within.contiguous(), out, count, scratch, used, CHUNK=_CHUNK)
    return out
