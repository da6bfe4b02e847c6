"""Masks of allowed tokens, packed 32 to an integer, and their application to logits."""

import numpy as np
import torch
from torch import Tensor

from spectr.rows import constant

__all__ = ["allowed", "keep_allowed", "packed", "words"]


def words(vocabulary: int) -> int:
    """Return the number of integers in a mask."""
    return -(-vocabulary // 32)


def packed(mask: Tensor) -> Tensor:
    """Pack a bool mask (…, V) into int32 (…, W).

    >>> packed(torch.tensor([True, False, True, True])).tolist()
    [13]
    """
    wide = torch.nn.functional.pad(mask.to(torch.int64), (0, 32 * words(mask.shape[-1]) - mask.shape[-1]))
    numbers = (wide.unflatten(-1, (-1, 32)) << torch.arange(32, device=mask.device)).sum(-1)
    return torch.where(numbers < 1 << 31, numbers, numbers - (1 << 32)).to(torch.int32)


def allowed(masks: Tensor, vocabulary: int) -> Tensor:
    """Unpack masks (…, W) int32 into bool (…, V).

    >>> allowed(torch.tensor([13], dtype=torch.int32), 5).tolist()
    [True, False, True, True, False]
    """
    if masks.device.type == "cpu":
        bits = np.unpackbits(masks.contiguous().numpy().view(np.uint8), axis=-1, bitorder="little", count=vocabulary)
        return torch.from_numpy(bits).view(torch.bool)
    shifts = constant(tuple(range(32)), masks.device, torch.int32)
    return ((masks[..., None] >> shifts) & 1).bool().flatten(-2)[..., :vocabulary]


def keep_allowed(logits: Tensor, masks: Tensor) -> Tensor:
    """Set the logits (B, M, V) of tokens that masks (B, M, W) do not allow to −inf.

    A mask that allows no token belongs to a node that no text reaches, or to a text that ends with an error. Any
    distribution is valid there, and the logits are left unchanged."""
    open_ = allowed(masks, logits.shape[-1])
    dead = (masks == 0).all(-1)[..., None]
    return torch.where(open_ | dead, logits, -torch.inf)
