"""The optimal acceptance and the bounds around it, as numbers; the samplers that reach them are in other modules."""

import torch
from torch import Tensor

from spectr.transport.laws import check_count, check_pair, ratio

__all__ = ["kseq_share", "optimal_acceptance", "token_bound"]


def optimal_acceptance(target: Tensor, draft: Tensor, k: int | Tensor) -> Tensor:
    """Return the highest acceptance of any coupling of k iid drafts: 1 − max_j [Q_j^k − P_j]⁺, float64 (…).

    Max-flow equals min-cut, and since s ↦ s^k is convex the tightest cut is a prefix of the tokens ordered by
    target / draft; Q_j and P_j are the draft's and target's masses of those prefixes.

    >>> target, draft = torch.tensor([[1 / 3, 2 / 3], [2 / 3, 1 / 3]], dtype=torch.float64)
    >>> [round(float(optimal_acceptance(target, draft, k)), 6) for k in (1, 2, 3)]
    [0.666667, 0.888889, 1.0]
    """
    check_pair(target, draft)
    check_count("k", k)
    target, draft = torch.broadcast_tensors(target.double(), draft.double())
    order = ratio(target, draft).argsort(dim=-1, stable=True)
    drafted, target_mass = (law.gather(-1, order).cumsum(-1) for law in (draft, target))
    count = torch.as_tensor(k, device=target.device).expand(target.shape[:-1])[..., None]
    return 1 - (drafted.clamp_max(1.0) ** count - target_mass).amax(-1).clamp_min(0)


def token_bound(target: Tensor, draft: Tensor, k: int) -> Tensor:
    """Return SpecTr's token-wise bound Σ min(target, 1 − (1 − draft)^k), which is often above the optimum, never
    below."""
    check_pair(target, draft)
    check_count("k", k)
    return torch.minimum(target.double(), 1 - (1 - draft.double()) ** k).sum(-1)


def kseq_share(k: int) -> float:
    """Return the share of the optimum that K-SEQ is sure to accept: 1 − (1 − 1/k)^k, which falls to 1 − 1/e.

    >>> [round(kseq_share(k), 4) for k in (1, 2, 8)]
    [1.0, 0.75, 0.6564]
    """
    check_count("k", k)
    return float(1 - (1 - 1 / k) ** k)
