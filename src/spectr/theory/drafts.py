"""The optimal acceptance by the number of drafts K, and its bounds (SpecTr, Sun et al. 2023). Exact."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.transport import coupling, kseq_share, optimal_acceptance, token_bound
from spectr.transport.laws import check_count, check_pair, overlap

__all__ = ["Bounds", "acceptance_bounds", "scaled_overlap"]


def scaled_overlap(target: Tensor, draft: Tensor, k: int) -> Tensor:
    """Return Σ min(target, K·draft), an upper bound for all couplings of K drafts, because a token is drafted K·draft
    times on average ([sun2023spectr]).

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> [round(float(scaled_overlap(*laws, k)), 3) for k in (1, 2, 8)]
    [0.6, 0.7, 1.0]
    """
    check_pair(target, draft)
    check_count("k", k)
    return torch.minimum(target.double(), k * draft.double()).sum(-1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """α_K between its bounds, each float64 (…): below ≤ kseq ≤ optimum ≤ by_token ≤ scaled."""

    below: Tensor  # max of 1 − TV and (1 − (1 − 1/K)^K) · scaled
    kseq: Tensor  # acceptance of K-SEQ
    optimum: Tensor  # α_K
    by_token: Tensor  # Σ min(target, 1 − (1 − draft)^K)
    scaled: Tensor  # Σ min(target, K·draft)


def acceptance_bounds(target: Tensor, draft: Tensor, k: int) -> Bounds:
    """Return α_K, the highest acceptance of any coupling of K iid drafts, and its bounds from [sun2023spectr].

    The upper bounds hold token by token: a draft is accepted as a token no more often than the target allows, nor than
    the token is drafted. The lower bound is by K-SEQ, which accepts at least 1 − (1 − 1/K)^K ≥ 1 − 1/e of
    Σ min(target, K·draft), and no less than one draft.

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> found = acceptance_bounds(*laws, 4)
    >>> [round(float(getattr(found, name)), 3) for name in ("below", "kseq", "optimum", "by_token", "scaled")]
    [0.615, 0.755, 0.844, 0.844, 0.9]
    """
    scaled = scaled_overlap(target, draft, k)
    return Bounds(
        torch.maximum(overlap(target, draft), kseq_share(k) * scaled),
        coupling("kseq").acceptance(target, draft, k),
        optimal_acceptance(target, draft, k),
        token_bound(target, draft, k),
        scaled,
    )
