"""The target's first layers as the drafter, in the target's own cache: nothing is loaded, and no text is read twice.

The cache of the first layers is the target's. Scratch nodes are written behind the committed text, where the target's
own call overwrites them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.draft.plan import Plan, Planned, draw
from spectr.draft.stateless import Stateless
from spectr.trees import Frontier
from spectr.types import Draft, Drafting, Opening, Scene, TreeModel

__all__ = ["EarlyExit"]


@dataclass(frozen=True, slots=True)
class EarlyExit(Planned):
    """Drafts with a model made of the target's first layers."""

    model: TreeModel
    plan: Plan
    name: ClassVar[str] = "early_exit"
    capturable: ClassVar[bool] = True

    @property
    def scratch_slots(self) -> int:
        """Slots for the tree, or for the nodes that are scored while it is drawn if these are more."""
        return max(self.plan.capacity, self.plan.scored)

    def open(self, opening: Opening) -> Drafting:
        """Open nothing: the drafter uses the target's session."""
        return Stateless(lambda scene: self._propose(scene, opening.session))

    def _propose(self, scene: Scene, session: Any) -> Draft:
        own = self.model.share(self.model.window(session, 0, len(scene.root), scene.longest))

        def logits_of(frontier: Frontier) -> Tensor:
            depth = torch.full_like(frontier.tokens, frontier.depth)
            return self.model.score(own, frontier.tokens, frontier.ancestors, depth)

        return draw(self.plan, scene, logits_of).draft
