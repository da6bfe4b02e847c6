"""The grammars of the rows that take part in a step: the host computes masks while the device scores the trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.grammar import GrammarWalk
from spectr.grammar.masks import words

__all__ = ["PendingMasks", "RowGrammars"]


@dataclass(frozen=True, slots=True)
class RowGrammars:
    """The position of each row's text in its grammar; None for a row without one."""

    walks: Sequence[GrammarWalk | None]
    vocabulary: int
    device: torch.device
    masks_all_drafts: bool  # also below the first depth, where the device waits for the host at every depth

    def of_drafts(self, paths: Tensor) -> Tensor | None:
        """Return masks (B, M, W) for drafting after nodes with paths (B, M, D); None if drafts are not masked
        there."""
        if paths.shape[-1] and not self.masks_all_drafts:
            return None
        rows, nodes = paths.shape[:2]
        known = paths.tolist() if paths.shape[-1] else [[[]] * nodes] * rows  # empty paths need no copy from the device
        return self._masks(known).to(self.device, non_blocking=True)

    def send(self, paths: Tensor) -> "PendingMasks":
        """Start copying paths (B, N, D) to the host, ahead of what is queued on the device next."""
        if paths.device.type != "cuda":
            return PendingMasks(self, paths)
        copy = torch.empty(paths.shape, dtype=paths.dtype, pin_memory=True).copy_(paths, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return PendingMasks(self, copy, event)

    def _masks(self, paths: list[list[list[int]]]) -> Tensor:
        """Return masks (B, M, W) int32 on the host, in pinned memory if they go to a GPU. Rows without a grammar allow
        all tokens."""
        shape = (len(paths), len(paths[0]), words(self.vocabulary))
        masks = torch.full(shape, -1, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        for row, walk in enumerate(self.walks):
            if walk is not None:
                walk.masks([[token for token in path if token >= 0] for path in paths[row]], out=masks[row])
        return masks


@dataclass(frozen=True, slots=True)
class PendingMasks:
    """Paths that are being copied to the host."""

    grammars: RowGrammars
    paths: Tensor
    event: Any = None

    def walk(self) -> Tensor:
        """Wait for the paths and return the masks (B, N, W) int32 on the device."""
        if self.event is not None:
            self.event.synchronize()
        return self.grammars._masks(self.paths.tolist()).to(self.grammars.device, non_blocking=True)
