"""The grammars of the rows that take part in a step: the host walks the trees while the device scores them."""

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
    """Where each row's text stands in its grammar, None for a row without one."""

    walks: Sequence[GrammarWalk | None]
    vocabulary: int
    device: torch.device
    masks_all_drafts: bool  # those below the first depth, too: the host walks once for each depth, and the device waits

    def of_drafts(self, paths: Tensor) -> Tensor | None:
        """Masks (B, M, W) after nodes that are about to be drafted from, with paths (B, M, D); None for no masks."""
        if paths.shape[-1] and not self.masks_all_drafts:
            return None
        rows, nodes = paths.shape[:2]
        known = paths.tolist() if paths.shape[-1] else [[[]] * nodes] * rows  # asks the device for no empty paths
        return self._walked(known).to(self.device, non_blocking=True)

    def send(self, paths: Tensor) -> "PendingMasks":
        """Begin with the masks after nodes with paths (B, N, D): they are copied to the host before whatever the device
        is given next."""
        if paths.device.type != "cuda":
            return PendingMasks(self, paths)
        held = torch.empty(paths.shape, dtype=paths.dtype, pin_memory=True).copy_(paths, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return PendingMasks(self, held, event)

    def _walked(self, paths: list[list[list[int]]]) -> Tensor:
        """(B, M, W) int32 on the host: all tokens for rows without a grammar. In pinned memory where it has to be
        sent."""
        shape = (len(paths), len(paths[0]), words(self.vocabulary))
        found = torch.full(shape, -1, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        for row, walk in enumerate(self.walks):
            if walk is not None:
                walk.masks([[token for token in path if token >= 0] for path in paths[row]], out=found[row])
        return found


@dataclass(frozen=True, slots=True)
class PendingMasks:
    """Paths on their way to the host."""

    grammars: RowGrammars
    paths: Tensor
    event: Any = None

    def walk(self) -> Tensor:
        """(B, N, W) int32: the masks, once the paths are there."""
        if self.event is not None:
            self.event.synchronize()
        return self.grammars._walked(self.paths.tolist()).to(self.grammars.device, non_blocking=True)
