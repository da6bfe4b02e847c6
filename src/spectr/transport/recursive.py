"""Recursive rejection (SpecInfer and after): each draft meets what the ones before it left of the target."""

from typing import ClassVar

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.rows import Rows
from spectr.transport.coupling import Coupling, Drafted, Outcome
from spectr.transport.laws import normalise, overlap, residual, take, without
from spectr.types import Siblings

__all__ = ["Recursive", "RecursiveWithoutReplacement"]

_MOST_ORDERS = 1 << 20


def _recurse(target: Tensor, draft: Tensor, drafted: Drafted, *, replace: bool) -> Outcome:
    """Test the drafts in order; after a rejection the target gives way to its residual, and without replacement the
    draft law loses the rejected token."""
    tokens, live = drafted.tokens, drafted.live
    rest, ending = torch.ones_like(tokens[..., 0], dtype=torch.float64), []
    for slot in range(tokens.shape[-1]):
        token, on = tokens[..., slot : slot + 1], live[..., slot]
        owed, given = (take(law, token).squeeze(-1).to(torch.float64) for law in (target, draft))
        chance = torch.where(on & (given > 0), (owed / torch.where(given > 0, given, 1.0)).clamp_max(1.0), 0.0)
        ending.append(rest * chance)
        rest = rest * (1 - chance)
        left = normalise(residual(target, draft), target)
        target = torch.where(on[..., None], left, target)
        if not replace:
            draft = torch.where(on[..., None], without(draft, token, on[..., None]), draft)
    return Outcome(torch.stack(ending, -1), Rows.of(target))


class Recursive(Coupling):
    """Recursive rejection of iid drafts."""

    name: ClassVar[str] = "recursive"
    papers: ClassVar[tuple[str, ...]] = ("miao2024specinfer",)

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """In the order of the slots."""
        return _recurse(target, draft, drafted, replace=True)

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """1 − Π (1 − Σ min(target_m, draft)) over the successive residuals target_m."""
        rejected = torch.ones_like(k, dtype=torch.float64)
        for turn in range(most):
            rejected = torch.where(turn < k, rejected * (1 - overlap(target, draft)), rejected)
            target = normalise(residual(target, draft), target)
        return 1 - rejected


class RecursiveWithoutReplacement(Coupling):
    """Recursive rejection of drafts drawn without replacement, in the order drawn."""

    name: ClassVar[str] = "recursive_wor"
    siblings: ClassVar[tuple[Siblings, ...]] = ("without_replacement",)
    papers: ClassVar[tuple[str, ...]] = ("jeon2024", "miao2024specinfer")

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """In the order of the slots, which must be the order of the draws."""
        return _recurse(target, draft, drafted, replace=False)

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Summed over the rejected tokens in order: V^(k−1) terms, refused beyond a million."""
        size = target.shape[-1]
        if size ** (most - 1) > _MOST_ORDERS:
            raise ArgumentError(
                f"recursive_wor sums its acceptance over V^(k-1) orders, at most {_MOST_ORDERS}: "
                f"V = {size}, k = {most} is too much; lower k or restrict the laws to their head"
            )
        return self._sum_orders(target, draft, k, most)

    def _sum_orders(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Accepted now, plus for each token that may be rejected first (its chance is (draft − target)⁺) the rest."""
        now = torch.where(k > 0, overlap(target, draft), 0.0)
        if most <= 1:
            return now
        left = normalise(residual(target, draft), target)
        tokens = torch.arange(target.shape[-1], device=target.device).expand(*target.shape[:-1], -1)[..., None]
        shorter = without(draft[..., None, :], tokens, torch.ones_like(tokens, dtype=torch.bool))  # (…, V, V)
        later = self._sum_orders(
            left[..., None, :].expand_as(shorter), shorter, (k - 1)[..., None].expand(shorter.shape[:-1]), most - 1
        )
        return now + torch.where(k > 1, ((draft - target).clamp_min(0) * later).sum(-1, dtype=torch.float64), 0.0)
