"""Drafts tokens at random, uniformly: the worst possible drafter, which shows that rules stay exact."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectr.draft.plan import Plan, Planned, draw
from spectr.draft.stateless import Stateless
from spectr.trees import Frontier
from spectr.types import Drafting, Opening

__all__ = ["RandomDrafter"]


@dataclass(frozen=True, slots=True)
class RandomDrafter(Planned):
    """Drafts from the uniform distribution."""

    plan: Plan
    name: ClassVar[str] = "random"
    capturable: ClassVar[bool] = True

    def open(self, opening: Opening) -> Drafting:
        """Return a drafting without state."""

        def logits_of(frontier: Frontier) -> Tensor:
            return torch.zeros(*frontier.tokens.shape, opening.vocabulary, device=frontier.tokens.device)

        return Stateless(lambda scene: draw(self.plan, scene, logits_of).draft)
