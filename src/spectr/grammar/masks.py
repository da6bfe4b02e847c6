"""Packed masks of allowed tokens, 32 in a number, and what they do to logits."""

import numpy as np
import torch
from torch import Tensor

from spectr.rows import constant

__all__ = ["allowed", "keep_allowed", "packed", "words"]


def words(vocabulary: int) -> int:
    """How many numbers a mask has."""
    return -(-vocabulary // 32)


def packed(mask: Tensor) -> Tensor:
    """(…, W) int32 from bool (…, V).

    >>> packed(torch.tensor([True, False, True, True])).tolist()
    [13]
    """
    wide = torch.nn.functional.pad(mask.to(torch.int64), (0, 32 * words(mask.shape[-1]) - mask.shape[-1]))
    numbers = (wide.unflatten(-1, (-1, 32)) << torch.arange(32, device=mask.device)).sum(-1)
    return torch.where(numbers < 1 << 31, numbers, numbers - (1 << 32)).to(torch.int32)


def allowed(masks: Tensor, vocabulary: int) -> Tensor:
    """Bool (…, V) from int32 (…, W).

    >>> allowed(torch.tensor([13], dtype=torch.int32), 5).tolist()
    [True, False, True, True, False]
    """
    if masks.device.type == "cpu":
        bits = np.unpackbits(masks.contiguous().numpy().view(np.uint8), axis=-1, bitorder="little", count=vocabulary)
        return torch.from_numpy(bits).view(torch.bool)
    shifts = constant(tuple(range(32)), masks.device, torch.int32)
    return ((masks[..., None] >> shifts) & 1).bool().flatten(-2)[..., :vocabulary]


def keep_allowed(logits: Tensor, masks: Tensor) -> Tensor:
    """Logits (B, M, V) of the tokens that masks (B, M, W) allow, −inf for the others. Where a mask allows none, no text
    gets to, or it ends with an error: any distribution will do there, and the logits stay."""
    open_ = allowed(masks, logits.shape[-1])
    dead = (masks == 0).all(-1)[..., None]
    return torch.where(open_ | dead, logits, -torch.inf)
