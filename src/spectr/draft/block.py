"""A head that drafts a whole block as the drafter: one call a step, whatever the depth of the tree.

Committed text is read with the target's true features. The step's first call reads what is unread and scores the block
behind it; deeper nodes take the block's logits of their depth, corrected by their own token where the head can.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from spectr.draft.feature import FeatureDrafting
from spectr.draft.model import PendingTokens, session_slots
from spectr.draft.plan import Plan, Planned
from spectr.errors import ArgumentError
from spectr.rows import cached_arange, pick_rows
from spectr.trees import Frontier
from spectr.types import Drafting, Layers, Opening, TreeModel

__all__ = ["BlockDrafter", "BlockLaws"]


class BlockLaws(Protocol):
    """What makes laws of a block's logits and states."""

    def corrected(self, logits: Tensor, states: Tensor, tokens: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, M, V) after parents with `tokens` (B, M), from logits (B, 1, U) and states (B, 1, H) of their
        depth and what their paths carry (B, M, R); and what is carried on."""
        ...

    def carried_from(self, states: Tensor, root: Tensor) -> Tensor:
        """What a path carries (B, 1, R) at its root (B,), given the states (B, Q, H) of the block."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens of a block: the root, then masks; and the first place that gives a law."""

    size: int
    mask_token: int
    first: int  # 0: the root's own place; 1: the place behind it

    @property
    def depths(self) -> int:
        """How many tokens it gives laws of."""
        return self.size - self.first


@dataclass(frozen=True, slots=True)
class BlockDrafter(Planned):
    """A head that is driven like a model, what makes laws of its block, the target whose features it reads, and a plan
    no deeper than the block."""

    head: TreeModel
    laws: BlockLaws
    block: Block
    target: TreeModel
    plan: Plan
    wants_features: Layers = ()
    name: ClassVar[str] = "block"
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.plan.depth > self.block.depths:
            raise ArgumentError(
                f"drafts must be at most {self.block.depths} tokens long, as many as a block gives, got "
                f"{self.plan.depth}; lower length, or the depth of tree"
            )

    @property
    def deepest(self) -> int:
        """As many depths as the block gives laws of."""
        return self.block.depths

    def open(self, opening: Opening) -> Drafting:
        """Room for the rows in a session of its own."""
        slots = session_slots(opening.slots, self.plan) + self.block.size
        session = self.head.open(opening.rows, slots, features=(), lasting=False)
        return _BlockDrafting(self, session, opening)


class _BlockDrafting(FeatureDrafting):
    """Reads with true features, and scores a block behind them."""

    def __init__(self, drafter: BlockDrafter, session: Any, opening: Opening) -> None:
        super().__init__(drafter, session, opening)
        self.laws, self.block = drafter.laws, drafter.block
        self._logits_of_block: Tensor | None = None  # (B, D, U)
        self._states: Tensor | None = None  # (B, Q, H)
        self._carried: Tensor | None = None  # (B, S, R) of the nodes scored, the root first

    def make_room(self, rows: int, slots: int) -> None:
        """In a session of its own."""
        super().make_room(rows, slots + self.block.size)

    def _first(self, pending: PendingTokens) -> Tensor:
        """After the root: the whole block is scored."""
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
        self._logits_of_block = self._score(tokens, ancestors, depth, only=only)
        self._states = self._window.features
        self._carried = self.laws.carried_from(self._window.features, root[:, 0])
        return self._law(0, root, self._carried)

    def _deeper(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        assert self._carried is not None
        return self._law(frontier.depth, frontier.tokens, pick_rows(self._carried, frontier.parents))

    def _law(self, depth: int, tokens: Tensor, carried: Tensor) -> Tensor:
        """Logits (B, M, V) after nodes with `tokens` (B, M) at a depth."""
        assert self._logits_of_block is not None
        assert self._states is not None
        at = self.block.first + depth
        logits, states = self._logits_of_block[:, depth : depth + 1], self._states[:, at : at + 1]
        found, carried = self.laws.corrected(logits, states, tokens, carried)
        self._carried = carried if depth == 0 else torch.cat([self._paths(), carried], 1)
        return found

    def _paths(self) -> Tensor:
        """What the nodes scored so far carry."""
        assert self._carried is not None
        return self._carried
