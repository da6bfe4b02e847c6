"""Faults in the policy, planted on purpose: each must differ from the reference."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spectr.audit.policies import POLICIES, step_case, tree_case
from spectr.audit.report import Case
from spectr.policy import History, Past, Policy, PolicyRows

__all__ = ["CommittedOnly", "OneTooFew", "PresenceOnPrompt", "policy_faults"]

Features = frozenset[str]


class OneTooFew(PolicyRows):
    """Top-p that stops before the token which completes the mass."""

    def _apply_shaping(self, logits: Tensor, features: Features) -> Tensor:
        kept = super()._apply_shaping(logits, features)
        least = torch.where(kept > -torch.inf, kept, torch.inf).amin(-1, keepdim=True)
        return kept.masked_fill((kept == least) & (kept < kept.amax(-1, keepdim=True)), -torch.inf)


class _TemperatureLast(PolicyRows):
    """Filters that act on the law before the temperature."""

    def _apply_shaping(self, logits: Tensor, features: Features) -> Tensor:
        filtered = super()._apply_shaping(logits, features - {"temperature"})
        return super()._apply_shaping(filtered, features & {"temperature"})


class _TiesCut(PolicyRows):
    """Top-k that keeps exactly k tokens where several are equally likely."""

    def _apply_shaping(self, logits: Tensor, features: Features) -> Tensor:
        return super()._apply_shaping(logits + torch.arange(logits.shape[-1]) * 1e-9, features)


class _NucleusTiesCut(PolicyRows):
    """Top-p that drops tokens as likely as the one which completes the mass."""

    def _apply_shaping(self, logits: Tensor, features: Features) -> Tensor:
        return super()._apply_shaping(logits - torch.arange(logits.shape[-1]) * 1e-9, features)


class _OfAll(PolicyRows):
    """Min-p that is a share of the whole mass and not of the likeliest token's."""

    def _apply_shaping(self, logits: Tensor, features: Features) -> Tensor:
        unlikely = logits.softmax(-1) < self.number("min_p")[:, None, None]
        return logits.masked_fill(unlikely & (logits < logits.amax(-1, keepdim=True)), -torch.inf)


class _OfTheFirstRow(PolicyRows):
    """Settings of the first row in all rows."""

    def number(self, name: str) -> Tensor:
        found = super().number(name)
        return found[:1].expand_as(found)


class _OtherText(PolicyRows):
    """What depends on the text is given another one: see `_other`."""

    def _apply_text_settings(self, logits: Tensor, past: Past | None, features: Features) -> Tensor:
        return super()._apply_text_settings(logits, None if past is None else self._other(past), features)

    def _other(self, past: Past) -> Past:
        raise NotImplementedError


class _SiblingsCount(_OtherText):
    """Penalties that also see the path of the node before: a tree read as if it were one text."""

    def _other(self, past: Past) -> Past:
        before = torch.cat([torch.full_like(past.paths[:, :1], -1), past.paths[:, :-1]], 1)
        return replace(past, paths=torch.cat([past.paths, before], -1))


class CommittedOnly(_OtherText):
    """What depends on the text sees the committed part alone, and not the path to the node."""

    def _other(self, past: Past) -> Past:
        return replace(past, paths=torch.full_like(past.paths, -1))


class _PathOnly(_OtherText):
    """What depends on the text sees the tree alone, root and path, and not the committed text before it."""

    def _other(self, past: Past) -> Past:
        given = past.history
        roots = [text[-1:] for text in given.texts]
        return replace(past, history=History.of(roots, given.vocabulary, stops=given.host[0].stops))


class PresenceOnPrompt(_OtherText):
    """Tokens of the prompt count as generated ones."""

    def _other(self, past: Past) -> Past:
        given = past.history
        all_generated = History.of([[] for _ in given.texts], given.vocabulary, stops=given.host[0].stops)
        all_generated.commit(given.texts)
        return replace(past, history=all_generated)


class _OtherSettings(PolicyRows):
    """What depends on the text follows other settings: see `_other`."""

    def _apply_text_settings(self, logits: Tensor, past: Past | None, features: Features) -> Tensor:
        others = PolicyRows.of([self._other(policy) for policy in self.policies], self.vocabulary)
        return others._apply_text_settings(logits, past, others.features())

    def _other(self, policy: Policy) -> Policy:
        raise NotImplementedError


class _OnceOnly(_OtherSettings):
    """A frequency penalty that counts no token twice."""

    def _other(self, policy: Policy) -> Policy:
        return Policy(presence_penalty=policy.frequency_penalty)


class _OneEarly(_OtherSettings):
    """A minimum length that is reached one token early."""

    def _other(self, policy: Policy) -> Policy:
        return Policy(min_new_tokens=policy.min_new_tokens - 1)


class _AlwaysDivided(PolicyRows):
    """A repetition penalty that divides logits of either sign, which favours repeated tokens of negative logits."""

    def _apply_text_settings(self, logits: Tensor, past: Past | None, features: Features) -> Tensor:
        return super()._apply_text_settings(logits.abs(), past, features) * logits.sign()


_FAULTS: tuple[tuple[str, type[PolicyRows], str], ...] = (
    ("top_p keeps one token too few", OneTooFew, "top_p"),
    ("top_p cuts between equals", _NucleusTiesCut, "top_p"),
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

_NEIGHBOURS: Sequence[Policy] = [Policy(0.5), Policy(2.0), Policy(), Policy(0)]


def policy_faults() -> Iterator[Case]:
    """Every fault on trees; those that depend on the text in steps, too."""
    yield tree_case("the first row's temperature in all rows, trees", _NEIGHBOURS, _OfTheFirstRow, "planted")
    for what, kind, name in _FAULTS:
        policy = POLICIES[name]
        yield tree_case(f"{what}, trees", [policy], kind, "planted")
        if policy.remembers:
            yield step_case(f"{what}, steps", policy, kind, "planted")
