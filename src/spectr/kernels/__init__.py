"""Fused forms of what the plain code says, for CUDA. Each is tested against the plain one; nothing here is a new idea.

Knows tensors and nothing else. Imported only where a tensor is on a CUDA device, since Triton ships with those builds.
"""

from collections.abc import Callable
from functools import cache, wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from spectr.notices import notice

__all__ = ["placed", "present", "usable"]

P = ParamSpec("P")
T = TypeVar("T")


@cache
def _has_triton() -> bool:
    found = find_spec("triton") is not None
    if not found and torch.cuda.is_available():
        notice("triton is not installed, so steps on the GPU run without spectr's kernels, slower: pip install triton")
    return found


def present() -> bool:
    """There are kernels for some device here."""
    return torch.cuda.is_available() and _has_triton()


def usable(*tensors: Tensor) -> bool:
    """These tensors can go to a kernel: on a CUDA device, float32 or narrower, and Triton is there."""
    return all(x.is_cuda and x.dtype != torch.float64 for x in tensors) and _has_triton()


def placed(launch: Callable[P, T]) -> Callable[P, T]:
    """Launch on the device of the first tensor given, whichever is current: Triton asks for no other."""

    @wraps(launch)
    def there(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.cuda.device_of(next(given for given in args if isinstance(given, Tensor))):
            return launch(*args, **kwargs)

    return there
