"""The tokens of one target call: where they are written, at which positions they stand, and what each attends to."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.kernels import usable
from spectr.models.session import Session
from spectr.rows import cached_arange

__all__ = ["FreshTokens", "feature_index", "prompt_tokens", "visible_slots"]


@dataclass(frozen=True, slots=True)
class FreshTokens:
    """Tokens that one call adds to a session. The scratch is the S nodes that were scored before, then these T
    tokens."""

    tokens: Tensor  # (B, T)
    positions: Tensor  # (B, T)
    slots: Tensor  # (B, S + T) slots of the scratch
    within: Tensor  # (B, T, S + T) bool: the part of the scratch that each token attends to
    attended: int  # slots that the call attends to, counted from the first


def prompt_tokens(session: Session, tokens: Tensor, counts: Tensor, *, attended: int, context: int) -> FreshTokens:
    """Place the first `counts` (B,) of the tokens (B, T) of each row behind its committed text. The rest is padding,
    which is written to the cache's last slot."""
    ids = torch.arange(tokens.shape[1], device=tokens.device)
    places = session.filled[:, None] + ids
    slots = torch.where(ids < counts[:, None], places, session.cache.size)
    within = (ids[:, None] >= ids).expand(len(tokens), -1, -1)  # causal among the fresh tokens
    return FreshTokens(tokens, places.clamp_max(context - 1), slots, within, attended)


def visible_slots(filled: Tensor, fresh: FreshTokens) -> Tensor:
    """Return (B, T, M) bool: each token sees all `filled` (B,) committed slots of its row, and the scratch that
    `within` allows. Padding tokens have slots past the end, which are cut off."""
    if usable(filled):
        from spectr.kernels.mask import seen_slots

        return seen_slots(filled, fresh.slots, fresh.within, fresh.attended)
    count = fresh.tokens.shape[1]
    every = cached_arange(fresh.attended + 1, filled.device)
    seen = (every < filled[:, None, None]).expand(-1, count, -1).clone()
    where = fresh.slots.clamp_max(fresh.attended)[:, None, :].expand(-1, count, -1)
    return seen.scatter_(2, where, fresh.within)[:, :, : fresh.attended]


def feature_index(slots: Tensor, features: Tensor) -> Tensor:
    """Return slots (B, T) as an index (B, T, H) for gather and scatter on features (B, M, H)."""
    return slots[..., None].expand(-1, -1, features.shape[-1])
