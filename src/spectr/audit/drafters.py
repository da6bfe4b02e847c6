"""Adversarial drafters, under which a rule must stay lossless.

Scripted drafters draft fixed sets that depend on the text alone. Bent drafters draw from a distribution as a model
does, but that distribution is the target's own, its opposite, uniform, or a single token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spectr.audit.replay import Bent, Words
from spectr.audit.setup import Setup, plan_for
from spectr.draft import drafter as named_drafter
from spectr.draft.stateless import Stateless
from spectr.draft.trie import draft_of_paths
from spectr.types import Draft, Drafter, Drafting, Opening, Scene, Siblings
from spectr.verify import Card

__all__ = ["Dead", "Scripted", "bent_drafters", "scripted_drafters"]

Script = Callable[[list[int]], Sequence[Words]]
"""Maps the text so far to the continuations to draft."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """A drafter that drafts the continuations of a script."""

    name: str
    script: Script
    nodes: int = 96
    gives_laws: ClassVar[bool] = False
    siblings: ClassVar[Siblings] = "fixed"

    def open(self, opening: Opening) -> Drafting:
        """Return a stateless drafting."""
        return Stateless(self._propose)

    def _propose(self, scene: Scene) -> Draft:
        return draft_of_paths(scene.root, [self.script(host.tokens) for host in scene.texts.host], self.nodes)


@dataclass(frozen=True, slots=True)
class Dead:
    """A drafter whose trees have arbitrary tokens and no alive node except the root."""

    name: str = "all dead"
    nodes: int = 6
    gives_laws: ClassVar[bool] = False
    siblings: ClassVar[Siblings] = "fixed"

    def open(self, opening: Opening) -> Drafting:
        """Return a stateless drafting."""
        return Stateless(self._propose)

    def _propose(self, scene: Scene) -> Draft:
        tokens = scene.root[:, None].repeat(1, self.nodes)
        alive = torch.zeros_like(tokens, dtype=torch.bool)
        alive[:, 0] = True
        parents = torch.arange(self.nodes, device=tokens.device).sub(1).clamp_min(0).expand_as(tokens)
        return Draft(tokens, parents, alive, torch.zeros_like(alive), None, "fixed", self.nodes - 1, 1)


def _adversary(vocabulary: int) -> Script:
    """Return a script that drafts random tokens in trees of random shape, which depend on the text."""

    def script(text: list[int]) -> list[Words]:
        draw = np.random.default_rng([len(text), *text])
        lengths = draw.integers(0, 6, size=int(draw.integers(0, 5)))
        return [tuple(draw.integers(0, vocabulary, size=length).tolist()) for length in lengths]

    return script


def scripted_drafters(vocabulary: int, stops: frozenset[int]) -> Iterator[Scripted | Dead]:
    """Return drafters of fixed sets, for the rules race and match."""
    special = tuple(sorted(stops)) or (0,)
    yield Scripted("adversarial texts", _adversary(vocabulary))
    yield Scripted("every token", lambda _: [(token,) for token in range(min(vocabulary, 64))], 65)
    yield Scripted("the last token again", lambda text: [(text[-1],) * 8])
    yield Scripted("stop tokens", lambda text: [special * 3, (special[0], text[-1], *special)])
    yield Scripted("far beyond the end", lambda text: [tuple(text[-1:]) * 12])
    yield Scripted("nothing", lambda _: [])
    yield Scripted("now and then", lambda text: [(text[-1], 0)] if len(text) % 2 else [])
    yield Dead()


def _same(logits: Tensor, _: Sequence[Words]) -> Tensor:
    return logits


def _opposite(logits: Tensor, _: Sequence[Words]) -> Tensor:
    """Reverse the order of the tokens by likelihood."""
    return -logits


def _flat(logits: Tensor, _: Sequence[Words]) -> Tensor:
    return torch.zeros_like(logits)


def _pointed_at(token: int) -> Callable[[Tensor, Sequence[Words]], Tensor]:
    """Put all mass on one token, so that siblings are copies."""

    def bend(logits: Tensor, _: Sequence[Words]) -> Tensor:
        only = torch.full_like(logits, -torch.inf)
        only[:, token] = 0
        return only

    return bend


def bent_drafters(setup: Setup, card: Card) -> dict[str, Drafter]:
    """Return drafters with draft laws, whose siblings are drawn as `card` requires."""
    bends = {
        "always the target's law": _same,
        "the opposite law": _opposite,
        "all tokens alike": _flat,
        "a stop token alone": _pointed_at(min(setup.stops, default=0)),
    }
    plan = plan_for(card, drafts=3, length=3)
    return {
        name: named_drafter("model", model=setup.model(Bent(setup.rows, bend)), plan=plan)
        for name, bend in bends.items()
    }
