"""Hashes of rows in 64-bit integers that wrap around, with which ranks check that they ran the same call.

Each number of a row is multiplied by an odd weight that depends on its position, so that a change of any single number
changes the hash. The sums are computed on the device of the tensors. Integers do not round, so that the result does not
depend on the device.
"""

from functools import cache

import torch
from torch import Tensor

__all__ = ["hash_bits", "hash_rows"]

_STEP = 0x1E3779B97F4A7C15  # odd and below 2^63, so that the weights of neighbouring positions share no pattern
_MIX = 0x2545F4914F6CDD1D
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@cache
def _weights(count: int, device: torch.device) -> Tensor:
    """Return `count` odd numbers (count,). They are cached; callers ask for powers of two and slice."""
    with torch.inference_mode(False):
        return torch.arange(1, count + 1, device=device) * (2 * _STEP) + 1


def hash_rows(*parts: Tensor) -> Tensor:
    """Return one hash per row (B,) of tensors of integers or masks, each (B, …).

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
    """Return one hash per row (B,) of the bits of numbers (B, …). Rows that differ in a single bit of one number have
    different hashes."""
    return hash_rows(values.detach().contiguous().view(_INTEGERS[values.element_size()]))
