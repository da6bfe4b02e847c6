"""A trained head over the target's features: the cheapest drafter that is close to its target.

Committed text is read with the target's true features; below the root the head's own expectation of the parent's
feature stands in. So accepted nodes are read again, with true features, in the first call of the next step.
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


@dataclass(frozen=True, slots=True)
class FeatureDrafter(Planned):
    """A head that is driven like a model and takes features with its tokens, the target they come from, and a plan."""

    head: TreeModel
    target: TreeModel
    plan: Plan
    wants_features: Layers = ()  # of the target, beside what enters its output layer
    name: ClassVar[str] = "feature"
    capturable: ClassVar[bool] = True

    def open(self, opening: Opening) -> Drafting:
        """Room for the rows in a session of its own."""
        slots = session_slots(opening.slots, self.plan)
        session = self.head.open(opening.rows, slots, features=(), lasting=False)
        return FeatureDrafting(self, session, opening)


class Reading(Protocol):
    """A drafter whose head reads the features of a target."""

    @property
    def head(self) -> TreeModel:
        """Driven like a model; takes features with its tokens."""
        ...

    @property
    def target(self) -> TreeModel:
        """Whose features they are."""
        ...

    @property
    def plan(self) -> Plan:
        """Of its trees."""
        ...


class FeatureDrafting(ModelDrafting):
    """Reads with true features, and goes down with expected ones."""

    def __init__(self, drafter: Reading, session: Any, opening: Opening) -> None:
        super().__init__(drafter.head, drafter.plan, session, opening)
        self.target, self.source = drafter.target, opening.session
        self._expected: Tensor | None = None  # (B, S, H) of the nodes scored, the root first

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> bool:
        """All of the text is read: its positions are the target's."""
        return super().begin(row, text, len(text), None)

    def _read(self, window: Any, first: int, texts: list[list[int]], starts: list[int]) -> None:
        places = (
            cached_arange(max(map(len, texts)), self.target.device)
            + copy_to_device(starts, self.target.device)[:, None]
        )
        features = self.target.window(self.source, first, first + len(texts), 0)
        window.input_features = self.target.features_at(features, places - 1)
        self.model.read(window, texts, starts)

    def _pending_tokens(self, scene: Scene) -> PendingTokens:
        pending = super()._pending_tokens(scene)
        start = (scene.texts.length - pending.count)[:, None]
        places = start + cached_arange(pending.tokens.shape[1], start.device) - 1
        known = scene.texts.length[:, None] - 2  # the root's own feature is to come
        features = self.target.window(self.source, 0, len(scene.root), scene.longest)
        self._window.input_features = self.target.features_at(features, torch.minimum(places, known))
        return pending

    def _first(self, pending: PendingTokens) -> Tensor:
        logits = super()._first(pending)
        self._expected = pick_rows(self._window.features, pending.count[:, None] - 1)
        return logits

    def _deeper(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        assert self._expected is not None
        self._window.input_features = pick_rows(self._expected, frontier.parents)
        logits = super()._deeper(pending, frontier)
        self._expected = torch.cat([self._expected, self._window.features], 1)
        return logits

    def _kept(self, path: Tensor, drawn: Drawn, width: int) -> Tensor:
        """None: they are read again, with true features."""
        return torch.full_like(path, -1)
