"""A head that drafts several tokens in one causal pass as the drafter: one call a step, whatever the depth of the tree.

Committed text is read with the target's true features. The step's first call reads what is unread, and mask tokens
behind it, of which the head knows no features: the root gives the law of the next token, and each mask that of one
token further. The law of a depth is the same for all its nodes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.draft.feature import FeatureDrafting
from spectr.draft.model import PendingTokens, session_slots
from spectr.draft.plan import Plan, Planned
from spectr.errors import ArgumentError
from spectr.rows import cached_arange
from spectr.trees import Frontier
from spectr.types import Drafting, Layers, Opening, TreeModel

__all__ = ["MaskedDrafter"]


@dataclass(frozen=True, slots=True)
class MaskedDrafter(Planned):
    """A head that is driven like a model and fills in features of its own where none are given, its mask token, the
    target whose features it reads, and a plan no deeper than it was trained for."""

    head: TreeModel
    mask_token: int
    deepest: int
    target: TreeModel
    plan: Plan
    wants_features: Layers = ()
    name: ClassVar[str] = "masked"
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.plan.depth > self.deepest:
            raise ArgumentError(
                f"drafts must be at most {self.deepest} tokens long, as many as the head was trained for, got "
                f"{self.plan.depth}; lower length, or the depth of tree"
            )

    def open(self, opening: Opening) -> Drafting:
        """Room for the rows in a session of its own."""
        slots = session_slots(opening.slots, self.plan) + self.deepest
        session = self.head.open(opening.rows, slots, features=(), lasting=False)
        return _MaskedDrafting(self, session, opening)


class _MaskedDrafting(FeatureDrafting):
    """Reads with true features, and scores masks behind them."""

    def __init__(self, drafter: MaskedDrafter, session: Any, opening: Opening) -> None:
        super().__init__(drafter, session, opening)
        self.mask_token, self.deepest = drafter.mask_token, drafter.deepest
        self._laws: Tensor | None = None  # (B, D, V) raw logits by depth

    def make_room(self, rows: int, slots: int) -> None:
        """In a session of its own."""
        super().make_room(rows, slots + self.deepest)

    def _first(self, pending: PendingTokens) -> Tensor:
        """After the root: all depths are scored."""
        device, more = pending.tokens.device, self.plan.for_rows(len(pending.tokens)).depth - 1
        batch, width = pending.tokens.shape
        places, masks = cached_arange(width, device), cached_arange(more, device)
        tokens = torch.cat([pending.tokens, pending.tokens.new_full((1, 1), self.mask_token).expand(batch, more)], 1)
        text = torch.cat([places[:, None] >= places, pending.seen.new_zeros(width, more)], 1).expand(batch, -1, -1)
        behind = (masks[:, None] >= masks).expand(batch, -1, -1)
        below = torch.cat([pending.seen[:, None].expand(-1, more, -1), behind], 2)
        depth = torch.cat([places.expand(batch, -1), pending.count[:, None] + masks], 1)
        only = torch.cat([pending.count[:, None] - 1, (width + masks).expand(batch, -1)], 1)
        self._laws = self._score(tokens, torch.cat([text, below], 1), depth, only=only)
        return self._laws[:, :1]

    def _deeper(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        assert self._laws is not None
        at = frontier.depth
        return self._laws[:, at : at + 1].expand(-1, frontier.tokens.shape[1], -1)
