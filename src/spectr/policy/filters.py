"""Maps of one law's logits that know no text: temperature, the point mass, and the filters. Excluded tokens are −inf.

Names, order and meanings are those of transformers; where equal logits meet a border, all of them stay.
"""

import math

import torch
from torch import Tensor

__all__ = [
    "cool",
    "exclude",
    "keep_above",
    "keep_above_entropy",
    "keep_likely",
    "keep_nucleus",
    "keep_ranks",
    "keep_typical",
    "point_mass",
]


def exclude(logits: Tensor, gone: Tensor) -> Tensor:
    """No mass where `gone`."""
    return logits.masked_fill(gone, -torch.inf)


def cool(logits: Tensor, temperature: float) -> Tensor:
    """Logits divided by a positive temperature."""
    if temperature < 1e-3:  # from the largest down, where a plain division could overflow
        logits = logits - logits.amax(-1, keepdim=True)
    return logits if temperature == 1 else logits / temperature


def point_mass(logits: Tensor) -> Tensor:
    """All mass on the largest logit; of several equal ones on the lowest id."""
    best = logits.amax(-1, keepdim=True)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    first = torch.where(logits == best, ids, logits.shape[-1]).amin(-1, keepdim=True)
    return torch.full_like(logits, -torch.inf).scatter_(-1, first, 0.0)


def keep_ranks(logits: Tensor, count: int) -> Tensor:
    """The `count` largest; those equal to the last of them stay too."""
    return exclude(logits, logits < logits.topk(count, -1).values[..., -1:])


def keep_nucleus(logits: Tensor, mass: float) -> Tensor:
    """The smallest set of likeliest tokens that holds at least `mass`."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    law = ordered.double().softmax(-1)
    beyond = law.cumsum(-1) - law >= mass
    return exclude(logits, torch.zeros_like(beyond).scatter_(-1, order, beyond))


def keep_likely(logits: Tensor, share: float) -> Tensor:
    """Tokens at least `share` times as likely as the likeliest."""
    law = logits.softmax(-1)
    return exclude(logits, law < share * law.amax(-1, keepdim=True))


def keep_typical(logits: Tensor, mass: float) -> Tensor:
    """The smallest set of tokens with a surprise nearest to the entropy that holds at least `mass`.

    Meister et al., Locally Typical Sampling (arXiv 2202.00666). Tokens as far off as the last of them stay too.
    """
    surprise = -logits.double().log_softmax(-1)
    law = surprise.neg().exp()
    entropy = torch.where(law > 0, law * surprise, 0.0).sum(-1, keepdim=True)
    distance = (surprise - entropy).abs()
    ordered, order = distance.sort(dim=-1, stable=True)
    last = (law.gather(-1, order).cumsum(-1) < mass).sum(-1, keepdim=True)
    border = ordered.gather(-1, last.clamp(max=logits.shape[-1] - 1))
    return exclude(logits, distance > border)


def keep_above(logits: Tensor, chance: float | Tensor) -> Tensor:
    """Tokens of probability `chance` at least; where there are none, the likeliest."""
    unlikely = logits.softmax(-1) < chance
    return exclude(logits, unlikely & (logits < logits.amax(-1, keepdim=True)))


def keep_above_entropy(logits: Tensor, epsilon: float) -> Tensor:
    """Tokens of probability η = min(ε, √ε · exp(−entropy)) at least; where there are none, the likeliest.

    Hewitt et al., Truncation Sampling as Language Model Desmoothing (arXiv 2210.15191).
    """
    surprise = -logits.log_softmax(-1)
    law = surprise.neg().exp()
    entropy = torch.where(law > 0, law * surprise, 0.0).sum(-1, keepdim=True)
    return keep_above(logits, (math.sqrt(epsilon) * entropy.neg().exp()).clamp(max=epsilon))
