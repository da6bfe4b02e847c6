"""Training objectives for drafters: the loss of draft logits, its gradient, and the acceptance.

`overlap`: 1 − Σ min(target, draft), the total variation, plus a little cross-entropy against vanishing gradients.
`cross_entropy`: the usual distillation. `race`: the cross-entropy of the token that wins the race on the target's
distribution under the draft's noisy logits with the same noise, divided by `DRAFT_MISMATCH`; at temperature 1, pruned
trees are selected by this score.

A head that drafts some tokens only is compared on these. The target's logits of these tokens come with the logarithm of
the sum over its whole vocabulary, so that its probabilities sum to less than 1.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spectr.draft.plan import DRAFT_MISMATCH
from spectr.errors import ArgumentError
from spectr.kernels import usable

__all__ = ["OBJECTIVES", "Objective", "acceptance_loss", "overlap_gradient", "probabilities"]

Objective = Literal["overlap", "cross_entropy", "race"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
_MIX = 0.1  # weight of cross-entropy in `overlap`, whose gradient vanishes where the laws hardly overlap


def probabilities(logits: Tensor, normalizers: Tensor | None) -> Tensor:
    """Return probabilities (M, V) of logits, which sum to less than 1 if `normalizers` (M,) are of more tokens."""
    return logits.softmax(-1) if normalizers is None else (logits - normalizers[:, None]).exp()


def overlap_gradient(
    draft: Tensor, target: Tensor, weight: Tensor, inverse_temperature: float, normalizers: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return overlap and cross-entropy (M,), and the gradient (M, V)."""
    log_q = (draft.float() * inverse_temperature).log_softmax(-1)
    q, p = log_q.exp(), probabilities(target.float() * inverse_temperature, normalizers)
    less = (q < p).float()
    grad = q * ((q * less).sum(-1, keepdim=True) - less) + _MIX * (q * p.sum(-1, keepdim=True) - p)
    cross = -(p * torch.where(p > 0, log_q, 0.0)).sum(-1)
    return torch.minimum(p, q).sum(-1), cross, grad * (weight * inverse_temperature)[:, None]


class _Overlap(torch.autograd.Function):
    """Computes the gradient together with the value, in place of the draft logits, to save memory of size V."""

    @staticmethod
    def forward(  # noqa: PLR0913  autograd passes arguments by position
        ctx: Any,
        draft: Tensor,
        target: Tensor,
        weight: Tensor,
        inverse_temperature: float,
        normalizers: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if usable(draft):
            from spectr.kernels.acceptance import fused_acceptance

            overlap, cross = fused_acceptance(draft, target, weight, inverse_temperature, _MIX, normalizers)
            grad = draft
        else:
            overlap, cross, grad = overlap_gradient(draft, target, weight, inverse_temperature, normalizers)
        ctx.save_for_backward(grad.to(draft.dtype))
        ctx.mark_non_differentiable(overlap)
        return ((1 - overlap + _MIX * cross) * weight).sum(), overlap

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * grad_loss.to(grad.dtype), None, None, None, None


def _race(draft: Tensor, target: Tensor, weight: Tensor, inverse_temperature: float) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of the target's winner under the draft's noisy logits, and whether the draft wins
    too."""
    noise = -torch.empty_like(target, dtype=torch.float32).exponential_().log_()
    winner = (target.float() * inverse_temperature + noise).argmax(-1)
    keys = draft.float() * inverse_temperature + noise
    loss = torch.nn.functional.cross_entropy(keys / DRAFT_MISMATCH, winner, reduction="none")
    return (loss * weight).sum(), (keys.detach().argmax(-1) == winner).float()


def acceptance_loss(  # noqa: PLR0913  the last one is for heads that draft some tokens only
    draft: Tensor,
    target: Tensor,
    weight: Tensor,
    temperature: float,
    objective: Objective,
    normalizers: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted loss of draft logits (M, V) against the target's, and the overlap of each row (M,).

    `normalizers` (M,) are the logarithms of sums over the target's whole vocabulary at this temperature, if the logits
    are of some tokens only. For `race`, which needs all tokens, the overlap is whether the draft's winner is the
    target's. The draft logits may be overwritten."""
    inverse_temperature = 1.0 / temperature
    if objective == "race":
        if normalizers is not None:
            raise ArgumentError("the objective race needs all tokens; leave out --vocabulary, or use overlap")
        return _race(draft, target, weight, inverse_temperature)
    if objective == "cross_entropy":
        log_q = (draft.float() * inverse_temperature).log_softmax(-1)
        p = probabilities(target.float() * inverse_temperature, normalizers)
        return -((p * log_q).sum(-1) * weight).sum(), torch.minimum(p, log_q.detach().exp()).sum(-1)
    loss: tuple[Tensor, Tensor] = _Overlap.apply(draft, target, weight, inverse_temperature, normalizers)  # type: ignore[no-untyped-call]
    return loss
