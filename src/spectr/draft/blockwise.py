"""Parallel heads as the drafter: the laws of all depths in one call, the same for every node of a depth."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from spectr.draft.plan import Plan, Planned, draw
from spectr.draft.stateless import Stateless
from spectr.errors import ArgumentError
from spectr.types import Draft, Drafting, Layers, Opening, Scene, TreeModel

__all__ = ["Blockwise"]


class Heads(Protocol):
    """What guesses several tokens ahead."""

    @property
    def deepest(self) -> int | None:
        """How many."""
        ...

    def ahead(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Logits (B, D, V) below roots (B,), given the features (B, H) of the tokens before them."""
        ...


@dataclass(frozen=True, slots=True)
class Blockwise(Planned):
    """Heads, the target whose features they read, and a plan no deeper than they reach."""

    heads: Heads
    target: TreeModel
    plan: Plan
    name: ClassVar[str] = "blockwise"
    wants_features: ClassVar[Layers] = ()
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        depth = self.plan.length if self.plan.prunes else self.plan.shape.depth
        if self.heads.deepest is not None and depth > self.heads.deepest:
            raise ArgumentError(
                f"drafts must be at most {self.heads.deepest} tokens long, as many as there are heads, got {depth}"
            )

    def open(self, opening: Opening) -> Drafting:
        """All that is remembered is in the target's session."""
        return Stateless(lambda scene: self._propose(scene, opening.session))

    def _propose(self, scene: Scene, session: Any) -> Draft:
        window = self.target.window(session, 0, len(scene.root), scene.longest)
        with torch.no_grad():
            logits = self.heads.ahead(
                scene.root, self.target.features_at(window, scene.texts.length[:, None] - 2)[:, 0]
            )
        return draw(
            self.plan, scene, lambda frontier: logits[:, frontier.depth, None].expand(-1, frontier.tokens.shape[1], -1)
        ).draft
