"""What a target remembers of a batch of rows: buffers, positions, and how far each row has come.

A row's committed tokens fill its slots 0, 1, 2, … in order; scratch nodes stand in the slots after them. The counts
live on the device; the host knows an upper bound of them, so that a step needs no answer from the device.
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

__all__ = ["Memory", "Session", "Store", "round_up_16"]

_LOOSEST = 64  # slots a call may look at in vain before the host asks how far the rows really are
_EVEN = 16
_WINDOWS = 16  # of a session that are remembered


def round_up_16(slots: int) -> int:
    """At least so many: rows of a mask that begin evenly are read in fewer goes.

    >>> even(33)
    48
    """
    return -(-slots // _EVEN) * _EVEN


def _copy(values: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Rows of values (B, …) become those of others; all are read before any is written."""
    values.index_copy_(0, targets, values.index_select(0, sources))


def _widened(values: Tensor, length: int) -> Tensor:
    """(B, S, …) with zeros behind, up to `length`."""
    missing = values.new_zeros(values.shape[0], length - values.shape[1], *values.shape[2:])
    return torch.cat([values, missing], 1) if missing.shape[1] else values


@dataclass(slots=True)
class Memory:
    """What an encoder made of the sources; the keys and values of it appear at the first decoder call."""

    states: Tensor  # (B, S, H)
    mask: Tensor  # (B, S) int64: 1 where there is source
    cache: EncoderDecoderCache

    def window(self, start: int, stop: int, cache: SlotCache) -> "Memory":
        """The rows from `start` to `stop`; their keys and values are made anew at the next call."""
        return Memory(self.states[start:stop], self.mask[start:stop], EncoderDecoderCache(cache, DynamicCache()))

    def for_rows(self, rows: int) -> "Memory":
        """Room for so many rows of which none has a source. All of it is masked but one place: a row that may look at
        nothing gets no numbers."""
        states, mask = (held.new_zeros(rows, *held.shape[1:]) for held in (self.states, self.mask))
        mask[:, 0] = 1
        return Memory(states, mask, self.cache)

    def put_row(self, row: int, other: "Memory") -> None:
        """Row `row` answers to the source of `other`, which has one row."""
        length = max(self.states.shape[1], other.states.shape[1])
        self.states, self.mask = _widened(self.states, length), _widened(self.mask, length)
        self.states[row], self.mask[row] = _widened(other.states, length)[0], _widened(other.mask, length)[0]

    def take_rows(self, rows: Tensor) -> None:
        """The rows become these; a row may be repeated."""
        self.states, self.mask = self.states[rows], self.mask[rows]
        if len(self.cache.cross_attention_cache):
            self.cache.cross_attention_cache.batch_select_indices(rows)


@dataclass(slots=True)
class Store:
    """The part of a session that views of it share."""

    cache: SlotCache
    position: Tensor  # (B, M + 1) int64: the position each slot holds
    filled: Tensor  # (B,) int64: committed tokens
    longest: int = 0  # no row has more committed tokens
    bound_slack: int = 0  # by how much `longest` may be too large
    memory: Memory | None = None
    features: Tensor | None = None  # (B, M + 1, H) of the token in each slot, where somebody wants them

    def window(self, start: int, stop: int) -> "Store":
        """The rows from `start` to `stop`, in the same buffers."""
        features = None if self.features is None else self.features[start:stop]
        cache = self.cache.window(start, stop)
        memory = None if self.memory is None else self.memory.window(start, stop, cache)
        return Store(cache, self.position[start:stop], self.filled[start:stop], memory=memory, features=features)

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """The first `most` tokens of each source, or all if it has fewer, become those of the target."""
        source, target = (copy_to_device(rows, self.filled.device) for rows in (sources, targets))
        self.cache.copy_rows(source, target, most)
        for held in (self.position, self.features):
            if held is not None:
                _copy(held[:, :most], source, target)
        self.filled[target] = self.filled[source].clamp_max(most)
        if self.memory is not None:
            _copy(self.memory.states, source, target)
            _copy(self.memory.mask, source, target)

    def attended_slots(self, extra: int) -> int:
        """How many slots a call with `extra` scratch nodes looks at; asks the device when the bound is too loose."""
        if self.bound_slack and (self.bound_slack > _LOOSEST or self.longest + extra > self.cache.size):
            self.tighten()
        if self.longest + extra > self.cache.size:
            raise ArgumentError(
                f"the session has {self.cache.size} slots and {self.longest + extra} are needed; open a larger one, or "
                "let it grow"
            )
        return min(self.cache.size, round_up_16(self.longest + extra))

    def tighten(self) -> None:
        """Ask the device how far the rows are."""
        self.longest, self.bound_slack = int(self.filled.max()), 0

    def advance(self, counts: Tensor, most: int) -> None:
        """Rows committed `counts` (B,) more tokens, none more than `most`."""
        self.filled += counts  # in place: a captured step finds it there again
        self.longest, self.bound_slack = self.longest + most, self.bound_slack + most

    def cut(self, lengths: Tensor, most: int) -> None:
        """Rows forget what they committed beyond `lengths` (B,)."""
        self.filled.clamp_(max=lengths)  # in place, as above
        self.longest = min(self.longest, most)

    def take_rows(self, rows: Tensor) -> None:
        """The rows become these, in this order."""
        self.cache.take_rows(rows)
        self.position, self.filled = self.position[rows], self.filled[rows]
        if self.memory is not None:
            self.memory.take_rows(rows)
        if self.features is not None:
            self.features = self.features[rows]
        self.bound_slack = max(self.bound_slack, 1)  # the longest row may have left

    def add_rows(self, count: int) -> None:
        """Room for `count` rows in all, contents kept."""
        extra = count - self.filled.shape[0]
        self.cache.add_rows(count)
        self.position = torch.cat([self.position, self.position.new_zeros(extra, self.position.shape[1])])
        self.filled = torch.cat([self.filled, self.filled.new_zeros(extra)])
        if self.features is not None:
            self.features = torch.cat([self.features, self.features.new_zeros(extra, *self.features.shape[1:])])
        if self.memory is not None:
            for name in ("states", "mask"):
                held = getattr(self.memory, name)
                setattr(self.memory, name, torch.cat([held, held.new_zeros(extra, *held.shape[1:])]))

    def grow(self, slots: int) -> None:
        """Room for `slots` tokens a row, contents kept."""
        extra = self.position.new_zeros(self.position.shape[0], slots - self.cache.size)
        self.position = torch.cat([self.position, extra], 1)
        if self.features is not None:
            wider = self.features.new_zeros(self.features.shape[0], extra.shape[1], self.features.shape[2])
            self.features = torch.cat([self.features, wider], 1)
        self.cache.grow(slots)


@dataclass(slots=True)
class Session:
    """A store with scratch nodes of one's own. A view shares the store of its owner, who alone commits."""

    store: Store
    is_view: bool = False
    pending: int = 0  # scratch nodes scored since the last keep
    wants_features: bool = False
    extra_layers: Layers = ()  # layers whose outputs stand beside what entered the output layer
    features: Tensor | None = field(default=None, repr=False)  # (B, T, H) what entered the output layer, last call
    given: Tensor | None = field(default=None, repr=False)  # (B, T, H) what goes in with the tokens of the next call
    windows: dict[tuple[int, int], "Session"] = field(default_factory=dict, repr=False)
    prefill: "GraphPrefill | None" = field(default=None, repr=False)  # reads prompts where graphs are replayed
    name: Any = field(default=None, repr=False)  # by which other processes know it, where the model spans several

    def window(self, start: int, stop: int, longest: int = 0) -> "Session":
        """The rows from `start` to `stop`, of which none has more than `longest` tokens, in the same buffers: what is
        committed there is committed here. To be asked for again before every use, since rows come and grow."""
        key = (start, stop)
        if key not in self.windows:
            if len(self.windows) >= _WINDOWS:
                self.windows.clear()
            made = Session(self.store.window(start, stop), self.is_view, 0, self.wants_features, self.extra_layers)
            made.prefill = self.prefill
            self.windows[key] = made
        found = self.windows[key]
        found.pending, found.store.longest, found.store.bound_slack = 0, longest, 0
        return found

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """The first `most` tokens of each source, or all if it has fewer, become those of the target."""
        self.store.copy_rows(sources, targets, most)
        if self.store.memory is not None:
            self.windows.clear()  # they hold keys and values of sources

    def make_room(self, rows: int, slots: int) -> None:
        """Room for so many rows and tokens at least, contents kept."""
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
        """An upper bound of `filled`, known without asking the device."""
        return self.store.longest

    @property
    def cache(self) -> SlotCache:
        """Keys and values."""
        return self.store.cache

    @property
    def memory(self) -> Memory | None:
        """What the encoder made of the sources."""
        return self.store.memory

    @property
    def rows(self) -> int:
        """The rows of the batch."""
        return self.store.filled.shape[0]
