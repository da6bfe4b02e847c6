"""A trained head on the target's hidden states (features): the cheapest drafter that is close to its target.

The head reads committed text with the target's own features. Below the root it uses its own prediction of the parent's
feature instead, so accepted nodes are read again, with the target's features, in the first call of the next step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from spectr.draft.model import ModelDrafting, PendingTokens, session_slots
from spectr.draft.plan import Drawn, Plan, Planned
from spectr.rows import cached_arange, copy_to_device, pick_rows
from spectr.trees import Frontier
from spectr.types import Drafting, Layers, Opening, Scene, TreeModel

__all__ = ["FeatureDrafter", "FeatureDrafting"]

_BUSY_READS = 64
"""How many of the last tokens of a prompt a head reads while many rows are in use. After long prompts it drafts up to a
tenth fewer tokens than if it read all, and reading all takes two thirds as long as the target's prefill."""


@dataclass(frozen=True, slots=True)
class FeatureDrafter(Planned):
    """Drafts with a head that is called like a model, and that takes the target's features with its tokens."""

    head: TreeModel
    target: TreeModel
    plan: Plan
    feature_layers: Layers = ()  # layers of the target, besides the input of its output layer
    busy_reads: int | None = _BUSY_READS  # tokens of a prompt that are read while many rows are in use; None: all
    busy_rows: int = 8  # how many rows are many
    name: ClassVar[str] = "feature"
    capturable: ClassVar[bool] = True

    def open(self, opening: Opening) -> Drafting:
        """Open a session of the head."""
        slots = session_slots(opening.slots, self.plan)
        session = self.head.open(opening.rows, slots, feature_layers=(), lasting=False)
        busy = None
        if self.busy_reads is not None and self.plan.siblings == "race":  # texts of other rules depend on their drafts
            busy = (self.busy_rows, self.busy_reads)
        return FeatureDrafting(self, session, opening, busy)


class HeadDrafter(Protocol):
    """A drafter whose head reads the features of a target."""

    @property
    def head(self) -> TreeModel:
        """The head: called like a model, with features for its tokens."""
        ...

    @property
    def target(self) -> TreeModel:
        """The target that the features come from."""
        ...

    @property
    def plan(self) -> Plan:
        """The plan of its trees."""
        ...


class FeatureDrafting(ModelDrafting):
    """Reads text with the target's features, and scores nodes with predicted ones."""

    def __init__(
        self, drafter: HeadDrafter, session: Any, opening: Opening, busy: tuple[int, int] | None = None
    ) -> None:
        super().__init__(drafter.head, drafter.plan, session, opening)
        self.target, self.target_session = drafter.target, opening.session
        self._busy = busy  # from this row on, at most so many tokens of a prompt are read
        self._predicted: Tensor | None = None  # (B, S, H): features of the nodes scored, the root first

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Begin a row. The rows before it are in use; if they are many, only the end of the text is read."""
        most = self.model.context
        if self._busy is not None and row >= self._busy[0]:
            most = min(most, self._busy[1])
        self._read_last(row, text, most)

    def _read(self, window: Any, first: int, texts: list[list[int]], slots: list[int]) -> None:
        device = self.target.device
        starts = [slot + skip for slot, skip in zip(slots, self._skipped[first:], strict=False)]
        ends = [start + len(text) for start, text in zip(starts, texts, strict=True)]
        places = cached_arange(max(map(len, texts)), device) + copy_to_device(starts, device)[:, None]
        known = torch.minimum(places, copy_to_device(ends, device)[:, None])  # beyond it is padding
        features = self.target.window(self.target_session, first, first + len(texts), 0)
        window.input_features = self.target.features_at(features, known - 1)
        self.model.read(window, texts, slots)

    def _pending_tokens(self, scene: Scene) -> PendingTokens:
        pending = super()._pending_tokens(scene)
        start = (scene.texts.length - pending.count)[:, None]
        places = start + cached_arange(pending.tokens.shape[1], start.device) - 1
        known = scene.texts.length[:, None] - 2  # the root's own feature is computed by the next target call
        features = self.target.window(self.target_session, 0, len(scene.root), scene.longest)
        self._window.input_features = self.target.features_at(features, torch.minimum(places, known))
        return pending

    def _root_logits(self, pending: PendingTokens) -> Tensor:
        logits = super()._root_logits(pending)
        self._predicted = pick_rows(self._window.features, pending.count[:, None] - 1)
        return logits

    def _logits_below(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        assert self._predicted is not None
        self._window.input_features = pick_rows(self._predicted, frontier.parents)
        logits = super()._logits_below(pending, frontier)
        self._predicted = torch.cat([self._predicted, self._window.features], 1)
        return logits

    def _reusable(self, path: Tensor, drawn: Drawn, width: int) -> Tensor:
        """No accepted node is reusable: all are read again, with the target's features."""
        return torch.full_like(path, -1)
