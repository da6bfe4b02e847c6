"""A head that drafts several tokens in one causal pass: one call per step, whatever the depth of the tree.

The head reads committed text with the target's features. The call of a step reads the pending tokens and then mask
tokens, which have no features. The root predicts the next token, and each mask predicts one token further. All nodes of
a depth have the same distribution.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.draft.feature import FeatureDrafting
from spectr.draft.model import PendingTokens, session_slots
from spectr.draft.plan import Plan, Planned
from spectr.rows import cached_arange
from spectr.trees import Frontier
from spectr.types import Drafting, Layers, Opening, TreeModel

__all__ = ["MaskedDrafter"]


@dataclass(frozen=True, slots=True)
class MaskedDrafter(Planned):
    """Drafts with a head that predicts several tokens at mask tokens, where it uses learnt features; the plan is no
    deeper than the head was trained for."""

    head: TreeModel
    mask_token: int
    deepest: int
    target: TreeModel
    plan: Plan
    feature_layers: Layers = ()
    name: ClassVar[str] = "masked"
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.plan.check_depth(self.deepest, "as many as the head was trained for")

    def open(self, opening: Opening) -> Drafting:
        """Open a session of the head."""
        slots = session_slots(opening.slots, self.plan) + self.deepest
        session = self.head.open(opening.rows, slots, feature_layers=(), lasting=False)
        return _MaskedDrafting(self, session, opening)


class _MaskedDrafting(FeatureDrafting):
    """Reads text with the target's features, and scores masks behind it."""

    def __init__(self, drafter: MaskedDrafter, session: Any, opening: Opening) -> None:
        super().__init__(drafter, session, opening)
        self.mask_token, self.deepest = drafter.mask_token, drafter.deepest
        self._depth_logits: Tensor | None = None  # (B, D, V)

    def make_room(self, rows: int, slots: int) -> None:
        """Allocate room in the head's session, including the masks."""
        super().make_room(rows, slots + self.deepest)

    def _root_logits(self, pending: PendingTokens) -> Tensor:
        """Score all depths, and return the logits after the root."""
        device, more = pending.tokens.device, self.plan.for_rows(len(pending.tokens)).depth - 1
        batch, width = pending.tokens.shape
        places, masks = cached_arange(width, device), cached_arange(more, device)
        tokens = torch.cat([pending.tokens, pending.tokens.new_full((1, 1), self.mask_token).expand(batch, more)], 1)
        text = torch.cat([places[:, None] >= places, pending.seen.new_zeros(width, more)], 1).expand(batch, -1, -1)
        behind = (masks[:, None] >= masks).expand(batch, -1, -1)
        below = torch.cat([pending.seen[:, None].expand(-1, more, -1), behind], 2)
        depth = torch.cat([places.expand(batch, -1), pending.count[:, None] + masks], 1)
        only = torch.cat([pending.count[:, None] - 1, (width + masks).expand(batch, -1)], 1)
        self._depth_logits = self._score(tokens, torch.cat([text, below], 1), depth, only=only)
        return self._depth_logits[:, :1]

    def _logits_below(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        assert self._depth_logits is not None
        at = frontier.depth
        return self._depth_logits[:, at : at + 1].expand(-1, frontier.tokens.shape[1], -1)
