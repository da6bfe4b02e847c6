"""What a target remembers of a batch of rows: buffers, positions, and how far each row has come.

A row's committed tokens fill its slots 0, 1, 2, … in order; scratch nodes stand in the slots after them. The counts
live on the device; the host knows an upper bound of them, so that a step needs no answer from the device.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache

from spectr.errors import ArgumentError
from spectr.models.cache import SlotCache
from spectr.types import Layers

__all__ = ["Memory", "Session", "Store", "even"]

_SLACK = 64  # slots a call may look at in vain before the host asks how far the rows really are
_EVEN = 16


def even(slots: int) -> int:
    """At least so many: rows of a mask that begin evenly are read in fewer goes.

    >>> even(33)
    48
    """
    return -(-slots // _EVEN) * _EVEN


@dataclass(slots=True)
class Memory:
    """What an encoder made of the sources; the keys and values of it appear at the first decoder call."""

    states: Tensor  # (B, S, H)
    mask: Tensor  # (B, S) int64: 1 where there is source
    cache: EncoderDecoderCache

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
    slack: int = 0  # by how much `longest` may be too large
    memory: Memory | None = None
    features: Tensor | None = None  # (B, M + 1, H) of the token in each slot, where somebody wants them

    def used(self, extra: int) -> int:
        """How many slots a call with `extra` scratch nodes looks at; asks the device when the bound is too loose."""
        if self.slack and (self.slack > _SLACK or self.longest + extra > self.cache.size):
            self.tighten()
        if self.longest + extra > self.cache.size:
            raise ArgumentError(
                f"the session has {self.cache.size} slots and {self.longest + extra} are needed; open a larger one, or "
                "let it grow"
            )
        return min(self.cache.size, even(self.longest + extra))

    def tighten(self) -> None:
        """Ask the device how far the rows are."""
        self.longest, self.slack = int(self.filled.max()), 0

    def advance(self, counts: Tensor, most: int) -> None:
        """Rows committed `counts` (B,) more tokens, none more than `most`."""
        self.filled += counts  # in place: a captured step finds it there again
        self.longest, self.slack = self.longest + most, self.slack + most

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
        self.slack = max(self.slack, 1)  # the longest row may have left

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
    beside: Layers = ()  # layers whose outputs stand beside what entered the output layer
    features: Tensor | None = field(default=None, repr=False)  # (B, T, H) what entered the output layer, last call
    given: Tensor | None = field(default=None, repr=False)  # (B, T, H) what goes in with the tokens of the next call

    def assume(self, longest: int) -> None:
        """Take it that no row has more than `longest` committed tokens, whatever the host has counted: a captured call
        looks at as many slots each time."""
        self.store.longest, self.store.slack, self.pending = longest, 0, 0

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
