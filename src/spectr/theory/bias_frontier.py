"""Fewer rejections for a stated bias (Yin et al. 2024): the front, and two ways to go on after a rejection. Exact.

A test accepts a drafted token x with chance b(x). **Decoding-OPT** draws from ∝ (target − b·draft)⁺ after a rejection,
**Decoding-UNO** from the target itself. Bias is the total variation between what comes out and the target.
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
    "check_ease",
    "decoding_opt",
    "decoding_uno",
    "least_bias",
    "relaxed_test",
    "relaxed_text",
]


def least_bias(target: Tensor, draft: Tensor, rejected: float | Tensor) -> Tensor:
    """(TV − rejected)⁺: no test that rejects so often has less bias, whatever it does after a rejection ([yin2024], the
    theorem on the bias–rejection front).

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> round(float(least_bias(*laws, 0.1)), 3)
    0.3
    """
    check_pair(target, draft)
    return (total_variation(target, draft) - torch.as_tensor(rejected)).clamp_min(0)


def check_ease(epsilon: float) -> None:
    """How much a test is eased."""
    if isinstance(epsilon, bool) or not 0 <= epsilon < float("inf"):
        raise ArgumentError(f"epsilon must be at least 0 and finite, got {epsilon}")


def relaxed_test(target: Tensor, draft: Tensor, epsilon: float) -> Tensor:
    """min(1, (target + ε) / draft), (…, V): the over-accepting test that [yin2024] compares Decoding-OPT and
    Decoding-UNO with. ε = 0 is the lossless one."""
    check_ease(epsilon)
    return torch.where(draft > target, (target + epsilon) / torch.where(draft > 0, draft, 1.0), 1.0).clamp_max(1.0)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What a test and the law after a rejection come to."""

    rejected: Tensor  # (…)
    law: Tensor  # (…, V) of what comes out
    bias: Tensor  # (…)


def _check_test(accept: Tensor) -> None:
    if bool((accept < 0).any()) or bool((accept > 1).any()):
        raise ArgumentError("accept must hold probabilities in [0, 1], one for each token")


def _relaxed(target: Tensor, draft: Tensor, accept: Tensor, after: Tensor) -> Relaxed:
    taken = accept * draft
    rejected = 1 - taken.sum(-1)
    law = taken + rejected[..., None] * after
    return Relaxed(rejected, law, total_variation(law, target))


def decoding_opt(target: Tensor, draft: Tensor, accept: Tensor) -> Relaxed:
    """Any test, and after a rejection ∝ (target − accept·draft)⁺: the least bias that this test can have, Σ
    (accept·draft − target)⁺ ([yin2024], the theorem on Decoding-OPT).

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> found = decoding_opt(*laws, eased_test(*laws, 0.1))
    >>> round(float(found.rejected), 3), round(float(found.bias), 3)
    (0.3, 0.1)
    """
    check_pair(target, draft)
    _check_test(accept)
    return _relaxed(target, draft, accept, normalise((target - accept * draft).clamp_min(0), target))


def decoding_uno(target: Tensor, draft: Tensor, accept: Tensor) -> Relaxed:
    """The same test, and after a rejection the target's own law: the alternative of [yin2024] that is biased even where
    the test is the lossless one.

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> found = decoding_uno(*laws, eased_test(*laws, 0.1))
    >>> round(float(found.rejected), 3), round(float(found.bias), 3)
    (0.3, 0.25)
    """
    check_pair(target, draft)
    _check_test(accept)
    return _relaxed(target, draft, accept, target)


AFTER = {"opt": decoding_opt, "uno": decoding_uno}


@dataclass(frozen=True, slots=True)
class RelaxedText:
    """What over-acceptance does to a text of a chain, per token."""

    rejected: float
    bias: float  # of one token, over the contexts that come up
    score: float  # log probability under the target of what comes out
    lossless_score: float  # the same for the target's own texts: minus its entropy


def _score(laws: Tensor, target: Tensor, where: Tensor) -> float:
    """Mean log probability of a token; one that the target never gives has −∞."""
    logs = torch.where(laws > 0, target.log(), 0.0)
    return float((where @ (laws * logs)).sum())


def relaxed_text(pair: ChainPair, epsilon: float, after: str, length: int) -> RelaxedText:
    """Decoding-OPT or Decoding-UNO ([yin2024]) with the eased test along whole texts of a chain: what comes out is a
    chain again, so rejections, bias and the target's log-likelihood of it are sums over its contexts."""
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
