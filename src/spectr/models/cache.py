"""A key-value cache whose slots are explicit: written where the caller says, kept by moving, never counting itself.

transformers hands every layer's keys and values to `update`; ours writes them into fixed buffers at the slots set
before the call and returns the part of the buffers in use. Which slot holds which position is the caller's table.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

from spectr.models.internals import without_base

__all__ = ["SlotCache"]


@dataclass(slots=True)
class _Layer:
    """One layer's buffers, allocated when its widths are seen (they differ between keys and values in MLA)."""

    keys: Tensor | None = None  # (B, H, M + 1, d)
    values: Tensor | None = None
    is_sliding: bool = False
    is_compileable: bool = False


def _write(buffer: Tensor, fresh: Tensor, slots: Tensor) -> Tensor:
    """`fresh` (B, H, T, d) at `slots` (B, T) of a buffer. In float16 a token may overflow, and where it is masked its
    share is zero times that: no number."""
    if fresh.dtype == torch.float16:
        fresh = fresh.nan_to_num(0.0, 0.0, 0.0)
    if len(slots) == 1:
        return buffer.index_copy_(2, slots[0].to(fresh.device), fresh)
    if torch.compiler.is_compiling():  # a compiled scatter copies the whole buffer, and this does not
        row, head = (torch.arange(size, device=fresh.device) for size in fresh.shape[:2])
        return buffer.index_put_((row[:, None, None], head[:, None], slots[:, None, :]), fresh)
    return buffer.scatter_(2, slots.to(fresh.device)[:, None, :, None].expand_as(fresh), fresh)


def _spread(slots: Tensor, buffer: Tensor) -> Tensor:
    """Slots (B, T) as an index into everything that a buffer (…, B, H, M + 1, d) holds of them."""
    return slots.to(buffer.device)[:, None, :, None].expand(*buffer.shape[:-2], -1, buffer.shape[-1])


def _is_part(buffer: Tensor, joint: Tensor) -> bool:
    return buffer.untyped_storage().data_ptr() == joint.untyped_storage().data_ptr()


@dataclass(slots=True)
class _Joint:
    """Keys of all layers as one tensor (L, B, H, M + 1, d), and values: moving slots is then four launches in all."""

    keys: Tensor
    values: Tensor

    def parts(self, layer: int) -> tuple[Tensor, Tensor]:
        """Those of one layer."""
        return without_base(self.keys[layer]), without_base(self.values[layer])

    def holds(self, layer: _Layer) -> bool:
        """Whether a layer's buffers are part of it."""
        return layer.keys is not None and _is_part(layer.keys, self.keys)

    def fits(self, keys: Tensor, values: Tensor) -> bool:
        """Whether one more layer has the widths of the others, on the same device."""
        pairs = ((self.keys, keys), (self.values, values))
        return all(
            a.shape[2] == b.shape[1] and a.shape[-1] == b.shape[-1] and a.device == b.device for a, b in pairs
        )  # a window brings fewer rows


class SlotCache(Cache):
    """Buffers of `size` slots for each of `rows` rows and one slot more, slot `size`, where padding is written and
    nobody looks.

    `slots` says where the next call writes, `attended` how many slots it looks at, `past` what it is told was there.
    `layers` is how many there are, if all are alike: their buffers are then parts of joint ones.
    """

    def __init__(self, size: int, rows: int, layers: int = 0) -> None:
        self.size = size
        self.rows = rows
        self.attended = size
        self.past = 0
        self.slots: Tensor | None = None  # (B, T), set before every call
        self.layers: list[_Layer] = []  # type: ignore[assignment]
        self.count = layers
        self.joint: _Joint | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's fresh keys and values; what attention should look at comes back."""
        if self.slots is None:
            raise RuntimeError("slots must be set before a call")
        while len(self.layers) <= layer_idx:
            self.layers.append(_Layer())
        layer = self.layers[layer_idx]
        if layer.keys is None or layer.values is None:
            layer.keys, layer.values = self._room(layer_idx, key_states, value_states)
        _write(layer.keys, key_states, self.slots)
        _write(layer.values, value_states, self.slots)
        return layer.keys[:, :, : self.attended], layer.values[:, :, : self.attended]

    def joint_buffers(self, layers: int, heads: int, width: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all layers, (L, B, H, M + 1, d) each, for whoever writes them without `update`."""
        if len(self.layers) < layers:
            like = torch.empty(self.rows, heads, 0, width)
            for layer in range(len(self.layers), layers):
                self.layers.append(_Layer(*self._room(layer, like, like)))
        keys, values = self._joint_parts()
        return keys, values

    def _joint_parts(self) -> tuple[Tensor, Tensor]:
        assert self.joint is not None
        return self.joint.keys, self.joint.values

    def make_buffers_like(self, other: "SlotCache") -> None:
        """Buffers for the layers of another cache, before a call would make them."""
        for at, layer in enumerate(other.layers[len(self.layers) :], start=len(self.layers)):
            held = [buffer for buffer in (layer.keys, layer.values) if buffer is not None]
            keys, values = (b.new_empty(self.rows, b.shape[1], 0, b.shape[-1]) for b in held)
            self.layers.append(_Layer(*self._room(at, keys, values)))

    def _room(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Buffers for one layer, zeros at first, since a masked NaN spreads."""
        if self.joint is None and layer == 0 and self.count:
            self.joint = _Joint(self._zeros(keys, self.count), self._zeros(values, self.count))
        if self.joint is not None and layer < self.count and self.joint.fits(keys, values):
            return self.joint.parts(layer)
        return self._zeros(keys), self._zeros(values)

    def _zeros(self, fresh: Tensor, *layers: int) -> Tensor:
        return fresh.new_zeros(*layers, self.rows, fresh.shape[1], self.size + 1, fresh.shape[-1])

    def window(self, start: int, stop: int) -> "SlotCache":
        """The rows from `start` to `stop`, in the same buffers; of no use once this cache has grown or taken rows."""
        return _Window(self, start, stop)

    def copy_rows(self, sources: Tensor, targets: Tensor, most: int) -> None:
        """The first `most` slots of some rows become those of others; all are read before any is written."""
        for buffer in self.buffers():
            part, there = buffer[..., :most, :], buffer.device
            part.index_copy_(-4, targets.to(there), part.index_select(-4, sources.to(there)))

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` (B, T) to `target` (B, T) in every layer; all are read before any is written."""
        if source.device.type == "cpu" and torch.equal(source, target):
            return
        for buffer in self.buffers():
            buffer.scatter_(-2, _spread(target, buffer), buffer.gather(-2, _spread(source, buffer)))

    def buffers(self) -> list[Tensor]:
        """The joint ones, and those of layers apart."""
        joint = [] if self.joint is None else [self.joint.keys, self.joint.values]
        apart = [layer for layer in self.layers if self.joint is None or not self.joint.holds(layer)]
        return joint + [buffer for layer in apart for buffer in (layer.keys, layer.values) if buffer is not None]

    def take_rows(self, rows: Tensor) -> None:
        """The rows become these; a row may be repeated."""
        self.rows = len(rows)
        self._change(lambda buffer: buffer.index_select(-4, rows.to(buffer.device)))

    def grow(self, size: int) -> None:
        """Room for `size` slots, contents kept."""
        old, self.size = self.size, size

        def larger(buffer: Tensor) -> Tensor:
            made = buffer.new_zeros(*buffer.shape[:-2], size + 1, buffer.shape[-1])
            made[..., :old, :] = buffer[..., :old, :]
            return made

        self._change(larger)

    def add_rows(self, count: int) -> None:
        """Make room for so many rows in all, contents kept."""
        old, self.rows = self.rows, count

        def taller(buffer: Tensor) -> Tensor:
            made = buffer.new_zeros(*buffer.shape[:-4], count, *buffer.shape[-3:])
            made[..., :old, :, :, :] = buffer
            return made

        self._change(taller)

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        """The joint buffers, and every other in turn."""
        held = [self.joint is not None and self.joint.holds(layer) for layer in self.layers]
        if self.joint is not None:
            self.joint.keys = change(self.joint.keys)
            self.joint.values = change(self.joint.values)
        for at, layer in enumerate(self.layers):
            if held[at] and self.joint is not None:
                layer.keys, layer.values = self.joint.parts(at)
            else:
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
        return self.attended, 0

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


class _Window(SlotCache):
    """Some rows of a cache, in its buffers."""

    def __init__(self, whole: SlotCache, start: int, stop: int) -> None:
        super().__init__(whole.size, stop - start, whole.count)
        self.whole, self.start, self.stop = whole, start, stop
        for at in range(len(whole.layers)):
            self.layers.append(self._rows_of(at))

    def _rows_of(self, layer: int) -> _Layer:
        """One layer's buffers, of these rows."""
        whole, rows = self.whole.layers[layer], slice(self.start, self.stop)
        keys, values = (None if b is None else without_base(b[rows]) for b in (whole.keys, whole.values))
        return _Layer(keys, values)

    def _room(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Buffers for all rows, of which these are taken."""
        whole = self.whole
        while len(whole.layers) <= layer:
            whole.layers.append(_Layer())
        held = whole.layers[layer]
        if held.keys is None or held.values is None:
            held.keys, held.values = whole._room(layer, keys, values)
        found = self._rows_of(layer)
        assert found.keys is not None
        assert found.values is not None
        return found.keys, found.values

    def _joint_parts(self) -> tuple[Tensor, Tensor]:
        keys, values = (part[:, self.start : self.stop] for part in self.whole._joint_parts())
        return keys, values

    def buffers(self) -> list[Tensor]:
        start, stop = self.start, self.stop
        return [buffer[..., start:stop, :, :, :] for buffer in self.whole.buffers()]
