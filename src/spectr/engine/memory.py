"""The memory of a lane on the device: the state of its rows, the caches of target and drafter, captured graphs."""

from typing import Any

import torch

from spectr.draft.traits import DrafterTraits
from spectr.engine.parts import EngineParts
from spectr.engine.rows import Rows
from spectr.models.graphs import Captured
from spectr.types import Drafting, Opening

__all__ = ["LaneMemory", "rounded_slots"]

_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def rounded_slots(needed: int) -> int:
    """Round a number of slots up to one of few sizes, so that rows seldom grow."""
    return next((size for size in _SIZES if size >= needed), needed)


class LaneMemory:
    """Rows of `slots` tokens each; opened with the first request, grown when more is needed."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts, self.device = parts, parts.target.device
        self.rows: Rows | None = None
        self.session: Any = None  # the target's
        self.drafting: Drafting | None = None
        self.slots = 0
        self.graphs = Captured()  # valid for the tensors above, and dropped when those are replaced

    def __len__(self) -> int:
        """The number of rows that are allocated."""
        return 0 if self.rows is None else len(self.rows)

    def opened(self) -> tuple[Rows, Any, Drafting]:
        """Return the state of the rows, the target's session and the drafter's, which must be open."""
        assert self.rows is not None
        assert self.drafting is not None
        return self.rows, self.session, self.drafting

    def grow(self, rows: int, slots: int) -> None:
        """Allocate at least `rows` rows of `slots` tokens. Raise ArgumentError or OutOfMemoryError if memory is
        short."""
        if self.rows is None:
            self._open(rows, slots)
            return
        if rows <= len(self.rows) and slots <= self.slots:
            return
        rows = max(len(self.rows), 1 << (rows - 1).bit_length()) if rows > len(self.rows) else len(self.rows)
        rows, slots = min(rows, max(self.parts.rows, 1)), max(slots, self.slots)
        if self.parts.captures:
            self.graphs = Captured()  # before anything is allocated: graphs hold memory
        self.parts.target.make_room(self.session, rows, slots)
        self.opened()[2].make_room(rows, slots)
        self.rows.make_room(rows, slots)
        self.slots = slots

    def _open(self, rows: int, slots: int) -> None:
        if self.device.type == "cuda":
            rows, slots = max(rows, min(self.parts.min_rows, self.parts.rows)), max(slots, 1024)
        target, drafter = self.parts.target, self.parts.drafter
        with torch.inference_mode(False):
            session = target.open(rows, slots, feature_layers=DrafterTraits(drafter).feature_layers)
            if self.parts.captures:
                target.capture_prefill(session)
            opening = Opening(rows, slots, target.vocabulary, session, self.device, self.parts.captures)
            drafting = drafter.open(opening)
        self.rows = Rows(rows, slots, target.vocabulary, self.device, self.parts.policies)
        self.session, self.drafting, self.slots = session, drafting, slots

    def rounded_length(self, length: int) -> int:
        """Round a length up to one of few, at most `slots`, so that few graphs are captured."""
        return min(next((size for size in _SIZES if size >= length), self.slots), self.slots)

    def copy_caches(self, sources: list[int], targets: list[int], tokens: int) -> None:
        """Copy the first `tokens` tokens of the caches of target and drafter from rows to rows."""
        _, session, drafting = self.opened()
        self.parts.target.copy_rows(session, sources, targets, tokens)
        drafting.copy_rows(sources, targets, tokens)

    def close(self) -> None:
        """Free all memory."""
        self.rows = self.session = self.drafting = None
        self.slots = 0
        self.graphs = Captured()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
