"""Maps of logits that look at the text of each node, as tensor operations on the device: no loop, no host sync.

A tree node's text is what its row committed and its path. What the committed text asks for is the same for all nodes of
a row and is applied to (B, 1, V); the few tokens on a path are then written over.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.policy.history import Past
from spectr.policy.tokens import Bias, Words

__all__ = ["Penalties", "add_bias", "penalise", "strike_single_words", "strike_stops", "strike_words"]


@dataclass(frozen=True, slots=True)
class Penalties:
    """What makes tokens less likely that were there before."""

    repetition: float = 1.0  # Keskar et al., CTRL (arXiv 1909.05858): divides what is positive, multiplies what is not
    presence: float = 0.0  # subtracted from tokens generated before
    frequency: float = 0.0  # subtracted once for every time

    def __bool__(self) -> bool:
        return self.repetition != 1 or self.counting

    @property
    def counting(self) -> bool:
        """Whether it matters how often a token was generated."""
        return self.presence != 0 or self.frequency != 0

    def repeat(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Logits of tokens that prompt or text has, where `seen`."""
        pressed = torch.where(logits < 0, logits * self.repetition, logits / self.repetition)
        return torch.where(seen, pressed, logits)

    def count(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Logits of tokens that were generated `counts` times."""
        return logits - self.presence * (counts > 0).to(logits.dtype) - self.frequency * counts.to(logits.dtype)


def add_bias(logits: Tensor, bias: Bias) -> Tensor:
    """Logits (…, V) with each token's own bias."""
    ids, values = bias.on(logits.device, logits.shape[-1])
    return logits.index_add(-1, ids, values.to(logits.dtype).expand(*logits.shape[:-1], -1))


def penalise(logits: Tensor, past: Past, penalties: Penalties) -> Tensor:
    """Logits (B, M, V) with the penalties of each node's text."""
    tokens = past.paths.clamp_min(0)  # padding asks for token 0, which gets what it should have anyway
    fresh = (tokens[..., :, None] == past.paths[..., None, :]).sum(-1)  # (B, M, D) times on the path; -1 is no token
    if penalties.repetition != 1:
        seen = past.history.seen[:, None].expand(logits.shape)
        on_path = penalties.repeat(logits.gather(-1, tokens), seen.gather(-1, tokens) | (fresh > 0))
        logits = penalties.repeat(logits, seen).scatter(-1, tokens, on_path)
    if penalties.counting:
        counts = past.history.counts[:, None].expand(logits.shape)
        on_path = penalties.count(logits.gather(-1, tokens), counts.gather(-1, tokens) + fresh)
        logits = penalties.count(logits, counts).scatter(-1, tokens, on_path)
    return logits


def _strike(logits: Tensor, tokens: Tensor, hit: Tensor) -> Tensor:
    """Exclude `tokens` (W,), which may repeat, at the nodes where `hit` (B, M, W)."""
    lid = torch.zeros_like(hit, dtype=logits.dtype).masked_fill(hit, -torch.inf).masked_fill(~hit, torch.inf)
    return logits.scatter_reduce(-1, tokens.expand(hit.shape), lid, "amin")


def strike_single_words(logits: Tensor, words: Words) -> Tensor:
    """Logits (…, V) without the bad words of one token, which need no text."""
    single, _, _ = words.on(logits.device, logits.shape[-1])
    return logits.index_fill(-1, single, -torch.inf)


def strike_words(logits: Tensor, past: Past, words: Words) -> Tensor:
    """Logits (B, M, V) without the last token of a bad word where the others end the node's text."""
    _, last, before = words.on(logits.device, logits.shape[-1])
    window = past.window(words.reach)[..., None, :]  # (B, M, 1, reach)
    return _strike(logits, last, ((window == before) | (before < 0)).all(-1))


def strike_stops(logits: Tensor, past: Past, least: int) -> Tensor:
    """Logits (B, M, V) without stop tokens where fewer than `least` tokens were generated."""
    stops = past.history.stop_ids
    early = past.history.generated[:, None] + past.lengths < least
    return _strike(logits, stops, early[..., None].expand(*early.shape, stops.shape[0]))
