"""What a drafter is trained for: the acceptance itself. From logits to a loss, its gradient, and how laws overlap.

`overlap`: 1 − Σ min(target, draft), which is total variation, with a little cross-entropy against vanishing gradients.
`cross_entropy`: the usual distillation. `race`: that the token which wins the race on the target's law, with shared
noise, also wins on the draft law; its score is the one that pruned trees are chosen by.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spectr.kernels import usable

__all__ = ["OBJECTIVES", "Objective", "acceptance_loss"]

Objective = Literal["overlap", "cross_entropy", "race"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
_MIX = 0.1  # of cross-entropy beside the overlap, whose gradient vanishes where a law is far off


def _plain(draft: Tensor, target: Tensor, weight: Tensor, heat: float) -> tuple[Tensor, Tensor, Tensor]:
    """Overlap, cross-entropy (M,) and the gradient (M, V)."""
    log_q = (draft.float() * heat).log_softmax(-1)
    q, p = log_q.exp(), (target.float() * heat).softmax(-1)
    less = (q < p).float()
    grad = q * ((q * less).sum(-1, keepdim=True) - less) + _MIX * (q - p)
    cross = -(p * torch.where(p > 0, log_q, 0.0)).sum(-1)
    return torch.minimum(p, q).sum(-1), cross, grad * (weight * heat)[:, None]


class _Overlap(torch.autograd.Function):
    """The gradient is made with the value, in the place of the draft logits: nothing of size V is kept twice."""

    @staticmethod
    def forward(ctx: Any, draft: Tensor, target: Tensor, weight: Tensor, heat: float) -> tuple[Tensor, Tensor]:
        if usable(draft):
            from spectr.kernels.acceptance import fused_acceptance

            overlap, cross = fused_acceptance(draft, target, weight, heat, _MIX)
            grad = draft
        else:
            overlap, cross, grad = _plain(draft, target, weight, heat)
        ctx.save_for_backward(grad.to(draft.dtype))
        ctx.mark_non_differentiable(overlap)
        return ((1 - overlap + _MIX * cross) * weight).sum(), overlap

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * grad_loss.to(grad.dtype), None, None, None


def _race(draft: Tensor, target: Tensor, weight: Tensor, heat: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the target's winner under the draft's noisy logits, with fresh noise."""
    noise = -torch.empty_like(target, dtype=torch.float32).exponential_().log_()
    winner = (target.float() * heat + noise).argmax(-1)
    keys = draft.float() * heat + noise
    loss = torch.nn.functional.cross_entropy(keys / 0.75, winner, reduction="none")
    return (loss * weight).sum(), (keys.detach().argmax(-1) == winner).float()


def acceptance_loss(
    draft: Tensor, target: Tensor, weight: Tensor, temperature: float, objective: Objective
) -> tuple[Tensor, Tensor]:
    """The weighted loss of draft logits (M, V) against the target's, and each row's overlap (M,) (for `race`: whether
    the first guess was right). The draft logits may be overwritten."""
    heat = 1.0 / temperature
    if objective == "race":
        return _race(draft, target, weight, heat)
    if objective == "cross_entropy":
        log_q = (draft.float() * heat).log_softmax(-1)
        p = (target.float() * heat).softmax(-1)
        return -((p * log_q).sum(-1) * weight).sum(), torch.minimum(p, log_q.detach().exp()).sum(-1)
    found: tuple[Tensor, Tensor] = _Overlap.apply(draft, target, weight, heat)  # type: ignore[no-untyped-call]
    return found
