"""The state of a batch of rows: cache buffers, positions, and the number of committed tokens of each row.

The committed tokens of a row fill its slots 0, 1, 2, … in order, and scratch nodes use the slots after them. The counts
are kept on the device. The host keeps an upper bound of them, so that a step does not wait for the device.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from spectr.errors import ArgumentError
from spectr.models.cache import SlotCache
from spectr.rows import copy_to_device
from spectr.types import Layers

if TYPE_CHECKING:
    from spectr.models.prefill import GraphPrefill

__all__ = ["EncodedSources", "Session", "Store", "round_up_16"]

_LOOSEST = 64  # slots by which the bound may be too large before the host asks the device for the true lengths
_WINDOWS = 16  # windows that a session remembers


def round_up_16(slots: int) -> int:
    """Round up to a multiple of 16, so that rows of attention masks are aligned in memory.

    >>> round_up_16(33)
    48
    """
    return -(-slots // 16) * 16


def _copy(values: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy rows of values (B, …) to other rows; all are read before any is written."""
    values.index_copy_(0, targets, values.index_select(0, sources))


def _widened(values: Tensor, length: int) -> Tensor:
    """Pad values (B, S, …) with zeros to (B, length, …)."""
    missing = values.new_zeros(values.shape[0], length - values.shape[1], *values.shape[2:])
    return torch.cat([values, missing], 1) if missing.shape[1] else values


@dataclass(slots=True)
class EncodedSources:
    """The encoder's output for the sources. Its keys and values are computed by the first decoder call."""

    states: Tensor  # (B, S, H)
    mask: Tensor  # (B, S) int64: 1 for tokens of the source, 0 for padding
    cache: EncoderDecoderCache

    def window(self, start: int, stop: int, cache: SlotCache) -> "EncodedSources":
        """Return the rows from `start` to `stop`; the next call computes their keys and values again."""
        return EncodedSources(
            self.states[start:stop], self.mask[start:stop], EncoderDecoderCache(cache, DynamicCache())
        )

    def for_rows(self, rows: int) -> "EncodedSources":
        """Return zeros for `rows` rows without sources. One place is left unmasked: attention over nothing is NaN."""
        states, mask = (values.new_zeros(rows, *values.shape[1:]) for values in (self.states, self.mask))
        mask[:, 0] = 1
        return EncodedSources(states, mask, self.cache)

    def put_row(self, row: int, other: "EncodedSources") -> None:
        """Give row `row` the encoded source of `other`, which has one row."""
        length = max(self.states.shape[1], other.states.shape[1])
        self.states, self.mask = _widened(self.states, length), _widened(self.mask, length)
        self.states[row], self.mask[row] = _widened(other.states, length)[0], _widened(other.mask, length)[0]


@dataclass(slots=True)
class Store:
    """The part of a session that is shared by its views: committed tokens and their buffers."""

    cache: SlotCache
    position: Tensor  # (B, M + 1) int64: the position each slot holds
    filled: Tensor  # (B,) int64: committed tokens
    longest: int = 0  # upper bound of `filled`
    bound_slack: int = 0  # by how much `longest` may be too large
    sources: EncodedSources | None = None
    features: Tensor | None = None  # (B, M + 1, H): features of the token in each slot, if they are kept

    def window(self, start: int, stop: int) -> "Store":
        """Return a store of the rows from `start` to `stop`, in the same buffers."""
        features = None if self.features is None else self.features[start:stop]
        cache = self.cache.window(start, stop)
        encoded = None if self.sources is None else self.sources.window(start, stop, cache)
        return Store(cache, self.position[start:stop], self.filled[start:stop], sources=encoded, features=features)

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the first `most` tokens of each source row, or all if it has fewer, to the matching target row."""
        source, target = (copy_to_device(rows, self.filled.device) for rows in (sources, targets))
        self.cache.copy_rows(source, target, most)
        for values in (self.position, self.features):
            if values is not None:
                _copy(values[:, :most], source, target)
        self.filled[target] = self.filled[source].clamp_max(most)
        if self.sources is not None:
            _copy(self.sources.states, source, target)
            _copy(self.sources.mask, source, target)

    def attended_slots(self, extra: int) -> int:
        """Return how many slots a call with `extra` scratch nodes attends to; ask the device if the bound is loose."""
        if self.bound_slack and (self.bound_slack > _LOOSEST or self.longest + extra > self.cache.size):
            self.tighten()
        if self.longest + extra > self.cache.size:
            raise ArgumentError(
                f"the session has {self.cache.size} slots per row and {self.longest + extra} are needed; open a larger "
                "one, or call make_room"
            )
        return min(self.cache.size, round_up_16(self.longest + extra))

    def tighten(self) -> None:
        """Replace the bound by the true length of the longest row, which waits for the device."""
        self.longest, self.bound_slack = int(self.filled.max()), 0

    def advance(self, counts: Tensor, most: int) -> None:
        """Record that rows committed `counts` (B,) more tokens, none of them more than `most`."""
        self.filled += counts  # in place, because captured steps read this tensor
        self.longest, self.bound_slack = self.longest + most, self.bound_slack + most

    def cut(self, lengths: Tensor, most: int) -> None:
        """Discard the tokens that rows committed beyond `lengths` (B,)."""
        self.filled.clamp_(max=lengths)  # in place, as above
        self.longest = min(self.longest, most)

    def add_rows(self, count: int) -> None:
        """Make room for `count` rows in total and keep the contents."""
        extra = count - self.filled.shape[0]
        self.cache.add_rows(count)
        self.position = torch.cat([self.position, self.position.new_zeros(extra, self.position.shape[1])])
        self.filled = torch.cat([self.filled, self.filled.new_zeros(extra)])
        if self.features is not None:
            self.features = torch.cat([self.features, self.features.new_zeros(extra, *self.features.shape[1:])])
        if self.sources is not None:
            for name in ("states", "mask"):
                values = getattr(self.sources, name)
                setattr(self.sources, name, torch.cat([values, values.new_zeros(extra, *values.shape[1:])]))

    def grow(self, slots: int) -> None:
        """Make room for `slots` tokens per row and keep the contents."""
        extra = self.position.new_zeros(self.position.shape[0], slots - self.cache.size)
        self.position = torch.cat([self.position, extra], 1)
        if self.features is not None:
            wider = self.features.new_zeros(self.features.shape[0], extra.shape[1], self.features.shape[2])
            self.features = torch.cat([self.features, wider], 1)
        self.cache.grow(slots)


@dataclass(slots=True)
class Session:
    """A store and the scratch nodes on top of it. A view shares the store of its owner; only the owner commits."""

    store: Store
    is_view: bool = False
    pending: int = 0  # scratch nodes scored since the last keep
    feature_layers: Layers | None = None  # the features are the output layer's input, then these layers' outputs
    features: Tensor | None = field(default=None, repr=False)  # (B, T, H) of the last call
    input_features: Tensor | None = field(default=None, repr=False)  # (B, T, H) for the next call of a head
    windows: dict[tuple[int, int], "Session"] = field(default_factory=dict, repr=False)
    prefill: "GraphPrefill | None" = field(default=None, repr=False)  # reads prompts with CUDA graphs
    name: Any = field(default=None, repr=False)  # for other processes, if the model is sharded

    def window(self, start: int, stop: int, longest: int = 0) -> "Session":
        """Return a session on the rows from `start` to `stop`, none of which has more than `longest` tokens.

        It uses the same buffers, so that a commit there is a commit here. Ask for it again before every use, because
        rows are added and the cache grows."""
        key = (start, stop)
        if key not in self.windows:
            if len(self.windows) >= _WINDOWS:
                self.windows.clear()
            made = Session(self.store.window(start, stop), self.is_view, 0, self.feature_layers)
            made.prefill = self.prefill
            self.windows[key] = made
        found = self.windows[key]
        found.pending, found.store.longest, found.store.bound_slack = 0, longest, 0
        return found

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the first `most` tokens of each source row, or all if it has fewer, to the matching target row."""
        self.store.copy_rows(sources, targets, most)
        if self.store.sources is not None:
            self.windows.clear()  # they have keys and values of the old sources

    def make_room(self, rows: int, slots: int) -> None:
        """Make room for at least `rows` rows of `slots` tokens and keep the contents."""
        if slots > self.cache.size:
            self.store.grow(slots)
        if rows > self.rows:
            self.store.add_rows(rows)
        self.windows.clear()

    @property
    def filled(self) -> Tensor:
        """(B,) int64: committed tokens of each row."""
        return self.store.filled

    @property
    def longest(self) -> int:
        """An upper bound of `filled` that is known on the host."""
        return self.store.longest

    @property
    def cache(self) -> SlotCache:
        """The cache of keys and values."""
        return self.store.cache

    @property
    def sources(self) -> EncodedSources | None:
        """The encoder's output for the sources, if the model has an encoder."""
        return self.store.sources

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.store.filled.shape[0]
