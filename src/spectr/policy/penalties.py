"""Maps of logits that look at the text of each node, as tensor operations on the device: no loop, no host sync.

A tree node's text is what its row committed and its path. What the committed text asks for is the same for all nodes of
a row and is applied to (B, 1, V); the few tokens on a path are then written over.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.policy.history import Past
from spectr.policy.tokens import Bias, Tokens, Words

__all__ = [
    "Penalties",
    "add_bias",
    "force_last",
    "penalise",
    "strike_first",
    "strike_repeats",
    "strike_single_words",
    "strike_stops",
    "strike_tokens",
    "strike_words",
]


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
    """Exclude `tokens`, (W,) or (B, M, W), which may repeat, at the nodes where `hit` (B, M, W)."""
    lid = torch.zeros_like(hit, dtype=logits.dtype).masked_fill(hit, -torch.inf).masked_fill(~hit, torch.inf)
    return logits.scatter_reduce(-1, tokens.expand(hit.shape), lid, "amin")


def _strike_where(logits: Tensor, tokens: Tensor, nodes: Tensor) -> Tensor:
    """Exclude `tokens` (W,) at `nodes` (B, M) bool."""
    return _strike(logits, tokens, nodes[..., None].expand(*nodes.shape, tokens.shape[0]))


def strike_tokens(logits: Tensor, tokens: Tokens) -> Tensor:
    """Logits (…, V) without `tokens`, wherever they stand."""
    return logits.index_fill(-1, tokens.on(logits.device, logits.shape[-1]), -torch.inf)


def strike_single_words(logits: Tensor, words: Words) -> Tensor:
    """Logits (…, V) without the bad words of one token, which need no text."""
    single, _, _ = words.on(logits.device, logits.shape[-1])
    return logits.index_fill(-1, single, -torch.inf)


def strike_words(logits: Tensor, past: Past, words: Words) -> Tensor:
    """Logits (B, M, V) without the last token of a bad word where the others end the node's text."""
    _, last, before = words.on(logits.device, logits.shape[-1])
    window = past.window(words.reach)[..., None, :]  # (B, M, 1, reach)
    return _strike(logits, last, ((window == before) | (before < 0)).all(-1))


def strike_stops(logits: Tensor, past: Past, least_new: int, least: int) -> Tensor:
    """Logits (B, M, V) without stop tokens where fewer than `least_new` tokens were generated, or where prompt and text
    have fewer than `least`."""
    early = past.history.generated[:, None] + past.lengths < least_new
    if least:
        early = early | (past.history.length[:, None] + past.lengths < least)
    return _strike_where(logits, past.history.stop_ids, early)


def strike_first(logits: Tensor, past: Past, tokens: Tokens) -> Tensor:
    """Logits (B, M, V) without `tokens` where nothing was generated yet."""
    first = past.history.generated[:, None] + past.lengths == 0
    return _strike_where(logits, tokens.on(logits.device, logits.shape[-1]), first)


def force_last(logits: Tensor, past: Past, tokens: Tokens) -> Tensor:
    """Logits (B, M, V) that leave `tokens` alone, equally likely, where one more token may be generated."""
    last = past.history.left[:, None] - past.lengths == 1
    ids = tokens.on(logits.device, logits.shape[-1])
    forced = logits.new_full(logits.shape[-1:], -torch.inf).index_fill(0, ids, 0.0)
    return torch.where(last[..., None], forced, logits)


def strike_repeats(logits: Tensor, past: Past, size: int) -> Tensor:
    """Logits (B, M, V) without the tokens that would make a sequence of `size` tokens stand in a node's text twice."""
    B, M, D = past.paths.shape
    before = past.window(size - 1)  # (B, M, size - 1)
    committed = torch.nn.functional.pad(past.history.text_ids, (0, size - 1), value=-1)
    logits = _strike_completions(logits, committed.unfold(-1, size, 1)[:, None], before)
    if not D:
        return logits
    tail = past.history.tail(size - 1)[:, None].expand(B, M, size - 1)
    on_path = torch.cat([tail, past.paths], -1).unfold(-1, size, 1)  # (B, M, D, size): those that end on the path
    return _strike_completions(logits, on_path, before)


def _strike_completions(logits: Tensor, sequences: Tensor, before: Tensor) -> Tensor:
    """Exclude the last token of `sequences` (B, 1 or M, S, size) where its others are `before` (B, M, size - 1)."""
    last = sequences[..., -1]
    hit = ((last >= 0) & (last < logits.shape[-1])).expand(-1, logits.shape[1], -1)  # padding is -1 and completes none
    for place in range(before.shape[-1]):
        hit = hit & (sequences[..., place] == before[..., place, None])
    return _strike(logits, last.clamp(0, logits.shape[-1] - 1), hit)
