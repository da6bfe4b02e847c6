"""A head that drafts a whole block of tokens in one call per step, whatever the depth of the tree.

The head reads committed text with the target's features. The call of a step reads the pending tokens and scores the
block behind them; deeper nodes use the block's logits at their depth, corrected by their own token if the head can.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from spectr.draft.feature import FeatureDrafting
from spectr.draft.model import PendingTokens, session_slots
from spectr.draft.plan import Plan, Planned
from spectr.rows import cached_arange, pick_rows
from spectr.trees import Frontier
from spectr.types import Drafting, Layers, Opening, TreeModel

__all__ = ["BlockCorrection", "BlockDrafter"]


class BlockCorrection(Protocol):
    """Turns the logits and states of a block into the distributions of nodes."""

    def corrected(self, logits: Tensor, states: Tensor, tokens: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, M, V) after parents with `tokens` (B, M), from the logits (B, 1, U) and states (B, 1, H)
        of their depth and the path state (B, M, R) of each parent; and the new path states (B, M, R)."""
        ...

    def carried_from(self, states: Tensor, root: Tensor) -> Tensor:
        """Return the path state (B, 1, R) at the roots (B,), given the states (B, Q, H) of the block."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """The layout of a block: the root, then mask tokens, and which position predicts the first token."""

    size: int
    mask_token: int
    first: int  # 0: the root's own position; 1: the position behind it

    @property
    def depths(self) -> int:
        """How many tokens the block predicts."""
        return self.size - self.first


@dataclass(frozen=True, slots=True)
class BlockDrafter(Planned):
    """Drafts with a head that predicts a block of tokens from the target's features; the plan is no deeper than the
    block."""

    head: TreeModel
    correction: BlockCorrection
    block: Block
    target: TreeModel
    plan: Plan
    feature_layers: Layers = ()
    name: ClassVar[str] = "block"
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.plan.check_depth(self.block.depths, "as many as a block predicts")

    @property
    def deepest(self) -> int:
        """The deepest tree that the head can draft."""
        return self.block.depths

    def open(self, opening: Opening) -> Drafting:
        """Open a session of the head."""
        slots = session_slots(opening.slots, self.plan) + self.block.size
        session = self.head.open(opening.rows, slots, feature_layers=(), lasting=False)
        return _BlockDrafting(self, session, opening)


class _BlockDrafting(FeatureDrafting):
    """Reads text with the target's features, and scores a block behind it."""

    def __init__(self, drafter: BlockDrafter, session: Any, opening: Opening) -> None:
        super().__init__(drafter, session, opening)
        self.correction, self.block = drafter.correction, drafter.block
        self._block_logits: Tensor | None = None  # (B, D, U)
        self._states: Tensor | None = None  # (B, Q, H)
        self._carried: Tensor | None = None  # (B, S, R): path states of the nodes scored, the root first

    def make_room(self, rows: int, slots: int) -> None:
        """Allocate room in the head's session, including a block."""
        super().make_room(rows, slots + self.block.size)

    def _root_logits(self, pending: PendingTokens) -> Tensor:
        """Score the whole block, and return the logits after the root."""
        device, size, first = pending.tokens.device, self.block.size, self.block.first
        batch, width = pending.tokens.shape
        root = pending.tokens.gather(1, pending.count[:, None] - 1)
        masks = root.new_full((1, 1), self.block.mask_token).expand(batch, size - 1)
        tokens = torch.cat([pending.tokens, root, masks], 1)
        seen = torch.cat([pending.seen, pending.seen.new_ones(1, 1).expand(batch, size)], 1)
        depth = torch.cat(
            [cached_arange(width, device).expand(batch, -1), pending.count[:, None] + cached_arange(size, device)], 1
        )
        only = (first + cached_arange(self.plan.for_rows(batch).depth, device)).expand(batch, -1)
        ancestors = seen[:, None].expand(-1, width + size, -1)
        self._block_logits = self._score(tokens, ancestors, depth, only=only)
        self._states = self._window.features
        self._carried = self.correction.carried_from(self._window.features, root[:, 0])
        return self._node_logits(0, root, self._carried)

    def _logits_below(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        assert self._carried is not None
        return self._node_logits(frontier.depth, frontier.tokens, pick_rows(self._carried, frontier.parents))

    def _node_logits(self, depth: int, tokens: Tensor, carried: Tensor) -> Tensor:
        """Logits (B, M, V) after nodes with `tokens` (B, M) at a depth."""
        assert self._block_logits is not None
        assert self._states is not None
        at = self.block.first + depth
        logits, states = self._block_logits[:, depth : depth + 1], self._states[:, at : at + 1]
        logits, carried = self.correction.corrected(logits, states, tokens, carried)
        if depth > 0:
            assert self._carried is not None
            carried = torch.cat([self._carried, carried], 1)
        self._carried = carried
        return logits
