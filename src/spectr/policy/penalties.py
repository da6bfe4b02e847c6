"""Functions of logits that depend on the text of each node, as tensor operations that do not wait for the device.

The text of a node is the committed text of its row, and its path. The effect of the committed text is the same for all
nodes of a row and is applied to all of them; the few tokens on a path are then overwritten.
"""

import torch
from torch import Tensor

from spectr.policy.history import Past

__all__ = [
    "add_bias",
    "force_last",
    "penalise_counts",
    "penalise_repetition",
    "strike_first",
    "strike_repeats",
    "strike_stops",
    "strike_words",
]


def add_bias(logits: Tensor, bias: Tensor) -> Tensor:
    """Add the bias (B, V) of each row to logits (B, M, V); −inf excludes a token."""
    return logits + bias.to(logits.dtype)[:, None]


def _times_on_path(past: Past) -> tuple[Tensor, Tensor]:
    """Return the tokens of each path (B, M, D), with padding as token 0, and how often each of them occurs on it."""
    tokens = past.paths.clamp_min(0)  # padding writes to token 0 the value that it has anyway
    return tokens, (tokens[..., :, None] == past.paths[..., None, :]).sum(-1)  # -1 equals no token


def penalise_repetition(logits: Tensor, past: Past, penalty: Tensor) -> Tensor:
    """Penalise tokens that occur in prompt or text: positive logits (B, M, V) are divided by `penalty` (B, 1, 1), and
    others multiplied. Keskar et al., CTRL (arXiv 1909.05858)."""

    def penalised(values: Tensor, seen: Tensor) -> Tensor:
        return torch.where(seen, torch.where(values < 0, values * penalty, values / penalty), values)

    tokens, times = _times_on_path(past)
    seen = past.history.seen[:, None].expand(logits.shape)
    on_path = penalised(logits.gather(-1, tokens), seen.gather(-1, tokens) | (times > 0))
    return penalised(logits, seen).scatter(-1, tokens, on_path)


def penalise_counts(logits: Tensor, past: Past, presence: Tensor, frequency: Tensor) -> Tensor:
    """Subtract `presence` (B, 1, 1) from the logits (B, M, V) of tokens that were generated before, and `frequency`
    for every time."""

    def penalised(values: Tensor, counts: Tensor) -> Tensor:
        return values - presence * (counts > 0).to(values.dtype) - frequency * counts.to(values.dtype)

    tokens, times = _times_on_path(past)
    counts = past.history.counts[:, None].expand(logits.shape)
    on_path = penalised(logits.gather(-1, tokens), counts.gather(-1, tokens) + times)
    return penalised(logits, counts).scatter(-1, tokens, on_path)


def _strike(logits: Tensor, tokens: Tensor, hit: Tensor) -> Tensor:
    """Exclude `tokens`, (W,) or (B, M, W), which may repeat, at the nodes where `hit` (B, M, W)."""
    upper = torch.zeros_like(hit, dtype=logits.dtype).masked_fill(hit, -torch.inf).masked_fill(~hit, torch.inf)
    return logits.scatter_reduce(-1, tokens.expand(hit.shape), upper, "amin")


def strike_words(logits: Tensor, past: Past, last: Tensor, before: Tensor) -> Tensor:
    """Exclude the `last` tokens (B, W) of bad words, padded with -1, where the node's text ends with the tokens
    `before` them (B, W, reach), padded with -1."""
    window = past.tail(before.shape[-1])[..., None, :]  # (B, M, 1, reach)
    hit = ((window == before[:, None]) | (before[:, None] < 0)).all(-1) & (last >= 0)[:, None]
    return _strike(logits, last.clamp_min(0)[:, None], hit)


def strike_stops(logits: Tensor, past: Past, least_new: Tensor, least: Tensor) -> Tensor:
    """Exclude stop tokens where fewer than `least_new` (B,) tokens were generated, or where prompt and text have fewer
    than `least` (B,) tokens."""
    early = past.history.generated[:, None] + past.lengths < least_new[:, None]
    early = early | (past.history.length[:, None] + past.lengths < least[:, None])
    stops = past.history.stop_ids  # (B, S)
    return _strike(logits, stops.clamp_min(0)[:, None], early[..., None] & (stops >= 0)[:, None])


def strike_first(logits: Tensor, past: Past, tokens: Tensor) -> Tensor:
    """Exclude `tokens` (B, K), padded with -1, where no token was generated before."""
    first = past.history.generated[:, None] + past.lengths == 0
    known = (tokens >= 0) & (tokens < logits.shape[-1])
    return _strike(logits, torch.where(known, tokens, 0)[:, None], first[..., None] & known[:, None])


def force_last(logits: Tensor, past: Past, tokens: Tensor) -> Tensor:
    """Leave only `tokens` (B, K), padded with -1 and equally likely, where exactly one more token may be generated."""
    last = past.history.left[:, None] - past.lengths == 1
    places = torch.where(tokens >= 0, tokens, logits.shape[-1])
    forced = logits.new_full((len(tokens), logits.shape[-1] + 1), -torch.inf).scatter_(1, places, 0.0)[:, None, :-1]
    return torch.where(last[..., None], forced, logits)


def strike_repeats(logits: Tensor, past: Past, sizes: Tensor, longest: int) -> Tensor:
    """Exclude the tokens that would repeat a sequence of `sizes` (B,) tokens of a node's text; a size of 0 excludes
    none. No size is above `longest`."""
    longest = max(longest, 1)
    before = past.tail(longest - 1)  # (B, M, longest - 1)
    text = torch.nn.functional.pad(past.history.tokens, (longest - 1, 0), value=-1)
    logits = _strike_completions(logits, text.unfold(-1, longest, 1)[:, None], before, sizes)
    if not past.paths.shape[-1]:
        return logits
    tail = past.history.tail(longest - 1)[:, None].expand(*before.shape)
    on_path = torch.cat([tail, past.paths], -1).unfold(
        -1, longest, 1
    )  # (B, M, D, longest): the sequences that end on the path
    return _strike_completions(logits, on_path, before, sizes)


def _strike_completions(logits: Tensor, sequences: Tensor, before: Tensor, sizes: Tensor) -> Tensor:
    """Exclude the last token of `sequences` (B, 1 or M, S, longest) where the `sizes` - 1 tokens before it equal the
    last ones of `before` (B, M, longest - 1). Padding is -1, and matches nothing."""
    last, size = sequences[..., -1], sizes[:, None, None]
    hit = ((last >= 0) & (last < logits.shape[-1]) & (size > 0)).expand(-1, logits.shape[1], -1)
    for back in range(1, before.shape[-1] + 1):
        known = before[..., -back, None]
        hit = hit & (((sequences[..., -1 - back] == known) & (known >= 0)) | (back >= size))
    return _strike(logits, last.clamp(0, logits.shape[-1] - 1), hit)
