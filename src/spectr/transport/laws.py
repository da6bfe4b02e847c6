"""Laws (probability distributions over the vocabulary): their checks, and the arithmetic where a mass is zero.

A law is a tensor (…, V) whose last dimension is the vocabulary. Public entry points check their laws here once; the
numerics below them do not check again. A law that does not sum to one is an error; it is never silently renormalised.
"""

import torch
from torch import Tensor

from spectr.errors import ArgumentError, LawError

__all__ = [
    "check_count",
    "check_law",
    "check_pair",
    "check_tokens",
    "law_of",
    "normalise",
    "overlap",
    "ratio",
    "residual",
    "take",
    "total_variation",
    "without",
    "zero_undefined",
]

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def law_of(logits: Tensor) -> Tensor:
    """Return the softmax of policy logits (…, V), in float32 or better.

    On a CPU softmax sums in float32 and is off by 5e-6 at 152k tokens, so it is normalised once more in float64."""
    law = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    return law.div_(law.sum(-1, keepdim=True, dtype=torch.float64)) if law.device.type == "cpu" else law


def zero_undefined(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (…, V) with zeros in rows that define no distribution, and a mask (…) of the rows that do.

    >>> [part.tolist() for part in zero_undefined(torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [-torch.inf] * 2]))]
    [[[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]], [True, False, False]]
    """
    defined = logits.amax(-1).isfinite()
    if logits.device.type == "cpu" and bool(defined.all()):
        return logits, defined
    return torch.where(defined[..., None], logits, 0), defined


def check_law(name: str, law: Tensor) -> None:
    """Check that a law is float32 or float64, has no NaN and no negative entry, and sums to one."""
    if not isinstance(law, Tensor):
        raise LawError(f"{name} must be a tensor (…, vocabulary), got {type(law).__name__}; wrap it in torch.tensor")
    if law.dtype not in _TOLERANCE:
        raise LawError(f"{name} must be float32 or float64, got {law.dtype}; convert with .float() after the softmax")
    if law.dim() == 0 or law.shape[-1] == 0:
        raise LawError(f"{name} must have a last dimension of at least one token, got shape {tuple(law.shape)}")
    if bool(law.isnan().any()):
        raise LawError(f"{name} must not contain NaN; look at the logits it was made from")
    if bool((law < 0).any()):
        raise LawError(f"{name} must not be negative, its smallest entry is {float(law.min()):.3g}")
    sums = law.sum(-1, dtype=torch.float64)
    worst = float(sums.flatten()[(sums - 1).abs().argmax()]) if sums.numel() else 1.0
    if not abs(worst - 1) <= _TOLERANCE[law.dtype]:
        raise LawError(
            f"{name} must sum to 1 within {_TOLERANCE[law.dtype]:g}, a row sums to {worst:.9g}; normalise it"
        )


def check_pair(target: Tensor, draft: Tensor) -> None:
    """Check that target and draft are laws over one vocabulary, of one dtype, with leading shapes that broadcast."""
    check_law("target", target)
    check_law("draft", draft)
    if target.shape[-1] != draft.shape[-1]:
        raise LawError(
            f"draft must cover the target's {target.shape[-1]} tokens, it covers {draft.shape[-1]}; pad it with 0"
        )
    if target.dtype != draft.dtype:
        raise LawError(f"draft must have the target's dtype {target.dtype}, got {draft.dtype}; convert one of them")
    try:
        torch.broadcast_shapes(target.shape, draft.shape)
    except RuntimeError:
        raise LawError(
            f"draft must have a shape that broadcasts with the target's {tuple(target.shape)}, got {tuple(draft.shape)}"
        ) from None


def check_count(name: str, count: int | Tensor) -> None:
    """Check that a number of drafts is an integer of at least one."""
    if isinstance(count, bool) or not isinstance(count, int | Tensor):
        raise ArgumentError(f"{name} must be an integer or an integer tensor, got {type(count).__name__}")
    if isinstance(count, Tensor) and (count.dtype.is_floating_point or count.dtype == torch.bool):
        raise ArgumentError(f"{name} must be an integer tensor, got {count.dtype}")
    smallest = int(count.min()) if isinstance(count, Tensor) else count
    if smallest < 1:
        raise ArgumentError(f"{name} must be at least 1, got {smallest}")


def check_tokens(name: str, tokens: Tensor, vocabulary: int) -> None:
    """Check that drafted ids are an integer tensor (…, k) inside the vocabulary."""
    if not isinstance(tokens, Tensor) or tokens.dtype.is_floating_point or tokens.dtype == torch.bool:
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ArgumentError(f"{name} must be an integer tensor (…, k) of token ids, got {kind}")
    if tokens.dim() == 0:
        raise ArgumentError(f"{name} must have a last dimension k, got a scalar; use shape (1,) for one draft")
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ArgumentError(
            f"{name} must lie in [0, {vocabulary}), got ids from {int(tokens.min())} to {int(tokens.max())}"
        )


def overlap(target: Tensor, draft: Tensor) -> Tensor:
    """Return Σ min(target, draft) = 1 − TV, float64 (…)."""
    return torch.minimum(target, draft).sum(-1, dtype=torch.float64)


def total_variation(target: Tensor, draft: Tensor) -> Tensor:
    """Return ½ Σ |target − draft|, float64 (…)."""
    return (target - draft).abs().sum(-1, dtype=torch.float64) / 2


def ratio(target: Tensor, draft: Tensor) -> Tensor:
    """Return target / draft, and infinity where the draft law is zero: such a token is never drafted."""
    return torch.where(draft > 0, target / draft, torch.inf)


def take(law: Tensor, tokens: Tensor) -> Tensor:
    """Return the law (…, V) at the drafted ids (…, k), as (…, k)."""
    return law.expand(*tokens.shape[:-1], law.shape[-1]).gather(-1, tokens)


def normalise(weights: Tensor, otherwise: Tensor) -> Tensor:
    """Return weights / Σ weights, and `otherwise` in rows without mass."""
    total = weights.sum(-1, keepdim=True, dtype=torch.float64)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), otherwise).to(weights.dtype)


def residual(target: Tensor, taken: Tensor) -> Tensor:
    """Return (target − taken)⁺, not normalised: the mass of the target that remains after the mass `taken`.

    A row without a remainder can only be needed because of rounding. It is replaced by the target, so that a token the
    target excludes is never drawn.
    """
    left = (target - taken).clamp_min_(0)
    return torch.where(left.sum(-1, keepdim=True) > 0, left, target)


def without(law: Tensor, tokens: Tensor, live: Tensor) -> Tensor:
    """Return the law without the live tokens (…, k), renormalised; all zero if they had all its mass."""
    size = law.shape[-1]
    gone = torch.zeros(*tokens.shape[:-1], size + 1, dtype=torch.bool, device=law.device)
    rest = law.masked_fill(gone.scatter_(-1, torch.where(live, tokens, size), True)[..., :size], 0)
    return normalise(rest, torch.zeros_like(rest))
