"""Accepting a selected draft more often than is lossless, in the canonical form, so that several drafts work too.

A relaxation is a function from target and selected law to an acceptance at least min(1, target / law); the residual
stays (target − law)⁺, which for any such function is the choice of least bias.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from spectr.errors import MismatchError
from spectr.transport import coupling as named_coupling
from spectr.transport.coupling import Coupling, Drafted, Outcome
from spectr.transport.laws import overlap
from spectr.transport.selection import SelectingCoupling, Selection, left_over, one_draft_test

__all__ = ["RelaxedCoupling", "selecting"]


class RelaxedCoupling(Coupling):
    """A selecting coupling whose test is relaxed. Lossy."""

    name: ClassVar[str] = "relaxed"
    lossless: ClassVar[bool] = False

    def __init__(self, inner: SelectingCoupling) -> None:
        self.inner = inner

    @abstractmethod
    def test(self, lossless: Tensor, gap: Tensor) -> Tensor:
        """Relaxed acceptance from the lossless one, min(1, target / law) (…, k), and 1 − Σ min(target, law) (…, 1)."""

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Select, then the relaxed test."""
        return self._test_selected(target, self.inner.select(target, draft, drafted), drafted)

    def outcome(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """As `settle`, with fixed drafts selected among the others."""
        return self._test_selected(target, self.inner.selection(target, draft, drafted), drafted)

    def _test_selected(self, target: Tensor, chosen: Selection, drafted: Drafted) -> Outcome:
        lossless = chosen.acceptance(target, drafted.tokens)
        gap = 1 - overlap(target, chosen.law.all())[..., None]
        return Outcome(chosen.chance * self.test(lossless, gap), left_over(target, chosen.law))

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Σ law · test: needs the selected law alone, which does not depend on what was drafted."""
        law = self.selected_law(target, draft, k, most)
        relaxed = self.test(one_draft_test(target, law), 1 - overlap(target, law)[..., None])
        return (law * relaxed).sum(-1, dtype=torch.float64)

    def selected_law(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """The law of the selected token for k (…) drafts."""
        likely = draft.argmax(-1, keepdim=True).expand(*target.shape[:-1], most)
        live = torch.arange(most, device=target.device) < k[..., None]
        return self.inner.select(target, draft, Drafted(likely, live)).law.all()


def selecting(name: str) -> SelectingCoupling:
    """The selecting coupling called `name`."""
    made = named_coupling(name)
    if not isinstance(made, SelectingCoupling):
        raise MismatchError(f"a relaxed test needs a coupling that selects (maximal, kseq_plus, optimal), got {name!r}")
    return made
