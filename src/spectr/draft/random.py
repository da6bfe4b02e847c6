"""Drafts at random: every token alike. The worst drafter there is, to show that a rule does not mind."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from spectr.draft.plan import Plan, Planned, draw
from spectr.draft.stateless import Stateless
from spectr.types import Drafting, Opening

__all__ = ["RandomDrafter"]


@dataclass(frozen=True, slots=True)
class RandomDrafter(Planned):
    """The uniform law."""

    plan: Plan
    name: ClassVar[str] = "random"
    capturable: ClassVar[bool] = True

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
