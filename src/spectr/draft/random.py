"""Drafts at random: every token alike. The worst drafter there is, to show that a rule does not mind."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from spectr.draft.plan import Plan, draw
from spectr.draft.stateless import Stateless
from spectr.types import Drafting, Opening, Siblings

__all__ = ["RandomDrafter"]


@dataclass(frozen=True, slots=True)
class RandomDrafter:
    """The uniform law."""

    plan: Plan
    name: ClassVar[str] = "random"

    @property
    def siblings(self) -> Siblings:
        """As planned."""
        return self.plan.siblings

    @property
    def nodes(self) -> int:
        """As planned."""
        return self.plan.capacity

    @property
    def gives_laws(self) -> bool:
        """Unless the tree is pruned."""
        return not self.plan.prunes

    def open(self, opening: Opening) -> Drafting:
        """Nothing to prepare but the size of the vocabulary."""
        size = opening.vocabulary
        return Stateless(
            lambda scene: (
                draw(
                    self.plan,
                    scene,
                    lambda frontier: torch.zeros(*frontier.tokens.shape, size, device=scene.root.device),
                ).draft
            )
        )
