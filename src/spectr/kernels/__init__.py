"""Fused kernels for CUDA, each tested against the plain code that it replaces. Kernels for CPUs are in `cpu`.

This folder depends on tensors alone. Its modules are imported only for tensors on a CUDA device, because Triton is part
of the CUDA builds of torch.
"""

from collections.abc import Callable
from functools import cache, wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from spectr.notices import notice

__all__ = ["has_kernels", "on_own_device", "usable"]

P = ParamSpec("P")
T = TypeVar("T")


@cache
def _has_triton() -> bool:
    found = find_spec("triton") is not None
    if not found and torch.cuda.is_available():
        notice(
            "triton is not installed, so steps on the GPU run without spectr's kernels, which is slower: pip install "
            "triton"
        )
    return found


def has_kernels() -> bool:
    """Return whether there is a CUDA device and Triton."""
    return torch.cuda.is_available() and _has_triton()


def usable(*tensors: Tensor) -> bool:
    """Return whether kernels can take these tensors: they are on a CUDA device, not float64, and Triton is
    installed."""
    return all(x.is_cuda and x.dtype != torch.float64 for x in tensors) and _has_triton()


def on_own_device(launch: Callable[P, T]) -> Callable[P, T]:
    """Launch on the device of the first tensor argument; Triton launches on the current device."""

    @wraps(launch)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.cuda.device_of(next(value for value in args if isinstance(value, Tensor))):
            return launch(*args, **kwargs)

    return wrapped
