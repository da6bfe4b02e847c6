"""The settings of a policy, their ranges, and the order in which they act."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

from torch import Tensor

from spectr.errors import ArgumentError
from spectr.policy.history import History, Past
from spectr.policy.hooks import Allowed, Processor, as_hook, as_processors
from spectr.policy.tokens import Bias, as_tokens, as_words

__all__ = ["Policy", "merge_settings"]

_NO_BIAS = Bias({})
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
    """The settings that turn logits into the distribution to sample, with the names and meanings of transformers.

    They act in three groups. First come those that edit logits or depend on the text, in the order logit_bias,
    suppress_tokens, repetition, presence and frequency penalty, no_repeat_ngram_size, bad_words, min_new_tokens and
    min_length, allowed, begin_suppress_tokens, forced_eos_token_id, processors; then temperature; then top_k, top_p,
    min_p, typical_p, epsilon_cutoff and eta_cutoff. Temperature 0 is the point mass on the largest logit, with the
    lowest id among equal ones; filters change nothing there.

    >>> import torch
    >>> Policy(temperature=0)(torch.tensor([0.0, 2.0, 1.0])).tolist()
    [-inf, 0.0, -inf]
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    typical_p: float = 1.0  # 1: off
    epsilon_cutoff: float = field(default=0.0, kw_only=True)  # 0: off; the least probability of a token
    eta_cutoff: float = field(default=0.0, kw_only=True)  # 0: off; the same, but lower where the entropy is high
    repetition_penalty: float = 1.0  # 1: off; for all tokens of prompt and text
    presence_penalty: float = 0.0  # 0: off; for tokens of the generated text, once
    frequency_penalty: float = 0.0  # 0: off; for tokens of the generated text, for every occurrence
    no_repeat_ngram_size: int = field(default=0, kw_only=True)  # 0: off; no sequence of this length occurs twice
    logit_bias: Mapping[int, float] = _NO_BIAS  # added to the logits of tokens; -inf excludes a token
    bad_words: Sequence[
        Sequence[int]
    ] = ()  # sequences of token ids that never occur; a single token may be a stop token
    suppress_tokens: Sequence[int] = field(default=(), kw_only=True)  # tokens that are never generated
    begin_suppress_tokens: Sequence[int] = field(default=(), kw_only=True)  # tokens that are not generated first
    forced_eos_token_id: Sequence[int] | int | None = field(
        default=None, kw_only=True
    )  # the tokens that may be the last one at the limit
    min_new_tokens: int = 0  # no stop token is generated before this many tokens
    min_length: int = field(default=0, kw_only=True)  # the same, including the prompt
    processors: Sequence[Processor] = ()  # functions of texts (K, L) and logits (K, V), like LogitsProcessor
    allowed: Allowed | None = None  # a function from a text to the tokens that may follow

    def __post_init__(self) -> None:
        for name, (kind, holds, sentence) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or not holds(value):
                raise ArgumentError(f"{name} must {sentence}, got {value!r}")
        object.__setattr__(self, "allowed", as_hook(self.allowed))
        object.__setattr__(self, "processors", as_processors(self.processors))
        object.__setattr__(self, "logit_bias", Bias(self.logit_bias))
        object.__setattr__(self, "bad_words", as_words(self.bad_words))
        for name in _TOKEN_SETS:
            object.__setattr__(self, name, as_tokens(getattr(self, name), name))

    @property
    def remembers(self) -> bool:
        """Whether the distribution depends on the text, so that a past is needed."""
        penalises = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        looks_back = penalises or any(len(word) > 1 for word in self.bad_words) or self.no_repeat_ngram_size > 0
        counts = self.min_new_tokens > 0 or self.min_length > 0
        counts = counts or bool(self.begin_suppress_tokens) or bool(self.forced_eos_token_id)
        return looks_back or counts or not self.capturable

    @property
    def capturable(self) -> bool:
        """Whether the policy consists of tensor operations only, without users' functions on the host."""
        return not self.processors and self.allowed is None

    @property
    def for_drafts(self) -> "Policy":
        """The policy for drafting: the same, but greedy decoding keeps the ranking of tokens, which a tree needs."""
        if self.temperature > 0:
            return self
        return replace(
            self, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, epsilon_cutoff=0.0, eta_cutoff=0.0
        )

    def __call__(self, logits: Tensor, past: Past | None = None) -> Tensor:
        """Return logits (…, V) of the distribution to sample, float32 or better; excluded tokens are −inf. A policy
        that depends on the text needs the `past` of logits (B, M, V)."""
        from spectr.policy.rows import PolicyRows

        if past is None:
            flat = logits.reshape(1, -1, logits.shape[-1])
            return PolicyRows.of([self], logits.shape[-1], logits.device)(flat).view(logits.shape)
        return PolicyRows.of([self] * len(past.history), past.history.vocabulary, logits.device)(logits, past)

    def check_tokens(self, vocabulary: int) -> None:
        """Raise ArgumentError for tokens that a vocabulary of this size lacks."""
        words = [token for word in self.bad_words for token in word]
        forced = self.forced_eos_token_id if isinstance(self.forced_eos_token_id, Sequence) else ()
        named = {"logit_bias": self.logit_bias, "bad_words": words, "suppress_tokens": self.suppress_tokens,
                 "begin_suppress_tokens": self.begin_suppress_tokens, "forced_eos_token_id": forced}  # fmt: skip
        for name, tokens in named.items():
            if (top := max(tokens, default=0)) >= vocabulary:
                raise ArgumentError(
                    f"{name} must name tokens below {vocabulary}, the size of the vocabulary, got {top}"
                )

    def may_leave_none(self, vocabulary: int, history: History | None) -> bool:
        """Whether the settings could exclude every token. This is judged by the settings only, because checking the
        logits waits for the device."""
        if not self.capturable:
            return True
        struck = {*self.suppress_tokens, *(word[-1] for word in self.bad_words)}
        struck |= {token for token, value in self.logit_bias.items() if value == -math.inf}
        repeats = 0
        if history is not None:
            struck |= set(self.begin_suppress_tokens)
            if self.min_new_tokens or self.min_length:
                struck |= frozenset().union(*(host.stops for host in history.host))
            if self.no_repeat_ngram_size:
                repeats = history.slots
        return len(struck) + repeats >= vocabulary


def merge_settings(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `given`, and the `defaults` of a model for all others. As in transformers, a given
    min_new_tokens also replaces a default min_length.

    >>> merge_settings({"temperature": 0.6, "top_k": 50, "min_length": 9}, {"top_k": 0, "min_new_tokens": 2})
    {'temperature': 0.6, 'top_k': 0, 'min_new_tokens': 2}
    """
    replaced = {"min_length"} if "min_new_tokens" in given else set()
    return {**{name: value for name, value in defaults.items() if name not in replaced}, **given}
