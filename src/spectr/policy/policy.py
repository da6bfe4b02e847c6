"""The policy itself: its settings, what they must be, and the order in which they act."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.policy.filters import (
    cool,
    keep_above,
    keep_above_entropy,
    keep_likely,
    keep_nucleus,
    keep_ranks,
    keep_typical,
    point_mass,
)
from spectr.policy.history import Past
from spectr.policy.hooks import Allowed, Processor, as_hooks, as_processors, process, strike_disallowed
from spectr.policy.penalties import (
    Penalties,
    add_bias,
    force_last,
    penalise,
    strike_first,
    strike_repeats,
    strike_single_words,
    strike_stops,
    strike_tokens,
    strike_words,
)
from spectr.policy.tokens import Bias, Tokens, Words

__all__ = ["Policy", "merge_settings"]

_NO_BIAS, _NO_WORDS = Bias({}), Words([])
_TOKEN_SETS = ("suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id")

_RANGES: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "temperature": (Real, lambda x: 0 <= x < math.inf, "be at least 0 and finite (0 is greedy)"),
    "top_k": (Integral, lambda x: x >= 0, "be a whole number, at least 1, or 0 for off"),
    "top_p": (Real, lambda x: 0 < x <= 1, "lie in (0, 1], where 1 is off"),
    "min_p": (Real, lambda x: 0 <= x <= 1, "lie in [0, 1], where 0 is off"),
    "typical_p": (Real, lambda x: 0 < x <= 1, "lie in (0, 1], where 1 is off"),
    "epsilon_cutoff": (Real, lambda x: 0 <= x < 1, "lie in [0, 1), where 0 is off"),
    "eta_cutoff": (Real, lambda x: 0 <= x < 1, "lie in [0, 1), where 0 is off"),
    "repetition_penalty": (Real, lambda x: 0 < x < math.inf, "be above 0 and finite, where 1 is off"),
    "presence_penalty": (Real, math.isfinite, "be a finite number, where 0 is off"),
    "frequency_penalty": (Real, math.isfinite, "be a finite number, where 0 is off"),
    "no_repeat_ngram_size": (Integral, lambda x: x >= 0, "be a whole number, at least 1, or 0 for off"),
    "min_new_tokens": (Integral, lambda x: x >= 0, "be a whole number, at least 0"),
    "min_length": (Integral, lambda x: x >= 0, "be a whole number, at least 0"),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings with the names and meanings people know, here in three groups; they act on logits as in transformers.

    First what depends on the text, in the order logit_bias, suppress_tokens, repetition, presence and frequency
    penalty, no_repeat_ngram_size, bad_words, min_new_tokens and min_length, allowed, begin_suppress_tokens,
    forced_eos_token_id, processors; then temperature; then top_k, top_p, min_p, typical_p, epsilon_cutoff and
    eta_cutoff. Temperature 0 is the point mass on the largest logit, the lowest id of equal ones; filters would change
    nothing there.

    >>> Policy(temperature=0)(torch.tensor([0.0, 2.0, 1.0])).tolist()
    [-inf, 0.0, -inf]
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    typical_p: float = 1.0  # 1: off
    epsilon_cutoff: float = field(default=0.0, kw_only=True)  # 0: off; least probability of a token
    eta_cutoff: float = field(default=0.0, kw_only=True)  # 0: off; the same, lower where the entropy is high
    repetition_penalty: float = 1.0  # 1: off; for all tokens of prompt and text
    presence_penalty: float = 0.0  # 0: off; for tokens of the generated text, once
    frequency_penalty: float = 0.0  # 0: off; for tokens of the generated text, as often as they came
    no_repeat_ngram_size: int = field(
        default=0, kw_only=True
    )  # 0: off; no so many tokens stand twice in prompt and text
    logit_bias: Mapping[int, float] = _NO_BIAS  # added to the logits of tokens; -inf: the token never comes
    bad_words: Sequence[Sequence[int]] = _NO_WORDS  # token ids; of one token: it never comes, be it a stop token
    suppress_tokens: Sequence[int] = field(default=(), kw_only=True)  # token ids that never come
    begin_suppress_tokens: Sequence[int] = field(default=(), kw_only=True)  # that are not the first one generated
    forced_eos_token_id: Sequence[int] | int | None = field(default=None, kw_only=True)  # what the last one must be
    min_new_tokens: int = 0  # before that, no stop token comes
    min_length: int = field(default=0, kw_only=True)  # the same, the prompt counted too
    processors: Sequence[Processor] = ()  # of (texts (K, L), logits (K, V)), as transformers' LogitsProcessor
    allowed: Allowed | Sequence[Allowed | None] | None = None  # from a text to what may follow; or one for each row

    def __post_init__(self) -> None:
        for name, (kind, holds, sentence) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or not holds(value):
                raise ArgumentError(f"{name} must {sentence}, got {value!r}")
        object.__setattr__(self, "allowed", as_hooks(self.allowed))
        object.__setattr__(self, "processors", as_processors(self.processors))
        object.__setattr__(self, "logit_bias", Bias(self.logit_bias))
        object.__setattr__(self, "bad_words", Words(self.bad_words))
        for name in _TOKEN_SETS:
            object.__setattr__(self, name, Tokens(getattr(self, name), name))

    @property
    def remembers(self) -> bool:
        """Whether the law depends on the text, so that a past is needed."""
        looks_back = bool(self._penalties) or self._words.reach > 0 or self.no_repeat_ngram_size > 0
        counts = self.min_new_tokens > 0 or self.min_length > 0
        counts = counts or bool(self.begin_suppress_tokens) or bool(self.forced_eos_token_id)
        return looks_back or counts or not self.capturable

    @property
    def capturable(self) -> bool:
        """Whether all of it is tensor operations, without a hook that runs on the host."""
        return not self.processors and self.allowed is None

    @property
    def for_drafts(self) -> "Policy":
        """What a drafter uses: the same, but a tree of guesses needs a ranking, and not a point."""
        if self.temperature > 0:
            return self
        return replace(
            self, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, epsilon_cutoff=0.0, eta_cutoff=0.0
        )

    def __call__(self, logits: Tensor, past: Past | None = None) -> Tensor:
        """Logits (…, V) of the law to sample, float32 or better; excluded tokens are −inf. A policy that remembers
        needs the `past` of logits (B, M, V); any other needs none."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.remembers:
            logits = self._settled(logits, self._checked(logits, past))
        elif self.logit_bias or self.bad_words or self.suppress_tokens:
            logits = self._settled(logits, None)
        return point_mass(logits) if self.temperature == 0 else self._filtered(logits)

    @property
    def _bias(self) -> Bias:
        assert isinstance(self.logit_bias, Bias)
        return self.logit_bias

    @property
    def _words(self) -> Words:
        assert isinstance(self.bad_words, Words)
        return self.bad_words

    def _tokens(self, name: str) -> Tokens:
        tokens = getattr(self, name)
        assert isinstance(tokens, Tokens)
        return tokens

    @property
    def _penalties(self) -> Penalties:
        return Penalties(self.repetition_penalty, self.presence_penalty, self.frequency_penalty)

    def _checked(self, logits: Tensor, past: Past | None) -> Past:
        if past is None:
            raise ArgumentError("this policy looks at the text, so it must be given one: policy(logits, past)")
        rows, vocabulary = len(past.history), past.history.vocabulary
        shape, paths = tuple(logits.shape), tuple(past.paths.shape)
        if len(shape) != 3 or shape[::2] != (rows, vocabulary) or len(paths) != 3 or paths[:2] != shape[:2]:
            raise ArgumentError(
                f"logits must be (B, M, V) and paths (B, M, D), with B = {rows} rows and V = {vocabulary} tokens as in "
                f"the history, got {shape} and {paths}"
            )
        if isinstance(self.allowed, tuple) and len(self.allowed) <= max(past.history.ids, default=-1):
            raise ArgumentError(
                f"allowed must be a function, or one for each row, got {len(self.allowed)} and a row "
                f"{max(past.history.ids)}"
            )
        return past

    def _edited(self, logits: Tensor, past: Past | None) -> Tensor:
        """All that comes before the temperature."""
        if self.logit_bias:
            logits = add_bias(logits, self._bias)
        if self.bad_words:
            logits = strike_single_words(logits, self._words)
        if self.suppress_tokens:
            logits = strike_tokens(logits, self._tokens("suppress_tokens"))
        return logits if past is None else self._along(logits, past)

    def _along(self, logits: Tensor, past: Past) -> Tensor:
        """What depends on each node's text."""
        if self._penalties:
            logits = penalise(logits, past, self._penalties)
        if self.no_repeat_ngram_size:
            logits = strike_repeats(logits, past, self.no_repeat_ngram_size)
        if self._words.reach:
            logits = strike_words(logits, past, self._words)
        if self.min_new_tokens or self.min_length:
            logits = strike_stops(logits, past, self.min_new_tokens, self.min_length)
        if self.allowed is not None:
            logits = strike_disallowed(logits, past, self.allowed)
        if self.begin_suppress_tokens:
            logits = strike_first(logits, past, self._tokens("begin_suppress_tokens"))
        if self.forced_eos_token_id:  # after the rest: what is forced comes even if something else excludes it
            logits = force_last(logits, past, self._tokens("forced_eos_token_id"))
        return process(logits, past, self.processors) if self.processors else logits

    def _settled(self, raw: Tensor, past: Past | None) -> Tensor:
        """Edited logits; where they leave no token the raw ones stand, and the history is told unless it is a draft."""
        logits = self._edited(raw, past)
        if not self._may_leave_none(raw.shape[-1], past):
            return logits
        dead = ~(logits.amax(-1) > -torch.inf)  # NaN counts as dead
        if not dead.any():
            return logits
        if past is None:
            raise ArgumentError(
                "logit_bias, bad_words and suppress_tokens must leave at least one token, and they leave none"
            )
        if not past.drafting:
            self._doubt(past, dead.nonzero().tolist())
        return torch.where(dead[..., None], raw, logits)

    def _may_leave_none(self, vocabulary: int, past: Past | None) -> bool:
        """Read off the settings, so that a look at the logits, which waits for the device, is rare."""
        if not self.capturable:
            return True
        struck = [self._bias.struck, self._words.struck, frozenset(self._tokens("suppress_tokens"))]
        if past is not None:
            struck.append(frozenset(self._tokens("begin_suppress_tokens")))
            if self.min_new_tokens or self.min_length:
                struck.append(past.history.stops)
        repeats = 0
        if past is not None and self.no_repeat_ngram_size:
            repeats = max(map(len, past.history.texts), default=0) + past.paths.shape[-1]
        if sum(map(len, struck)) + repeats < vocabulary:
            return False
        return len(frozenset().union(*struck)) + repeats >= vocabulary

    @staticmethod
    def _doubt(past: Past, nodes: list[list[int]]) -> None:
        """No text may go on from these nodes (row, node)."""
        paths = past.lists()
        for row, node in nodes:
            text = [*past.history.texts[row], *paths[row][node]]
            error = ArgumentError(
                "logit_bias, bad_words, suppress_tokens, begin_suppress_tokens, no_repeat_ngram_size, min_new_tokens, "
                "min_length, allowed and processors must leave at least one token, and they leave none after "
                f"the text of {len(text)} tokens that ends in {text[-5:]}"
            )
            past.history.doubt(row, paths[row][node], error)

    def _filtered(self, logits: Tensor) -> Tensor:
        """Temperature, then the filters."""
        logits = cool(logits, self.temperature)
        if 0 < self.top_k < logits.shape[-1]:
            logits = keep_ranks(logits, self.top_k)
        if self.top_p < 1:
            logits = keep_nucleus(logits, self.top_p)
        if self.min_p > 0:
            logits = keep_likely(logits, self.min_p)
        if self.typical_p < 1:
            logits = keep_typical(logits, self.typical_p)
        if self.epsilon_cutoff > 0:
            logits = keep_above(logits, self.epsilon_cutoff)
        if self.eta_cutoff > 0:
            logits = keep_above_entropy(logits, self.eta_cutoff)
        return logits


def merge_settings(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a policy: those `given`, and the `defaults` of a model for all others. As in transformers, a
    min_new_tokens that is given also stands in place of a min_length that is not.

    >>> merge_settings({"temperature": 0.6, "top_k": 50, "min_length": 9}, {"top_k": 0, "min_new_tokens": 2})
    {'temperature': 0.6, 'top_k': 0, 'min_new_tokens': 2}
    """
    replaced = {"min_length"} if "min_new_tokens" in given else set()
    return {**{name: value for name, value in defaults.items() if name not in replaced}, **given}
