"""Decoding-OPT and Decoding-UNO (Yin et al. 2024) as couplings of one draft, so that the walk can run them on real
text. LOSSY: for measurements only."""

from typing import ClassVar

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.rows import LazyRows
from spectr.theory.bias_frontier import AFTER, check_epsilon, relaxed_test
from spectr.transport.coupling import Coupling, Drafted, Outcome
from spectr.transport.laws import take
from spectr.transport.selection import first_draft, left_over
from spectr.types import Siblings
from spectr.verify.walk import Walk

__all__ = ["OverAcceptingCoupling", "over_accepting_rule"]


class OverAcceptingCoupling(Coupling):
    """Accepts the first draft with min(1, (target + ε) / draft), and draws from (target − draft)⁺ after a rejection, or
    from the target with `after` "uno" ([yin2024])."""

    siblings: ClassVar[tuple[Siblings, ...]] = ("iid",)
    lossless: ClassVar[bool] = False
    papers: ClassVar[tuple[str, ...]] = ("yin2024",)

    def __init__(self, epsilon: float, after: str = "opt") -> None:
        check_epsilon(epsilon)
        if after not in AFTER:
            raise ArgumentError(f"after must be one of {', '.join(AFTER)}, got {after!r}")
        self.epsilon, self.after = epsilon, after
        self.name = f"decoding_{after}"  # type: ignore[misc]

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Test the first live draft only."""
        chosen = first_draft(draft, drafted)
        target_mass, draft_mass = (take(law, drafted.tokens).double() for law in (target, draft))
        ending = chosen.chance * relaxed_test(target_mass, draft_mass, self.epsilon)
        return Outcome(ending, LazyRows.of(target) if self.after == "uno" else left_over(target, chosen.law))

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return Σ draft · test if there is a draft; the number of drafts does not matter."""
        taken = draft.double() * relaxed_test(target.double(), draft.double(), self.epsilon)
        return torch.where(k > 0, taken.sum(-1), 0.0)


def over_accepting_rule(epsilon: float, after: str) -> Walk:
    """Return the walk with this coupling; it states the trivial bias bound 1."""
    walk = Walk(
        OverAcceptingCoupling(epsilon, after), f"decoding_{after}", f"LOSSY: one draft, test eased by {epsilon:g}"
    )
    walk.bias_bound = 1.0
    return walk
