"""Products of few rows with large matrices, on Intel CPUs: the transposed product, which reads the weights as they lie.

A step multiplies a handful of rows with every weight of the model. The usual form, rows times transposed weights,
packs the weights anew each time, and for one row runs on one core. Weights times transposed rows does neither in MKL on
Intel: SmolLM2-135M on two cores takes 32 ms for one token, 41 for four and 64 for eight, where the usual form takes 55,
79 and 88. On other CPUs it is slower than the usual form, so it is left off there. The CPU decides and never a timer,
since the form decides the last bits of the logits, and they can decide a text.
"""

import platform
from functools import cache
from pathlib import Path
from types import MethodType

import torch
from torch import Tensor, nn

__all__ = ["narrow_is_faster", "narrow_products", "usual_products"]

_MOST = 32  # rows; beyond that both forms are alike


def _forward(self: nn.Linear, rows: Tensor) -> Tensor:
    """As `Linear`; one row is doubled, since a product with a single one would run on one core."""
    count = rows.numel() // rows.shape[-1]
    if count > _MOST or count == 0:
        return torch.nn.functional.linear(rows, self.weight, self.bias)
    flat = rows.reshape(count, -1).contiguous()  # as columns lie side by side, the product is five times slower
    if count == 1:
        flat = torch.cat([flat, flat])
    found = torch.mm(self.weight, flat.t()).t()[:count]
    found = found if self.bias is None else found + self.bias
    return found.reshape(*rows.shape[:-1], -1)


@cache
def narrow_is_faster() -> bool:
    """Whether this machine multiplies with MKL on an Intel CPU."""
    return torch.backends.mkl.is_available() and "GenuineIntel" in _cpu_vendor()


def _cpu_vendor() -> str:
    about = Path("/proc/cpuinfo")
    return about.read_text() if about.exists() else platform.processor()


def _fits(module: nn.Module) -> bool:
    return type(module) is nn.Linear and module.weight.device.type == "cpu" and module.weight.dtype == torch.float32


def narrow_products(model: nn.Module) -> None:
    """Let the linear layers of a float32 model on a CPU use it, where it is faster; others are left alone."""
    if not narrow_is_faster():
        return
    for module in model.modules():
        if _fits(module) and "forward" not in vars(module):
            module.forward = MethodType(_forward, module)


def usual_products(model: nn.Module) -> None:
    """Back to the usual form."""
    for module in model.modules():
        if getattr(vars(module).get("forward"), "__func__", None) is _forward:
            del module.forward
