"""Recursive rejection (SpecInfer): each draft is tested against the target's residual after the drafts before it."""

from typing import ClassVar

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.rows import LazyRows
from spectr.transport.coupling import Coupling, Drafted, Outcome
from spectr.transport.laws import normalise, overlap, residual, take, without
from spectr.types import Siblings

__all__ = ["Recursive", "RecursiveWithoutReplacement"]

_MOST_ORDERS = 1 << 20


def _recurse(target: Tensor, draft: Tensor, drafted: Drafted, *, replace: bool) -> Outcome:
    """Test the drafts in order. A rejection replaces the target by its residual and, without replacement, removes the
    rejected token from the draft law."""
    tokens, live = drafted.tokens, drafted.live
    rest, ending = torch.ones_like(tokens[..., 0], dtype=torch.float64), []
    for slot in range(tokens.shape[-1]):
        token, on = tokens[..., slot : slot + 1], live[..., slot]
        target_mass, draft_mass = (take(law, token).squeeze(-1).to(torch.float64) for law in (target, draft))
        chance = torch.where(
            on & (draft_mass > 0), (target_mass / torch.where(draft_mass > 0, draft_mass, 1.0)).clamp_max(1.0), 0.0
        )
        ending.append(rest * chance)
        rest = rest * (1 - chance)
        left = normalise(residual(target, draft), target)
        target = torch.where(on[..., None], left, target)
        if not replace:
            draft = torch.where(on[..., None], without(draft, token, on[..., None]), draft)
    return Outcome(torch.stack(ending, -1), LazyRows.of(target))


class Recursive(Coupling):
    """Recursive rejection of iid drafts."""

    name: ClassVar[str] = "recursive"
    papers: ClassVar[tuple[str, ...]] = ("miao2024specinfer",)

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Test the drafts in the order of their slots."""
        return _recurse(target, draft, drafted, replace=True)

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return 1 − Π (1 − Σ min(target_m, draft)) over the successive residuals target_m."""
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
        """Test the drafts in the order of their slots, which must be the order of the draws."""
        return _recurse(target, draft, drafted, replace=False)

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Sum over all orders of rejected tokens: V^(k−1) terms, refused beyond a million."""
        size = target.shape[-1]
        if size ** (most - 1) > _MOST_ORDERS:
            raise ArgumentError(
                f"recursive_wor sums its acceptance over V^(k-1) orders, at most {_MOST_ORDERS}: "
                f"V = {size}, k = {most} is too much; lower k or restrict the laws to their head"
            )
        return self._sum_orders(target, draft, k, most)

    def _sum_orders(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return the acceptance of the first draft plus, for each token it may be when rejected, that of the later
        ones.

        The first draft is rejected as token x with probability (draft(x) − target(x))⁺."""
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
