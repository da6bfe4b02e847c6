"""Numbers that tell whether two ranks ran the same call: hashes of rows, in whole numbers that wrap around.

Every number of a row is multiplied by an odd weight of its place, so that a change of any single number shows. The sums
are taken where the tensors are and do not round, so that they do not depend on the device.
"""

from functools import cache

import torch
from torch import Tensor

__all__ = ["hash_bits", "hash_rows"]

_STEP = 0x1E3779B97F4A7C15  # odd, below 2^63: places get weights that look unlike one another
_MIX = 0x2545F4914F6CDD1D
_WHOLES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@cache
def _weights(count: int, device: torch.device) -> Tensor:
    """(count,) odd numbers, made once for each power of two."""
    with torch.inference_mode(False):
        return torch.arange(1, count + 1, device=device) * (2 * _STEP) + 1


def hash_rows(*parts: Tensor) -> Tensor:
    """(B,) of whole numbers or masks (B, …) each.

    >>> one, other = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]])
    >>> (hash_rows(one, one > 2) == hash_rows(other, other > 2)).tolist()
    [True, False]
    """
    total = torch.zeros(len(parts[0]), dtype=torch.int64, device=parts[0].device)
    for part in parts:
        flat = part.reshape(len(part), -1)
        weights = _weights(1 << max(6, flat.shape[1].bit_length()), flat.device)[: flat.shape[1]]
        total = total * _MIX + (flat.to(torch.int64) * weights).sum(-1) + flat.shape[1]
    return total


def hash_bits(values: Tensor) -> Tensor:
    """(B,) of the bits of numbers (B, …): two ranks have the same only if all numbers are equal to the last bit."""
    return hash_rows(values.detach().contiguous().view(_WHOLES[values.element_size()]))
