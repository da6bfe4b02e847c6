"""The maximal coupling of one draft with the target (Leviathan et al. 2023, Chen et al. 2023)."""

from typing import ClassVar

import torch
from torch import Tensor

from spectr.transport.coupling import Drafted
from spectr.transport.laws import overlap
from spectr.transport.selection import SelectingCoupling, Selection, first_draft

__all__ = ["Maximal"]


class Maximal(SelectingCoupling):
    """Accepts x with min(1, target(x) / draft(x)), else draws from (target − draft)⁺; no coupling accepts more often.

    Only the first of several drafts is used.

    >>> import torch
    >>> target, draft = torch.tensor([[1 / 3, 2 / 3], [2 / 3, 1 / 3]], dtype=torch.float64)
    >>> round(float(Maximal().acceptance(target, draft, 1)), 6)
    0.666667
    """

    name: ClassVar[str] = "maximal"
    papers: ClassVar[tuple[str, ...]] = ("leviathan2023", "chen2023")

    def select(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
        """Select the first live draft, whose law is the draft law."""
        return first_draft(draft, drafted)

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return Σ min(target, draft)."""
        return torch.where(k > 0, overlap(target, draft), 0.0)
