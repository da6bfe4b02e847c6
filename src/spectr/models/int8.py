"""Int8 weights for the linear layers of drafters on a GPU, where a draft step costs the time to read the weights.

A drafter may round, because the output distribution does not depend on what it drafts. With one scale for each row of a
matrix the weights change by 1 % in norm and take half as many bytes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from spectr.kernels import has_kernels, usable
from spectr.notices import notice

if has_kernels():
    import spectr.kernels.int8  # noqa: F401  registers the product

__all__ = ["Int8Linear", "full_weight", "int8_products", "product", "rounded"]


_BLOCK = 4096  # rows that are rounded at a time


def _to_int8(rows: Tensor, scale: Tensor) -> Tensor:
    return (rows.float() / scale[:, None]).round().to(torch.int8)


class Int8Linear(nn.Module):
    """A linear layer without bias whose weights are int8 with a scale for each row."""

    weight: Tensor  # (N, C) int8
    scale: Tensor  # (N,) float32

    def __init__(self, weight: Tensor) -> None:
        import spectr.kernels.int8  # noqa: F401  registers the product for Triton's interpreter

        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None
        scale = weight.abs().amax(1).float().clamp_min(1e-12) / 127
        blocks = zip(weight.split(_BLOCK), scale.split(_BLOCK), strict=True)  # rounded in float32, a block at a time
        self.register_buffer("weight", torch.cat([_to_int8(rows, by) for rows, by in blocks]))
        self.register_buffer("scale", scale)

    def forward(self, rows: Tensor) -> Tensor:
        return product(rows, self.weight, self.scale)


def product(rows: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """Multiply rows (…, C) by the transpose of a matrix (N, C); an int8 matrix has a scale (N,)."""
    if scale is None:
        return nn.functional.linear(rows, weight, bias)
    multiplied: Tensor = torch.ops.spectr.int8_product(rows.reshape(-1, rows.shape[-1]), weight, scale)
    return multiplied.reshape(*rows.shape[:-1], weight.shape[0])


def full_weight(layer: Any) -> Tensor:
    """Return the weights of a linear layer as floats, whether they are int8 or not."""
    weight: Tensor = layer.weight.float() * layer.scale[:, None] if isinstance(layer, Int8Linear) else layer.weight
    return weight


def _fits(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear or getattr(layer, "bias", None) is not None or "forward" in vars(layer):
        return False
    return usable(layer.weight) and layer.weight.dtype in (torch.bfloat16, torch.float16)


def _has_room(weight: Tensor) -> bool:
    """Return whether there is memory for the int8 copy, and as much again for caches."""
    return not weight.is_cuda or torch.cuda.mem_get_info(weight.device)[0] > 2 * weight.numel()


def rounded(layer: Any) -> Any:
    """Return an int8 copy of a layer that is in half precision on a CUDA device with enough memory, else the layer."""
    if not _fits(layer):
        return layer
    if not _has_room(layer.weight):
        notice(
            "the GPU has no room for the drafter's int8 weights; it drafts with its half-precision weights, which is "
            "slower"
        )
        return layer
    return Int8Linear(layer.weight.detach())


def int8_products(model: nn.Module) -> None:
    """Replace the half-precision linear layers of a module on a CUDA device by int8 copies; keep all others."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if _fits(child):
                setattr(module, name, rounded(child))
