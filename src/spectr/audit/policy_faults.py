"""Faults in the policy, planted on purpose: each must differ from the reference."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spectr.audit.policies import POLICIES, step_case, tree_case
from spectr.audit.report import Case
from spectr.policy import History, Past, Policy
from spectr.policy.filters import cool, keep_nucleus, keep_ranks

__all__ = ["CommittedOnly", "PresenceOnPrompt", "policy_faults"]


class _OneTooFew(Policy):
    """Top-p that stops before the token which completes the mass."""

    __slots__ = ()

    def _filtered(self, logits: Tensor) -> Tensor:
        kept = keep_nucleus(cool(logits, self.temperature), self.top_p)
        least = torch.where(kept > -torch.inf, kept, torch.inf).amin(-1, keepdim=True)
        return kept.masked_fill((kept == least) & (kept < kept.amax(-1, keepdim=True)), -torch.inf)


class _TemperatureLast(Policy):
    """Filters that act on the law before the temperature."""

    __slots__ = ()

    def _filtered(self, logits: Tensor) -> Tensor:
        return cool(replace(Policy(), top_p=self.top_p)(logits), self.temperature)


class _TiesCut(Policy):
    """Top-k that keeps exactly k tokens where several are equally likely."""

    __slots__ = ()

    def _filtered(self, logits: Tensor) -> Tensor:
        return keep_ranks(logits + torch.arange(logits.shape[-1]) * 1e-9, self.top_k)


class _OfAll(Policy):
    """Min-p that is a share of the whole mass and not of the likeliest token's."""

    __slots__ = ()

    def _filtered(self, logits: Tensor) -> Tensor:
        unlikely = logits.softmax(-1) < self.min_p
        return logits.masked_fill(unlikely & (logits < logits.amax(-1, keepdim=True)), -torch.inf)


class _SiblingsCount(Policy):
    """Penalties that also see the path of the node before: a tree read as if it were one text."""

    __slots__ = ()

    def _along(self, logits: Tensor, past: Past) -> Tensor:
        before = torch.cat([torch.full_like(past.paths[:, :1], -1), past.paths[:, :-1]], 1)
        return super()._along(logits, replace(past, paths=torch.cat([past.paths, before], -1)))


class CommittedOnly(Policy):
    """What depends on the text sees the committed part alone, and not the path to the node."""

    __slots__ = ()

    def _along(self, logits: Tensor, past: Past) -> Tensor:
        return super()._along(logits, replace(past, paths=torch.full_like(past.paths, -1)))


class _PathOnly(Policy):
    """What depends on the text sees the tree alone, root and path, and not the committed text before it."""

    __slots__ = ()

    def _along(self, logits: Tensor, past: Past) -> Tensor:
        given = past.history
        roots = History([text[-1:] for text in given.texts], given.vocabulary, stops=given.stops)
        return super()._along(logits, replace(past, history=roots))


class PresenceOnPrompt(Policy):
    """Tokens of the prompt count as generated ones."""

    __slots__ = ()

    def _along(self, logits: Tensor, past: Past) -> Tensor:
        given = past.history
        all_generated = History([[] for _ in given.texts], given.vocabulary, stops=given.stops)
        all_generated.commit([list(text) for text in given.texts])
        return super()._along(logits, replace(past, history=all_generated))


class _OnceOnly(Policy):
    """A frequency penalty that counts no token twice."""

    __slots__ = ()

    def _along(self, logits: Tensor, past: Past) -> Tensor:
        return Policy(presence_penalty=self.frequency_penalty)._along(logits, past)


class _OneEarly(Policy):
    """A minimum length that is reached one token early."""

    __slots__ = ()

    def _along(self, logits: Tensor, past: Past) -> Tensor:
        return replace(Policy(), min_new_tokens=self.min_new_tokens - 1)._along(logits, past)


class _AlwaysDivided(Policy):
    """A repetition penalty that divides logits of either sign, which favours repeated tokens of negative logits."""

    __slots__ = ()

    def _along(self, logits: Tensor, past: Past) -> Tensor:
        kind: Any = Policy(repetition_penalty=self.repetition_penalty)
        pressed = kind._along(logits.abs(), past) * logits.sign()
        return torch.where(logits < 0, pressed, kind._along(logits, past))


_FAULTS: tuple[tuple[str, type[Policy], str], ...] = (
    ("top_p keeps one token too few", _OneTooFew, "top_p"),
    ("temperature after the filters", _TemperatureLast, "temperature and every filter"),
    ("top_k cuts between equals", _TiesCut, "top_k"),
    ("min_p of the whole mass", _OfAll, "min_p"),
    ("penalties leak from a sibling", _SiblingsCount, "frequency_penalty"),
    ("penalties leak from a sibling, repetition", _SiblingsCount, "repetition_penalty"),
    ("presence penalty counts the prompt", PresenceOnPrompt, "presence_penalty"),
    ("frequency penalty counts once", _OnceOnly, "frequency_penalty"),
    ("repetition penalty divides negative logits", _AlwaysDivided, "repetition_penalty"),
    ("bad words in the committed text only", CommittedOnly, "bad_words"),
    ("bad words on the path only", _PathOnly, "bad_words"),
    ("minimum length reached one early", _OneEarly, "min_new_tokens"),
    ("minimum length ignores the path", CommittedOnly, "min_new_tokens"),
    ("n-grams repeated from before the tree", _PathOnly, "no_repeat_ngram_size of 2"),
    ("first tokens suppressed on the whole path", CommittedOnly, "begin_suppress_tokens"),
    ("forced end ignores the path", CommittedOnly, "forced_eos_token_id"),
    ("hook asked about the committed text only", CommittedOnly, "allowed"),
    ("processor called with the path only", _PathOnly, "processors"),
)
"""What is wrong, where, and the policy of `POLICIES` that it is planted in."""


def _planted(kind: type[Policy], name: str) -> Policy:
    """A policy of `POLICIES` with a fault."""
    sound = POLICIES[name]
    return kind(**{setting: getattr(sound, setting) for setting in Policy.__dataclass_fields__})


def policy_faults() -> Iterator[Case]:
    """Every fault on trees; those that depend on the text in steps, too."""
    for what, kind, name in _FAULTS:
        yield tree_case(f"{what}, trees", _planted(kind, name), "planted")
        if POLICIES[name].remembers:
            yield step_case(f"{what}, steps", _planted(kind, name), "planted")
