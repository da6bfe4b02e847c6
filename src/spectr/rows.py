"""Helpers for batched tensors: cached constants, copies to a device, and rows that are computed only where needed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["LazyRows", "cached_arange", "cached_eye", "constant", "copy_to_device", "pick_rows"]


@cache
def constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return numbers, or tuples of numbers, as a cached tensor: a captured step must not copy from the host."""
    with torch.inference_mode(False):  # the cache outlives the current mode
        return torch.tensor(values, dtype=dtype, device=device)


@cache
def _long_arange(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(size, device=device)


def cached_arange(count: int, device: torch.device) -> Tensor:
    """Return 0, 1, 2, … (count,) as a view of a cached tensor, which must not be written to.

    >>> cached_arange(3, torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    return _long_arange(max(64, 1 << count.bit_length()), device)[:count]


@cache
def cached_eye(count: int, device: torch.device) -> Tensor:
    """Return the identity (count, count) bool as a cached tensor, which must not be written to."""
    with torch.inference_mode(False):
        return torch.eye(count, dtype=torch.bool, device=device)


def copy_to_device(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Copy numbers from the host to a device without waiting. The copy is from pinned memory; any other would wait
    for the work that is queued on the device.

    >>> copy_to_device([1, 2], torch.device("cpu")).tolist()
    [1, 2]
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def pick_rows(values: Tensor, nodes: Tensor | None) -> Tensor:
    """Return `values` (B, N, …) at `nodes` (B, M), as (B, M, …); all of them, without a copy, for None."""
    if nodes is None:
        return values
    return values[cached_arange(values.shape[0], values.device)[:, None], nodes]


@dataclass(frozen=True, slots=True)
class LazyRows:
    """A lazy tensor (…, V), computed row by row from `parts` with the same leading shape.

    A rule visits many nodes and needs the distribution after one of them; the others are never computed.
    """

    compute: Callable[..., Tensor]
    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, values: Tensor) -> "LazyRows":
        """Wrap a tensor that is already computed."""
        return cls(lambda values: values, (values,))

    def all(self) -> Tensor:
        """Compute every row, (…, V)."""
        return self.compute(*self.parts)

    def at(self, nodes: Tensor) -> Tensor:
        """Compute the rows at `nodes` (B, M) of the leading shape (B, N), as (B, M, V)."""
        return self.compute(*(pick_rows(part, nodes) for part in self.parts))
