"""A key-value cache whose slots are explicit: written where the caller says, kept by moving, never counting itself.

transformers hands every layer's keys and values to `update`; ours writes them into fixed buffers at the slots set
before the call and returns the part of the buffers in use. Which slot holds which position is the caller's table.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

__all__ = ["SlotCache"]


@dataclass(slots=True)
class _Layer:
    """One layer's buffers, allocated when its widths are seen (they differ between keys and values in MLA)."""

    keys: Tensor | None = None  # (B, H, M + 1, d)
    values: Tensor | None = None
    is_sliding: bool = False
    is_compileable: bool = False


def _write(buffer: Tensor | None, fresh: Tensor, slots: Tensor, size: int) -> Tensor:
    """`fresh` (B, H, T, d) at `slots` (B, T) of a buffer of `size`; zeros at first, since a masked NaN spreads."""
    if buffer is None:
        buffer = fresh.new_zeros(*fresh.shape[:2], size, fresh.shape[-1])
    if len(slots) == 1:
        return buffer.index_copy_(2, slots[0].to(fresh.device), fresh)
    return buffer.scatter_(2, slots.to(fresh.device)[:, None, :, None].expand_as(fresh), fresh)


def _spread(slots: Tensor, buffer: Tensor) -> Tensor:
    """Slots (B, T) as an index into every head and width of a buffer."""
    return slots.to(buffer.device)[:, None, :, None].expand(-1, buffer.shape[1], -1, buffer.shape[3])


class SlotCache(Cache):
    """Buffers of `size` slots a row and one more, slot `size`, where padding is written and nobody looks.

    `slots` says where the next call writes, `used` how many slots it looks at, `past` what it is told was there.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = size
        self.past = 0
        self.slots: Tensor | None = None  # (B, T), set before every call
        self.layers: list[_Layer] = []  # type: ignore[assignment]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's fresh keys and values; what attention should look at comes back."""
        if self.slots is None:
            raise RuntimeError("slots must be set before a call")
        while len(self.layers) <= layer_idx:
            self.layers.append(_Layer())
        layer = self.layers[layer_idx]
        layer.keys = _write(layer.keys, key_states, self.slots, self.size + 1)
        layer.values = _write(layer.values, value_states, self.slots, self.size + 1)
        return layer.keys[:, :, : self.used], layer.values[:, :, : self.used]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` (B, T) to `target` (B, T) in every layer; all are read before any is written."""
        if source.device.type == "cpu" and torch.equal(source, target):
            return
        self._change(
            lambda buffer: buffer.scatter_(2, _spread(target, buffer), buffer.gather(2, _spread(source, buffer)))
        )

    def take_rows(self, rows: Tensor) -> None:
        """The rows become these; a row may be repeated."""
        self._change(lambda buffer: buffer.index_select(0, rows.to(buffer.device)))

    def grow(self, size: int) -> None:
        """Room for `size` slots, contents kept."""
        old, self.size = self.size, size

        def larger(buffer: Tensor) -> Tensor:
            made = buffer.new_zeros(*buffer.shape[:2], size + 1, buffer.shape[3])
            made[:, :, :old] = buffer[:, :, :old]
            return made

        self._change(larger)

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Every buffer in turn, so that only one is ever held twice."""
        for layer in self.layers:
            layer.keys = None if layer.keys is None else change(layer.keys)
            layer.values = None if layer.values is None else change(layer.values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are given explicitly, so nothing may be derived from a length."""
        return self.past

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """As `get_seq_length`."""
        return self.past

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Masks cover the slots in use, from the first."""
        return self.used, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """The number of slots."""
        return self.size

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """What older transformers call `get_max_length`."""
        return self.size

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.layers)
