"""The race's acceptance in closed form: how often the target's winner is among the drafter's first k."""

import torch
from torch import Tensor

from spectr.transport.laws import check_count, check_pair

__all__ = ["race_acceptance", "rank_chances"]

_STEP, _FROM, _TO = 0.125, -36.0, 4.2  # trapezoid in log τ; doubly exponential decay above, e^−36 of mass below


def race_acceptance(target: Tensor, draft: Tensor, k: int) -> Tensor:
    """Return P(the winner by target is among the best k by draft) for shared noise E, float64 (…).

    Given that v wins at time τ, with noise τ·target(v), every other w is ahead of it in the drafter's race
    independently with s_w = 1 − exp(−τ·(target(v)·draft(w)/draft(v) − target(w))⁺), so that

        acceptance = Σ_v target(v) ∫ e^−τ P(PoissonBinomial(s) < k) dτ,

    which for k = 1 is Σ_v 1 / Σ_w max(target(w)/target(v), draft(w)/draft(v)). It takes V² · k · 320 operations.

    >>> target, draft = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> [round(float(race_acceptance(target, draft, k)), 6) for k in (1, 2)]
    [0.6, 1.0]
    """
    check_pair(target, draft)
    check_count("k", k)
    target, draft = torch.broadcast_tensors(target.double(), draft.double())
    size = target.shape[-1]
    rows = [rank_chances(*row, k).sum() for row in zip(target.reshape(-1, size), draft.reshape(-1, size), strict=True)]
    return torch.stack(rows).reshape(target.shape[:-1])


def rank_chances(target: Tensor, draft: Tensor, k: int) -> Tensor:
    """Return P(the winner by target is r-th by draft), r = 0 … k − 1, for one pair of float64 laws (V,).

    These are the terms of the sum above, for all winners and all times at once, with a loop over the rivals."""
    winners = (target > 0) & (draft > 0)
    odds = (target / draft)[winners]
    tau = torch.arange(_FROM, _TO, _STEP, dtype=torch.float64, device=target.device).exp()  # (T,)
    count = torch.zeros(k, len(odds), len(tau), dtype=torch.float64, device=target.device)  # P(r rivals ahead), r < k
    count[0] = 1.0
    for target_mass, draft_mass in zip(target[draft > 0], draft[draft > 0], strict=True):
        ahead = -torch.expm1(-tau * (draft_mass * odds - target_mass).clamp_min(0)[:, None])  # (winners, T)
        moved = count * ahead
        count = count - moved
        count[1:] += moved[:-1]
    return (count * (_STEP * tau * torch.exp(-tau))).sum(-1) @ target[winners]
