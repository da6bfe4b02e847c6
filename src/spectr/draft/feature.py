"""A trained head over the target's features: the cheapest drafter that is close to its target.

Committed text is read with the target's true features; below the root the head's own expectation of the parent's
feature stands in. So accepted nodes are read again, with true features, in the first call of the next step.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.draft.model import Ahead, ModelDrafting
from spectr.draft.plan import Drawn, Plan, Planned
from spectr.rows import ladder, pick_rows
from spectr.trees import Frontier
from spectr.types import Drafting, Layers, Opening, Scene, TreeModel

__all__ = ["FeatureDrafter"]


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
        """Read the prompts but their last tokens, each with the feature of the token before."""
        room = (opening.room or opening.slots) + self.plan.scored
        session = self.head.open(len(opening.prompts), room, features=(), lasting=False)
        made = _FeatureDrafting(self, session, opening)
        made.fill(opening, 0)
        return made


class _FeatureDrafting(ModelDrafting):
    """Reads with true features, and goes down with expected ones."""

    def __init__(self, drafter: FeatureDrafter, session: Any, opening: Opening) -> None:
        super().__init__(drafter.head, drafter.plan, session, opening)
        self.target, self.source = drafter.target, opening.session
        self._expected: Tensor | None = None  # (B, S, H) of the nodes scored, the root first

    def _most(self, opening: Opening) -> int:
        """All: its positions are the target's."""
        return max(map(len, opening.prompts))

    def _read(self, texts: list[list[int]], start: int, opening: Opening) -> None:
        longest, device = max(map(len, texts)), self.target.device
        places = torch.arange(start - 1, start + longest - 1, device=device).expand(len(texts), -1)
        self.session.given = self.target.features_at(opening.session, places)
        self.model.read(self.session, texts)

    def _unread(self, scene: Scene) -> Ahead:
        ahead = super()._unread(scene)
        before = self.read[:, None] - 1
        places = before + ladder(ahead.tokens.shape[1], ahead.tokens.device)
        known = (self.read + ahead.count)[:, None] - 2  # the root's own feature is to come
        self.session.given = self.target.features_at(self.source, torch.minimum(places, known))
        return ahead

    def _first(self, ahead: Ahead) -> Tensor:
        logits = super()._first(ahead)
        self._expected = pick_rows(self.session.features, ahead.count[:, None] - 1)
        return logits

    def _deeper(self, ahead: Ahead, frontier: Frontier) -> Tensor:
        assert self._expected is not None
        self.session.given = pick_rows(self._expected, frontier.parents)
        logits = super()._deeper(ahead, frontier)
        self._expected = torch.cat([self._expected, self.session.features], 1)
        return logits

    def _kept(self, path: Tensor, drawn: Drawn, width: int) -> Tensor:
        """None: they are read again, with true features."""
        return torch.full_like(path, -1)
