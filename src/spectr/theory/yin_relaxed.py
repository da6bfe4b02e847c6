"""Decoding-OPT and Decoding-UNO (Yin et al. 2024) as couplings of one draft, so that the rule that walks down a tree
can run them on real text. LOSSY: made to be measured, not to be served."""

from typing import ClassVar

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.rows import Rows
from spectr.theory.bias_frontier import AFTER, check_ease, relaxed_test
from spectr.transport.coupling import Coupling, Drafted, Outcome
from spectr.transport.laws import take
from spectr.transport.selection import first_draft, left_over
from spectr.types import Siblings
from spectr.verify.walk import Walk

__all__ = ["EasedCoupling", "eased_rule"]


class EasedCoupling(Coupling):
    """The first draft is accepted with min(1, (target + ε) / draft); after a rejection comes (target − draft)⁺, which
    over-acceptance leaves unchanged, or with `after` "uno" the target itself ([yin2024])."""

    siblings: ClassVar[tuple[Siblings, ...]] = ("iid",)
    lossless: ClassVar[bool] = False
    papers: ClassVar[tuple[str, ...]] = ("yin2024",)

    def __init__(self, epsilon: float, after: str = "opt") -> None:
        check_ease(epsilon)
        if after not in AFTER:
            raise ArgumentError(f"after must be one of {', '.join(AFTER)}, got {after!r}")
        self.epsilon, self.after = epsilon, after
        self.name = f"decoding_{after}"  # type: ignore[misc]

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """The first live draft alone."""
        chosen = first_draft(draft, drafted)
        owed, given = (take(law, drafted.tokens).double() for law in (target, draft))
        ending = chosen.chance * relaxed_test(owed, given, self.epsilon)
        return Outcome(ending, Rows.of(target) if self.after == "uno" else left_over(target, chosen.law))

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Σ draft · test, whatever k, so long as there is a draft."""
        taken = draft.double() * relaxed_test(target.double(), draft.double(), self.epsilon)
        return torch.where(k > 0, taken.sum(-1), 0.0)


def eased_rule(epsilon: float, after: str) -> Walk:
    """The walk with it. What it promises about the law is nothing; what it does to it is measured."""
    made = Walk(EasedCoupling(epsilon, after), f"decoding_{after}", f"LOSSY: one draft, test eased by {epsilon:g}")
    made.bias_bound = 1.0
    return made
