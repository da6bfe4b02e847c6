"""A key-value cache with explicit slots: the caller says where a call writes and which slots it attends to.

transformers passes the keys and values of every layer to `update`, which writes them into fixed buffers at the slots
that were set before the call and returns the part of the buffers in use. The session records which slot holds which
position.
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
    """The buffers of one layer, allocated by the first call: keys and values differ in width in MLA."""

    keys: Tensor | None = None  # (B, H, M + 1, d)
    values: Tensor | None = None
    is_sliding: bool = False
    is_compileable: bool = False


def _write(buffer: Tensor, fresh: Tensor, slots: Tensor) -> Tensor:
    """Write `fresh` (B, H, T, d) at `slots` (B, T) of a buffer. In float16 values may overflow, and a masked slot that
    holds infinity would still give NaN (zero times infinity), so they are replaced by 0."""
    if fresh.dtype == torch.float16:
        fresh = fresh.nan_to_num(0.0, 0.0, 0.0)
    if len(slots) == 1:
        return buffer.index_copy_(2, slots[0].to(fresh.device), fresh)
    if torch.compiler.is_compiling():  # unlike this, a compiled scatter copies the whole buffer
        row, head = (torch.arange(size, device=fresh.device) for size in fresh.shape[:2])
        return buffer.index_put_((row[:, None, None], head[:, None], slots[:, None, :]), fresh)
    return buffer.scatter_(2, slots.to(fresh.device)[:, None, :, None].expand_as(fresh), fresh)


def _spread(slots: Tensor, buffer: Tensor) -> Tensor:
    """Return slots (B, T) as an index for gather and scatter on a buffer (…, B, H, M + 1, d)."""
    return slots.to(buffer.device)[:, None, :, None].expand(*buffer.shape[:-2], -1, buffer.shape[-1])


@dataclass(slots=True)
class _Joint:
    """Keys of all layers as one tensor (L, B, H, M + 1, d), and values: moving slots takes four launches in total."""

    keys: Tensor
    values: Tensor

    def parts(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of one layer."""
        return without_base(self.keys[layer]), without_base(self.values[layer])

    def holds(self, layer: _Layer) -> bool:
        """Return whether a layer's buffers are part of the joint ones."""
        if layer.keys is None:
            return False
        return layer.keys.untyped_storage().data_ptr() == self.keys.untyped_storage().data_ptr()

    def fits(self, keys: Tensor, values: Tensor) -> bool:
        """Return whether one more layer has the widths of the others and is on the same device."""
        pairs = ((self.keys, keys), (self.values, values))
        # Rows are not compared: a window has fewer.
        return all(a.shape[2] == b.shape[1] and a.shape[-1] == b.shape[-1] and a.device == b.device for a, b in pairs)


class SlotCache(Cache):
    """Buffers with `size` slots for each of `rows` rows, and one slot more, slot `size`, to which padding is written
    and which no token attends to.

    `slots` says where the next call writes, `attended` how many slots it attends to, and `past` which length is
    reported to transformers. `layers` is the number of layers if all have the same widths, in which case their buffers
    are parts of joint ones; 0 otherwise.
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
        """Write one layer's fresh keys and values; return the keys and values of all slots that are attended to."""
        if self.slots is None:
            raise RuntimeError("slots must be set before a call")
        while len(self.layers) <= layer_idx:
            self.layers.append(_Layer())
        layer = self.layers[layer_idx]
        if layer.keys is None or layer.values is None:
            layer.keys, layer.values = self._allocate(layer_idx, key_states, value_states)
        _write(layer.keys, key_states, self.slots)
        _write(layer.values, value_states, self.slots)
        return layer.keys[:, :, : self.attended], layer.values[:, :, : self.attended]

    def joint_buffers(self, layers: int, heads: int, width: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of all layers, (L, B, H, M + 1, d) each, for a caller that does not use `update`."""
        if len(self.layers) < layers:
            like = torch.empty(self.rows, heads, 0, width)
            for layer in range(len(self.layers), layers):
                self.layers.append(_Layer(*self._allocate(layer, like, like)))
        keys, values = self._joint_parts()
        return keys, values

    def _joint_parts(self) -> tuple[Tensor, Tensor]:
        assert self.joint is not None
        return self.joint.keys, self.joint.values

    def make_buffers_like(self, other: "SlotCache") -> None:
        """Allocate buffers with the widths of another cache's, before the first call would."""
        for at, layer in enumerate(other.layers[len(self.layers) :], start=len(self.layers)):
            buffers = [buffer for buffer in (layer.keys, layer.values) if buffer is not None]
            keys, values = (b.new_empty(self.rows, b.shape[1], 0, b.shape[-1]) for b in buffers)
            self.layers.append(_Layer(*self._allocate(at, keys, values)))

    def _allocate(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Allocate buffers for one layer. They are zeros, because masked attention to a NaN is NaN."""
        if self.joint is None and layer == 0 and self.count:
            self.joint = _Joint(self._zeros(keys, self.count), self._zeros(values, self.count))
        if self.joint is not None and layer < self.count and self.joint.fits(keys, values):
            return self.joint.parts(layer)
        return self._zeros(keys), self._zeros(values)

    def _zeros(self, fresh: Tensor, *layers: int) -> Tensor:
        return fresh.new_zeros(*layers, self.rows, fresh.shape[1], self.size + 1, fresh.shape[-1])

    def window(self, start: int, stop: int) -> "SlotCache":
        """Return the rows from `start` to `stop`, in the same buffers; invalid once this cache grows or takes rows."""
        return _Window(self, start, stop)

    def copy_rows(self, sources: Tensor, targets: Tensor, most: int) -> None:
        """Copy the first `most` slots of some rows to others; all are read before any is written."""
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
        """Return all buffers: the joint ones, and those of layers that are not part of them."""
        joint = [] if self.joint is None else [self.joint.keys, self.joint.values]
        apart = [layer for layer in self.layers if self.joint is None or not self.joint.holds(layer)]
        return joint + [buffer for layer in apart for buffer in (layer.keys, layer.values) if buffer is not None]

    def grow(self, size: int) -> None:
        """Make room for `size` slots and keep the contents."""
        old, self.size = self.size, size

        def larger(buffer: Tensor) -> Tensor:
            made = buffer.new_zeros(*buffer.shape[:-2], size + 1, buffer.shape[-1])
            made[..., :old, :] = buffer[..., :old, :]
            return made

        self._change(larger)

    def add_rows(self, count: int) -> None:
        """Make room for `count` rows in total and keep the contents."""
        old, self.rows = self.rows, count

        def taller(buffer: Tensor) -> Tensor:
            made = buffer.new_zeros(*buffer.shape[:-4], count, *buffer.shape[-3:])
            made[..., :old, :, :, :] = buffer
            return made

        self._change(taller)

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replace every buffer by `change(buffer)`; layers in the joint buffers stay parts of them."""
        is_joint = [self.joint is not None and self.joint.holds(layer) for layer in self.layers]
        if self.joint is not None:
            self.joint.keys = change(self.joint.keys)
            self.joint.values = change(self.joint.values)
        for at, layer in enumerate(self.layers):
            if is_joint[at] and self.joint is not None:
                layer.keys, layer.values = self.joint.parts(at)
            else:
                layer.keys = None if layer.keys is None else change(layer.keys)
                layer.values = None if layer.values is None else change(layer.values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length for transformers; positions are passed explicitly and do not depend on it."""
        return self.past

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return the same as `get_seq_length`."""
        return self.past

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of slots that masks cover, and the first of them."""
        return self.attended, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return the number of slots."""
        return self.size

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Return the number of slots; the name of `get_max_length` in older transformers."""
        return self.size

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.layers)


class _Window(SlotCache):
    """Some rows of another cache, in the buffers of that cache."""

    def __init__(self, whole: SlotCache, start: int, stop: int) -> None:
        super().__init__(whole.size, stop - start, whole.count)
        self.whole, self.start, self.stop = whole, start, stop
        for at in range(len(whole.layers)):
            self.layers.append(self._rows_of(at))

    def _rows_of(self, layer: int) -> _Layer:
        """Return the part of one layer's buffers that belongs to these rows."""
        whole, rows = self.whole.layers[layer], slice(self.start, self.stop)
        keys, values = (None if b is None else without_base(b[rows]) for b in (whole.keys, whole.values))
        return _Layer(keys, values)

    def _allocate(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Allocate the layer's buffers in the whole cache and return the part of these rows."""
        whole = self.whole
        while len(whole.layers) <= layer:
            whole.layers.append(_Layer())
        layer_buffers = whole.layers[layer]
        if layer_buffers.keys is None or layer_buffers.values is None:
            layer_buffers.keys, layer_buffers.values = whole._allocate(layer, keys, values)
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
