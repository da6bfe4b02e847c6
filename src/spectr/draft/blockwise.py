"""Parallel heads as the drafter: one call gives a distribution for each depth, shared by all nodes of the depth."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from spectr.draft.plan import Plan, Planned, draw
from spectr.draft.stateless import Stateless
from spectr.trees import Frontier
from spectr.types import Draft, Drafting, Layers, Opening, Scene, TreeModel

__all__ = ["Blockwise"]


class Heads(Protocol):
    """Heads that predict several tokens ahead."""

    @property
    def deepest(self) -> int | None:
        """How many tokens the heads predict; None: any number."""
        ...

    def ahead(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return logits (B, D, V) for the tokens after roots (B,), given the features (B, H) of the tokens before
        them."""
        ...


@dataclass(frozen=True, slots=True)
class Blockwise(Planned):
    """Drafts with parallel heads on the target's features; the plan is no deeper than there are heads."""

    heads: Heads
    target: TreeModel
    plan: Plan
    name: ClassVar[str] = "blockwise"
    feature_layers: ClassVar[Layers] = ()
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.heads.deepest is not None:
            self.plan.check_depth(self.heads.deepest, "as many as there are heads")

    @property
    def deepest(self) -> int | None:
        """The deepest tree that the heads can draft; None: any depth."""
        return self.heads.deepest

    def open(self, opening: Opening) -> Drafting:
        """Open nothing: the features are in the target's session."""
        return Stateless(lambda scene: self._propose(scene, opening.session))

    def _propose(self, scene: Scene, session: Any) -> Draft:
        window = self.target.window(session, 0, len(scene.root), scene.longest)
        with torch.no_grad():
            features = self.target.features_at(window, scene.texts.length[:, None] - 2)[:, 0]
            logits = self.heads.ahead(scene.root, features)  # (B, D, V)

        def logits_of(frontier: Frontier) -> Tensor:
            return logits[:, frontier.depth, None].expand(-1, frontier.tokens.shape[1], -1)

        return draw(self.plan, scene, logits_of).draft
