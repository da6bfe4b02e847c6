"""Rows of batched tensors: picking some, and not computing the others. Knows nothing of what a row means."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["Rows", "cached_arange", "cached_eye", "constant", "copy_to_device", "pick_rows"]


@cache
def constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers, or tuples of them, as a tensor that is made once: a captured step may not fetch from the host."""
    with torch.inference_mode(False):  # it outlives whatever mode it is made in
        return torch.tensor(values, dtype=dtype, device=device)


@cache
def _long_arange(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(size, device=device)


def cached_arange(count: int, device: torch.device) -> Tensor:
    """0, 1, 2, … (count,), a part of a longer one that is made once. To be read only.

    >>> cached_arange(3, torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    return _long_arange(max(64, 1 << count.bit_length()), device)[:count]


@cache
def cached_eye(count: int, device: torch.device) -> Tensor:
    """(count, count) bool: true where both are the same; made once, to be read only."""
    with torch.inference_mode(False):
        return torch.eye(count, dtype=torch.bool, device=device)


def copy_to_device(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers of the host as a tensor on a device. From pinned memory: a copy from any other waits for whatever runs
    there.

    >>> copy_to_device([1, 2], torch.device("cpu")).tolist()
    [1, 2]
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def pick_rows(values: Tensor, nodes: Tensor | None) -> Tensor:
    """`values` (B, N, …) at `nodes` (B, M), as (B, M, …); None means every node, with no copy."""
    if nodes is None:
        return values
    return values[cached_arange(values.shape[0], values.device)[:, None], nodes]


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor (…, V) computed row by row from `parts` with the same leading shape, when and where it is asked for.

    A rule looks at many nodes and needs the law after one of them: the others are never written.
    """

    compute: Callable[..., Tensor]
    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, values: Tensor) -> "Rows":
        """Rows that are there already."""
        return cls(lambda values: values, (values,))

    def all(self) -> Tensor:
        """Every row, (…, V)."""
        return self.compute(*self.parts)

    def at(self, nodes: Tensor) -> Tensor:
        """The rows of leading shape (B, N) at `nodes` (B, M), as (B, M, V)."""
        return self.compute(*(pick_rows(part, nodes) for part in self.parts))
