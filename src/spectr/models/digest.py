"""A digest of all weights of a model: two models with the same digest have the same weights.

The bits of every tensor are summed as integers, each weighted by its index, on the device of the tensor: many gigabytes
take a second or two on a GPU, and nothing is copied. Integers wrap around and do not round, so the digest does not
depend on the device. It detects mistakes, not forgery.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

__all__ = ["weights_digest"]

_CHUNK = 1 << 24  # elements at a time
_PRIME = 1_000_003
_WHOLES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights_digest(model: nn.Module) -> str:
    """Return 32 hexadecimal digits that depend on the name, dtype, shape and value of every weight."""
    digest = hashlib.sha256()
    for name, tensor in _tensors(model):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {_sum(tensor)};".encode())
    return digest.hexdigest()[:32]


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights by name. Weights that are sharded over ranks are gathered one at a time."""
    for named in (model.named_parameters(), model.named_buffers()):
        for name, tensor in sorted(named, key=lambda pair: pair[0]):
            yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@torch.no_grad()
def _sum(tensor: Tensor) -> int:
    """Sum the bits of all elements as integers, weighted by their indices."""
    if tensor.is_complex() or tensor.numel() == 0 or tensor.is_meta:
        return 0
    bits = tensor.detach().contiguous().view(-1)
    bits = bits if bits.dtype == torch.bool else bits.view(_WHOLES[bits.element_size()])
    total = 0
    for start in range(0, len(bits), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        weights = torch.arange(start, start + len(part), device=part.device).remainder(_PRIME).add(1)
        total += int((part * weights).sum())
    return total % (1 << 64)
