"""No drafter: plain decoding by the same step."""

from typing import ClassVar

import torch

from spectr.draft.stateless import Stateless
from spectr.types import Draft, Drafting, Opening, Scene, Siblings

__all__ = ["NoDrafter"]


class NoDrafter:
    """Drafts nothing: every tree is its root."""

    name: ClassVar[str] = "none"
    gives_laws: ClassVar[bool] = False
    capturable: ClassVar[bool] = True
    siblings: ClassVar[Siblings] = "fixed"
    nodes: int = 1

    def open(self, opening: Opening) -> Drafting:
        """Return a drafting without state."""
        return Stateless(self.propose)

    def propose(self, scene: Scene) -> Draft:
        """Return the roots as a draft."""
        tokens = scene.root[:, None]
        alive = torch.ones_like(tokens, dtype=torch.bool)
        return Draft(tokens, torch.zeros_like(tokens), alive, ~alive, None, "fixed", 1, 1)
