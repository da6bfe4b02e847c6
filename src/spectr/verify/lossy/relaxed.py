"""Couplings that accept a selected draft more often than is lossless; they work for several drafts as well.

A relaxation maps the target and the selected token's law to an acceptance of at least min(1, target / law). The
residual remains (target − law)⁺, which has the least bias for any such function.
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
    """A selecting coupling with a relaxed, lossy test."""

    name: ClassVar[str] = "relaxed"
    lossless: ClassVar[bool] = False

    def __init__(self, inner: SelectingCoupling) -> None:
        self.inner = inner

    @abstractmethod
    def test(self, lossless: Tensor, gap: Tensor) -> Tensor:
        """Map the lossless acceptance min(1, target / law) (…, k) to the relaxed one; `gap` is TV(target, law) (…,
        1)."""

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Select one of the sampled drafts and apply the relaxed test to it."""
        return self._test_selected(target, self.inner.select(target, draft, drafted), drafted)

    def outcome(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Select one of the drafts, of which some may be fixed, and apply the relaxed test to it."""
        return self._test_selected(target, self.inner.selection(target, draft, drafted), drafted)

    def _test_selected(self, target: Tensor, chosen: Selection, drafted: Drafted) -> Outcome:
        lossless = chosen.acceptance(target, drafted.tokens)
        gap = 1 - overlap(target, chosen.law.all())[..., None]
        return Outcome(chosen.chance * self.test(lossless, gap), left_over(target, chosen.law))

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return Σ law · test, which depends on the selected token's law but not on the drafted tokens."""
        law = self.selected_law(target, draft, k, most)
        relaxed = self.test(one_draft_test(target, law), 1 - overlap(target, law)[..., None])
        return (law * relaxed).sum(-1, dtype=torch.float64)

    def selected_law(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return the law of the selected token for k (…) drafts, (…, V)."""
        likely = draft.argmax(-1, keepdim=True).expand(*target.shape[:-1], most)
        live = torch.arange(most, device=target.device) < k[..., None]
        return self.inner.select(target, draft, Drafted(likely, live)).law.all()


def selecting(name: str) -> SelectingCoupling:
    """Return the selecting coupling called `name`."""
    inner = named_coupling(name)
    if not isinstance(inner, SelectingCoupling):
        raise MismatchError(
            f"a relaxed test requires a coupling that selects one draft (maximal, kseq_plus, optimal), got {name!r}"
        )
    return inner
