"""A drafter's products with int8 weights, on a GPU: reading weights is what a depth of drafting costs there.

A drafter may round as it likes, since no law depends on what it drafts. With one scale for each row of a matrix the
weights are 1 % off in norm, and half as many bytes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from spectr.kernels import present, usable
from spectr.notices import notice

if present():
    import spectr.kernels.int8  # noqa: F401  registers the product

__all__ = ["Int8Linear", "full_weight", "int8_products", "product", "rounded"]


_BLOCK = 4096  # rows of a matrix


def _whole(rows: Tensor, scale: Tensor) -> Tensor:
    return (rows.float() / scale[:, None]).round().to(torch.int8)


class Int8Linear(nn.Module):
    """A linear layer without bias, its weights rounded."""

    weight: Tensor  # (N, C) int8
    scale: Tensor  # (N,) float32

    def __init__(self, weight: Tensor) -> None:
        import spectr.kernels.int8  # noqa: F401  where it is interpreted, too

        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None
        scale = weight.abs().amax(1).float().clamp_min(1e-12) / 127
        blocks = zip(weight.split(_BLOCK), scale.split(_BLOCK), strict=True)  # in float32, a part at a time
        self.register_buffer("weight", torch.cat([_whole(rows, by) for rows, by in blocks]))
        self.register_buffer("scale", scale)

    def forward(self, rows: Tensor) -> Tensor:
        return product(rows, self.weight, self.scale)


def product(rows: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """Rows (…, C) times a matrix (N, C), whose rows have a scale if it is int8."""
    if scale is None:
        return nn.functional.linear(rows, weight, bias)
    found: Tensor = torch.ops.spectr.int8_product(rows.reshape(-1, rows.shape[-1]), weight, scale)
    return found.reshape(*rows.shape[:-1], weight.shape[0])


def full_weight(layer: Any) -> Tensor:
    """The weights of a linear layer, rounded or not, as numbers."""
    found: Tensor = layer.weight.float() * layer.scale[:, None] if isinstance(layer, Int8Linear) else layer.weight
    return found


def _fits(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear or getattr(layer, "bias", None) is not None or "forward" in vars(layer):
        return False
    return usable(layer.weight) and layer.weight.dtype in (torch.bfloat16, torch.float16)


def _has_room(weight: Tensor) -> bool:
    """For the int8 copy, and as much again for caches to come."""
    return not weight.is_cuda or torch.cuda.mem_get_info(weight.device)[0] > 2 * weight.numel()


def rounded(layer: Any) -> Any:
    """The same layer with int8 weights of its own, if it is in half precision on a CUDA device that has room."""
    if not _fits(layer):
        return layer
    if not _has_room(layer.weight):
        notice("the GPU has no room for the drafter's int8 weights, so it drafts with its half-precision ones, slower")
        return layer
    return Int8Linear(layer.weight.detach())


def int8_products(model: nn.Module) -> None:
    """Round the linear layers below a module that is in half precision on a CUDA device; others are left alone."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if _fits(child):
                setattr(module, name, rounded(child))
