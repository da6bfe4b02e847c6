"""Functions of logits that do not depend on the text: the point mass and the filters. Excluded tokens are −inf.

Names, order and meanings are those of transformers; tokens with the same logit as the last one kept are kept too.
"""

import torch
from torch import Tensor

__all__ = [
    "exclude",
    "keep_epsilon",
    "keep_eta",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "keep_typical",
    "point_mass",
]


def exclude(logits: Tensor, excluded: Tensor) -> Tensor:
    """Set logits to −inf where `excluded`."""
    return logits.masked_fill(excluded, -torch.inf)


def point_mass(logits: Tensor) -> Tensor:
    """Put all mass on the largest logit, and among equal ones on the lowest id."""
    best = logits.amax(-1, keepdim=True)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    first = torch.where(logits == best, ids, logits.shape[-1]).amin(-1, keepdim=True)
    return torch.full_like(logits, -torch.inf).scatter_(-1, first, 0.0)


def keep_top_k(logits: Tensor, count: Tensor) -> Tensor:
    """Keep the `count` (…, 1) largest logits and those equal to the last of them; keep all where `count` is 0."""
    most = int(count.max().clamp(1, logits.shape[-1])) if logits.device.type == "cpu" else logits.shape[-1]
    ordered = logits.topk(most, -1).values
    place = (count - 1).clamp(0, most - 1).expand(*logits.shape[:-1], 1)
    off = (count < 1) | (count >= logits.shape[-1])
    return exclude(logits, (logits < ordered.gather(-1, place)) & ~off)


def keep_top_p(logits: Tensor, mass: Tensor) -> Tensor:
    """Keep the smallest set of likeliest tokens with a mass of at least `mass` (…, 1), and tokens as likely as the
    last of them; keep all where `mass` is 1."""
    ordered = logits.sort(dim=-1, descending=True).values
    law = ordered.double().softmax(-1)
    count = (law.cumsum(-1) - law < mass).sum(-1, keepdim=True)  # tokens before which the sum is below the mass
    return exclude(logits, (logits < ordered.gather(-1, (count - 1).clamp_min(0))) & (mass < 1))


def keep_min_p(logits: Tensor, share: Tensor) -> Tensor:
    """Keep tokens that are at least `share` (…, 1) times as likely as the likeliest."""
    law = logits.softmax(-1)
    return exclude(logits, law < share * law.amax(-1, keepdim=True))


def keep_typical(logits: Tensor, mass: Tensor) -> Tensor:
    """Keep the smallest set of tokens, those with a surprise nearest to the entropy, with a mass of at least `mass`
    (…, 1). Tokens as far from the entropy as the last of them are kept too.

    Meister et al., Locally Typical Sampling (arXiv 2202.00666).
    """
    surprise = -logits.double().log_softmax(-1)
    law = surprise.neg().exp()
    entropy = torch.where(law > 0, law * surprise, 0.0).sum(-1, keepdim=True)
    distance = (surprise - entropy).abs()
    ordered, order = distance.sort(dim=-1, stable=True)
    last = (law.gather(-1, order).cumsum(-1) < mass).sum(-1, keepdim=True)
    border = ordered.gather(-1, last.clamp(max=logits.shape[-1] - 1))
    return exclude(logits, distance > border)


def keep_epsilon(logits: Tensor, least: Tensor) -> Tensor:
    """Keep tokens of a probability of at least `least` (…, 1), or the likeliest if there are none."""
    unlikely = logits.softmax(-1) < least
    return exclude(logits, unlikely & (logits < logits.amax(-1, keepdim=True)))


def keep_eta(logits: Tensor, epsilon: Tensor) -> Tensor:
    """Keep tokens of a probability of at least η = min(ε, √ε · exp(−entropy)), or the likeliest if there are none.

    Hewitt et al., Truncation Sampling as Language Model Desmoothing (arXiv 2210.15191).
    """
    surprise = -logits.log_softmax(-1)
    law = surprise.neg().exp()
    entropy = torch.where(law > 0, law * surprise, 0.0).sum(-1, keepdim=True)
    return keep_epsilon(logits, torch.minimum(epsilon.sqrt() * entropy.neg().exp(), epsilon))
