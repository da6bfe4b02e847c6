"""Fewer rejections for a stated bias (Yin et al. 2024): the frontier, and two ways to continue after a rejection.
Exact.

A test accepts a drafted token x with probability b(x). **Decoding-OPT** draws from ∝ (target − b·draft)⁺ after a
rejection, **Decoding-UNO** from the target itself. Bias is the total variation between the output and the target.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.theory.chains import ChainPair, contexts
from spectr.transport.laws import check_pair, normalise, total_variation

__all__ = [
    "AFTER",
    "Relaxed",
    "RelaxedText",
    "check_epsilon",
    "decoding_opt",
    "decoding_uno",
    "least_bias",
    "relaxed_test",
    "relaxed_text",
]


def least_bias(target: Tensor, draft: Tensor, rejected: float | Tensor) -> Tensor:
    """Return (TV − rejected)⁺, the least bias of any test with this rejection rate, for any continuation after a
    rejection ([yin2024], the theorem on the bias–rejection frontier).

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> round(float(least_bias(*laws, 0.1)), 3)
    0.3
    """
    check_pair(target, draft)
    return (total_variation(target, draft) - torch.as_tensor(rejected)).clamp_min(0)


def check_epsilon(epsilon: float) -> None:
    """Check the amount by which a test is relaxed."""
    if isinstance(epsilon, bool) or not 0 <= epsilon < float("inf"):
        raise ArgumentError(f"epsilon must be at least 0 and finite, got {epsilon}")


def relaxed_test(target: Tensor, draft: Tensor, epsilon: float) -> Tensor:
    """Return min(1, (target + ε) / draft), (…, V): the over-accepting test with which [yin2024] compares Decoding-OPT
    and Decoding-UNO. ε = 0 is lossless."""
    check_epsilon(epsilon)
    return torch.where(draft > target, (target + epsilon) / torch.where(draft > 0, draft, 1.0), 1.0).clamp_max(1.0)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The rejection rate, output law and bias of a test and a law after a rejection."""

    rejected: Tensor  # (…)
    law: Tensor  # (…, V) law of the output
    bias: Tensor  # (…)


def _check_test(accept: Tensor) -> None:
    if bool((accept < 0).any()) or bool((accept > 1).any()):
        raise ArgumentError("accept must contain probabilities in [0, 1], one for each token")


def _relaxed(target: Tensor, draft: Tensor, accept: Tensor, after: Tensor) -> Relaxed:
    taken = accept * draft
    rejected = 1 - taken.sum(-1)
    law = taken + rejected[..., None] * after
    return Relaxed(rejected, law, total_variation(law, target))


def decoding_opt(target: Tensor, draft: Tensor, accept: Tensor) -> Relaxed:
    """Apply a test, and draw from ∝ (target − accept·draft)⁺ after a rejection.

    This has the least bias that the test can have, Σ (accept·draft − target)⁺ ([yin2024], the theorem on Decoding-OPT).

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> found = decoding_opt(*laws, relaxed_test(*laws, 0.1))
    >>> round(float(found.rejected), 3), round(float(found.bias), 3)
    (0.3, 0.1)
    """
    check_pair(target, draft)
    _check_test(accept)
    return _relaxed(target, draft, accept, normalise((target - accept * draft).clamp_min(0), target))


def decoding_uno(target: Tensor, draft: Tensor, accept: Tensor) -> Relaxed:
    """Apply a test, and draw from the target after a rejection.

    This alternative of [yin2024] is biased even with the lossless test.

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> found = decoding_uno(*laws, relaxed_test(*laws, 0.1))
    >>> round(float(found.rejected), 3), round(float(found.bias), 3)
    (0.3, 0.25)
    """
    check_pair(target, draft)
    _check_test(accept)
    return _relaxed(target, draft, accept, target)


AFTER = {"opt": decoding_opt, "uno": decoding_uno}


@dataclass(frozen=True, slots=True)
class RelaxedText:
    """The effect of over-acceptance on a text of a chain, per token."""

    rejected: float
    bias: float  # bias of one token, averaged over the contexts
    score: float  # log-probability of the output under the target
    lossless_score: float  # the same for the target's own texts: minus its entropy


def _score(laws: Tensor, target: Tensor, where: Tensor) -> float:
    """Return the mean log-probability of a token; −∞ for tokens that the target excludes."""
    logs = torch.where(laws > 0, target.log(), 0.0)
    return float((where @ (laws * logs)).sum())


def relaxed_text(pair: ChainPair, epsilon: float, after: str, length: int) -> RelaxedText:
    """Return the effect of Decoding-OPT or Decoding-UNO ([yin2024]) with the relaxed test on whole texts of a chain.

    The output is a chain again, so rejections, bias and log-likelihood are sums over its contexts."""
    if after not in AFTER:
        raise ArgumentError(f"after must be one of {', '.join(AFTER)}, got {after!r}")
    found = AFTER[after](pair.target, pair.draft, relaxed_test(pair.target, pair.draft, epsilon))
    where = contexts(found.law, length).mean(0)
    plain = contexts(pair.target, length).mean(0)
    return RelaxedText(
        float(where @ found.rejected),
        float(where @ found.bias),
        _score(found.law, pair.target, where),
        _score(pair.target, pair.target, plain),
    )
