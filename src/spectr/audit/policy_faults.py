"""Deliberate faults in the policy, each of which must differ from the reference."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spectr.audit.policies import POLICIES, step_case, tree_case
from spectr.audit.report import Case
from spectr.policy import History, Past, Policy, PolicyRows

__all__ = ["CommittedOnly", "OneTooFew", "PresenceOnPrompt", "policy_faults"]

Stages = frozenset[str]


class OneTooFew(PolicyRows):
    """Top-p without the token that completes the mass."""

    def _apply_shaping(self, logits: Tensor, stages: Stages) -> Tensor:
        kept = super()._apply_shaping(logits, stages)
        least = torch.where(kept > -torch.inf, kept, torch.inf).amin(-1, keepdim=True)
        return kept.masked_fill((kept == least) & (kept < kept.amax(-1, keepdim=True)), -torch.inf)


class _TemperatureLast(PolicyRows):
    """Filters that are applied before the temperature."""

    def _apply_shaping(self, logits: Tensor, stages: Stages) -> Tensor:
        filtered = super()._apply_shaping(logits, stages - {"temperature"})
        return super()._apply_shaping(filtered, stages & {"temperature"})


class _TiesCut(PolicyRows):
    """Top-k that keeps exactly k tokens even if more are equally likely."""

    def _apply_shaping(self, logits: Tensor, stages: Stages) -> Tensor:
        return super()._apply_shaping(logits + torch.arange(logits.shape[-1]) * 1e-9, stages)


class _NucleusTiesCut(PolicyRows):
    """Top-p that drops tokens as likely as the one that completes the mass."""

    def _apply_shaping(self, logits: Tensor, stages: Stages) -> Tensor:
        return super()._apply_shaping(logits - torch.arange(logits.shape[-1]) * 1e-9, stages)


class _OfAll(PolicyRows):
    """Min-p relative to the whole mass instead of the likeliest token's."""

    def _apply_shaping(self, logits: Tensor, stages: Stages) -> Tensor:
        unlikely = logits.softmax(-1) < self.number("min_p")[:, None, None]
        return logits.masked_fill(unlikely & (logits < logits.amax(-1, keepdim=True)), -torch.inf)


class _OfTheFirstRow(PolicyRows):
    """Applies the settings of the first row to all rows."""

    def number(self, name: str) -> Tensor:
        values = super().number(name)
        return values[:1].expand_as(values)


class _OtherText(PolicyRows):
    """Computes settings that depend on the text for another text, given by `_other`."""

    def _apply_text_settings(self, logits: Tensor, past: Past | None, stages: Stages) -> Tensor:
        return super()._apply_text_settings(logits, None if past is None else self._other(past), stages)

    def _other(self, past: Past) -> Past:
        raise NotImplementedError


class _SiblingsCount(_OtherText):
    """Penalties that also include the path of the previous node, as if the tree were one text."""

    def _other(self, past: Past) -> Past:
        before = torch.cat([torch.full_like(past.paths[:, :1], -1), past.paths[:, :-1]], 1)
        return replace(past, paths=torch.cat([past.paths, before], -1))


class CommittedOnly(_OtherText):
    """Settings that depend on the text use the committed part only, without the path to the node."""

    def _other(self, past: Past) -> Past:
        return replace(past, paths=torch.full_like(past.paths, -1))


class _PathOnly(_OtherText):
    """Settings that depend on the text use root and path only, without the committed text before."""

    def _other(self, past: Past) -> Past:
        history = past.history
        roots = [text[-1:] for text in history.texts]
        return replace(past, history=History.of(roots, history.vocabulary, stops=history.host[0].stops))


class PresenceOnPrompt(_OtherText):
    """Counts tokens of the prompt as generated."""

    def _other(self, past: Past) -> Past:
        history = past.history
        all_generated = History.of([[] for _ in history.texts], history.vocabulary, stops=history.host[0].stops)
        all_generated.commit(history.texts)
        return replace(past, history=all_generated)


class _OtherSettings(PolicyRows):
    """Applies other settings, given by `_other`, to what depends on the text."""

    def _apply_text_settings(self, logits: Tensor, past: Past | None, stages: Stages) -> Tensor:
        others = PolicyRows.of([self._other(policy) for policy in self.policies], self.vocabulary)
        return others._apply_text_settings(logits, past, others.stages())

    def _other(self, policy: Policy) -> Policy:
        raise NotImplementedError


class _OnceOnly(_OtherSettings):
    """A frequency penalty that counts every token once."""

    def _other(self, policy: Policy) -> Policy:
        return Policy(presence_penalty=policy.frequency_penalty)


class _OneEarly(_OtherSettings):
    """A minimum length that ends one token early."""

    def _other(self, policy: Policy) -> Policy:
        return Policy(min_new_tokens=policy.min_new_tokens - 1)


class _AlwaysDivided(PolicyRows):
    """A repetition penalty that divides logits of either sign, which favours repeated tokens with negative logits."""

    def _apply_text_settings(self, logits: Tensor, past: Past | None, stages: Stages) -> Tensor:
        return super()._apply_text_settings(logits.abs(), past, stages) * logits.sign()


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
"""Name of the fault, its implementation, and the policy of `POLICIES` that it is tested with."""

_NEIGHBOURS: Sequence[Policy] = [Policy(0.5), Policy(2.0), Policy(), Policy(0)]


def policy_faults() -> Iterator[Case]:
    """Return cases of every fault on trees, and of those that depend on the text in steps."""
    yield tree_case("the first row's temperature in all rows, trees", _NEIGHBOURS, _OfTheFirstRow, "planted")
    for what, kind, name in _FAULTS:
        policy = POLICIES[name]
        yield tree_case(f"{what}, trees", [policy], kind, "planted")
        if policy.remembers:
            yield step_case(f"{what}, steps", policy, kind, "planted")
