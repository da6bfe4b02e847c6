"""The policy: from a model's logits to the logits of the law that is sampled. One for target and drafter.

Temperature and filters are maps of logits, so losslessness is always with respect to the law *after* the policy. Greedy
is temperature 0, the point-mass law, and no second code path. Knows one row at a time: no tree, no history yet.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.errors import ArgumentError

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """Temperature, then top-k, top-p and min-p, in that order; the names and meanings people know.

    >>> Policy(temperature=0)(torch.tensor([0.0, 2.0, 1.0])).tolist()
    [-inf, 0.0, -inf]
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ArgumentError(f"temperature must be at least 0 (0 is greedy), got {self.temperature}")
        if self.top_k < 0:
            raise ArgumentError(f"top_k must be at least 1, or 0 for off, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p must lie in (0, 1], got {self.top_p}; 1 is off")
        if not 0 <= self.min_p <= 1:
            raise ArgumentError(f"min_p must lie in [0, 1], got {self.min_p}; 0 is off")

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits (…, V) of the law to sample, float32 or better; excluded tokens are −inf."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.temperature == 0:
            return _point_mass(logits)
        if self.temperature < 1e-3:  # from the largest down, where a plain division could overflow
            logits = logits - logits.amax(-1, keepdim=True)
        if self.temperature != 1:
            logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            logits = _keep_ranks(logits, self.top_k)
        if self.top_p < 1:
            logits = _keep_nucleus(logits, self.top_p)
        if self.min_p > 0:
            logits = _keep_likely(logits, self.min_p)
        return logits


def _exclude(logits: Tensor, gone: Tensor) -> Tensor:
    return logits.masked_fill(gone, -torch.inf)


def _point_mass(logits: Tensor) -> Tensor:
    """All mass on the largest logit; of several equal ones on the lowest id."""
    best = logits.amax(-1, keepdim=True)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    first = torch.where(logits == best, ids, logits.shape[-1]).amin(-1, keepdim=True)
    return torch.full_like(logits, -torch.inf).scatter_(-1, first, 0.0)


def _keep_ranks(logits: Tensor, count: int) -> Tensor:
    """The `count` largest; those equal to the last of them stay too."""
    return _exclude(logits, logits < logits.topk(count, -1).values[..., -1:])


def _keep_nucleus(logits: Tensor, mass: float) -> Tensor:
    """The smallest set of likeliest tokens that holds at least `mass`."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    law = ordered.double().softmax(-1)
    beyond = law.cumsum(-1) - law >= mass
    return _exclude(logits, torch.zeros_like(beyond).scatter_(-1, order, beyond))


def _keep_likely(logits: Tensor, share: float) -> Tensor:
    """Tokens at least `share` times as likely as the likeliest."""
    law = logits.softmax(-1)
    return _exclude(logits, law < share * law.amax(-1, keepdim=True))
