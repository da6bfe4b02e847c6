"""Draws from the target and accepts if that token was drafted. It needs no draft law, so any set may be drafted."""

from typing import ClassVar

import torch
from torch import Tensor

from spectr.rows import LazyRows
from spectr.transport.coupling import Coupling, Drafted, Outcome, first_copies
from spectr.transport.laws import normalise, take, without
from spectr.types import SIBLINGS, Siblings

__all__ = ["Match"]


def _off_drafted(target: Tensor, tokens: Tensor, live: Tensor) -> Tensor:
    return normalise(without(target, tokens, live), target)


class Match(Coupling):
    """Accepts with the target's mass on the drafted tokens; for top-k trees and prompt lookup."""

    name: ClassVar[str] = "match"
    siblings: ClassVar[tuple[Siblings, ...]] = tuple(s for s in SIBLINGS if s != "race")
    papers: ClassVar[tuple[str, ...]] = ("miao2024specinfer",)

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Accept each distinct drafted token with the target's own probability."""
        tokens, live = drafted.tokens, drafted.live
        first = first_copies(tokens, live)
        ending = torch.where(first, take(target, tokens), 0).to(torch.float64)
        return Outcome(ending, LazyRows(_off_drafted, (target, tokens, live)))

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return Σ target·(1 − (1 − draft)^k), for iid drafts."""
        seen = -torch.expm1(k[..., None] * torch.log1p(-draft.to(torch.float64).clamp(max=1 - 2.0**-53)))
        return (target * seen).sum(-1, dtype=torch.float64)
