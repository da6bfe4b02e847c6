"""A second implementation of the policy, with which the audit compares the first one.

NumPy in float64, one text at a time. It reads the settings of a `Policy` but shares no code with `spectr.policy`, so
that a wrong filter there is not wrong here as well. Settings are applied in the order that `Policy` documents. An
unknown setting is refused, so that none can be added without its reference.

Rules for ties, where an implementation has a choice:

- temperature 0: the lowest id of equal logits wins;
- top_k: every token that is as likely as the k-th stays;
- top_p: every token that is as likely as the one that completes the mass stays;
- min_p, epsilon_cutoff, eta_cutoff: a token exactly at the limit stays;
- typical_p: every token that is as far from the entropy as the last one stays.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spectr.errors import ArgumentError

__all__ = ["Numbers", "ReferencePolicy", "softmax"]

NEVER = -math.inf
Numbers = npt.NDArray[np.float64]  # (V,)


@dataclass(frozen=True, slots=True)
class _Text:
    """A text, its stop tokens, and its maximum length."""

    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    stops: frozenset[int]
    limit: int | None  # maximum number of generated tokens

    @property
    def whole(self) -> tuple[int, ...]:
        return self.prompt + self.generated


Edit = Callable[[Any, Numbers, _Text], Numbers]
Filter = Callable[[Any, Numbers, float], Numbers]


def _ids(tokens: Iterable[int], logits: Numbers) -> list[int]:
    """Return the distinct tokens that have a logit."""
    return [token for token in set(tokens) if 0 <= token < len(logits)]


def _without(logits: Numbers, tokens: Iterable[int]) -> Numbers:
    kept = logits.copy()
    kept[_ids(tokens, logits)] = NEVER
    return kept


def _only(logits: Numbers, kept: npt.NDArray[np.bool_]) -> Numbers:
    return np.where(kept, logits, NEVER)


# Settings that depend on the text, in the order in which they are applied.


def _logit_bias(bias: Any, logits: Numbers, _: _Text) -> Numbers:
    added = np.zeros_like(logits)
    added[list(bias)] = list(bias.values())
    return logits + added


def _suppress_tokens(tokens: Any, logits: Numbers, _: _Text) -> Numbers:
    return _without(logits, tokens)


def _repetition_penalty(penalty: float, logits: Numbers, text: _Text) -> Numbers:
    """Divide positive logits of tokens in prompt and text, and multiply the others (Keskar et al. 2019)."""
    seen, penalised = _ids(text.whole, logits), logits.copy()
    penalised[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    return penalised


def _presence_penalty(penalty: float, logits: Numbers, text: _Text) -> Numbers:
    """Subtract the penalty once for tokens of the generated text; the prompt does not count."""
    penalised = logits.copy()
    penalised[_ids(text.generated, logits)] -= penalty
    return penalised


def _frequency_penalty(penalty: float, logits: Numbers, text: _Text) -> Numbers:
    """Subtract the penalty for each occurrence of a token in the generated text; the prompt does not count."""
    counts, penalised = Counter(text.generated), logits.copy()
    for token in _ids(counts, logits):
        penalised[token] -= penalty * counts[token]
    return penalised


def _no_repeat_ngram_size(size: int, logits: Numbers, text: _Text) -> Numbers:
    """Exclude tokens that would make a sequence of `size` tokens occur a second time."""
    whole = text.whole
    if len(whole) < size - 1:
        return logits
    end = whole[len(whole) - (size - 1) :]
    starts = range(len(whole) - size + 1)
    return _without(logits, [whole[at + size - 1] for at in starts if whole[at : at + size - 1] == end])


def _bad_words(words: Any, logits: Numbers, text: _Text) -> Numbers:
    """Exclude the last token of a bad word if the text ends with its other tokens."""
    excluded = []
    for word in words:
        *before, last = word
        if not before or list(text.whole[-len(before) :]) == before:
            excluded.append(last)
    return _without(logits, excluded)


def _min_new_tokens(least: int, logits: Numbers, text: _Text) -> Numbers:
    return _without(logits, text.stops) if len(text.generated) < least else logits


def _min_length(least: int, logits: Numbers, text: _Text) -> Numbers:
    return _without(logits, text.stops) if len(text.whole) < least else logits


def _allowed(hook: Any, logits: Numbers, text: _Text) -> Numbers:
    """Keep only tokens that the hook allows; it returns ids, a mask of booleans, or None for all tokens."""
    if not callable(hook):
        raise ArgumentError("a reference policy is for one row: give it the hook of that row as allowed")
    answer = hook(list(text.whole))
    if answer is None:
        return logits
    allowed = answer.tolist() if hasattr(answer, "tolist") else list(answer)
    if allowed and all(isinstance(value, bool) for value in allowed):
        allowed = [token for token, kept in enumerate(allowed) if kept]
    return _without(logits, set(range(len(logits))) - set(allowed))


def _begin_suppress_tokens(tokens: Any, logits: Numbers, text: _Text) -> Numbers:
    return logits if text.generated else _without(logits, tokens)


def _forced_eos_token_id(tokens: Any, logits: Numbers, text: _Text) -> Numbers:
    """Make the last token that may be generated one of these, all equally likely."""
    if text.limit is None:
        raise ArgumentError("forced_eos_token_id requires the maximum number of generated tokens: give limit=")
    if len(text.generated) != text.limit - 1:
        return logits
    forced = np.full_like(logits, NEVER)
    forced[_ids({tokens} if isinstance(tokens, int) else tokens, logits)] = 0.0
    return forced


def _processors(processors: Any, logits: Numbers, text: _Text) -> Numbers:
    """Apply the user's functions of (texts (1, L), logits (1, V)) one after the other."""
    ids, scores = torch.tensor([text.whole], dtype=torch.int64), torch.from_numpy(logits.copy())[None]
    for processor in processors:
        scores = processor(ids, scores)
    processed: Numbers = scores[0].double().numpy()
    return processed


_EDITS: dict[str, Edit] = {
    "logit_bias": _logit_bias,
    "suppress_tokens": _suppress_tokens,
    "repetition_penalty": _repetition_penalty,
    "presence_penalty": _presence_penalty,
    "frequency_penalty": _frequency_penalty,
    "no_repeat_ngram_size": _no_repeat_ngram_size,
    "bad_words": _bad_words,
    "min_new_tokens": _min_new_tokens,
    "min_length": _min_length,
    "allowed": _allowed,
    "begin_suppress_tokens": _begin_suppress_tokens,
    "forced_eos_token_id": _forced_eos_token_id,
    "processors": _processors,
}


# Temperature and filters. `slack` widens every limit, for comparisons with float32, in which rounding may put a token
# on either side of a limit.


def softmax(logits: Numbers) -> Numbers:
    """Return the distribution of logits (V,)."""
    weights = np.exp(logits - logits.max())
    law: Numbers = weights / weights.sum()
    return law


def _point_mass(logits: Numbers) -> Numbers:
    point = np.full_like(logits, NEVER)
    point[logits.argmax()] = 0.0  # the first of equals
    return point


def _top_k(count: int, logits: Numbers, slack: float) -> Numbers:
    if count >= len(logits):
        return logits
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    return _only(logits, logits >= least - slack)


def _top_p(mass: float, logits: Numbers, slack: float) -> Numbers:
    """Keep the likeliest tokens until they have `mass`; equally likely tokens stay or go together."""
    ordered = np.sort(logits)[::-1]
    covered = softmax(ordered).cumsum()
    complete = int(np.searchsorted(covered, mass + slack))  # the token that completes the mass
    return _only(logits, logits >= ordered[min(complete, len(ordered) - 1)] - slack)


def _min_p(share: float, logits: Numbers, slack: float) -> Numbers:
    law = softmax(logits)
    return _only(logits, law >= share * law.max() * (1 - slack))


def _entropy(law: Numbers) -> float:
    likely = law[law > 0]
    return -float((likely * np.log(likely)).sum())


def _typical_p(mass: float, logits: Numbers, slack: float) -> Numbers:
    """Keep the tokens whose surprisal is nearest to the entropy until they have `mass` (Meister et al. 2022)."""
    law = softmax(logits)
    far = np.full_like(law, math.inf)
    far[law > 0] = abs(-np.log(law[law > 0]) - _entropy(law))
    order = far.argsort(kind="stable")
    last = int(np.searchsorted(law[order].cumsum(), mass + slack))
    return _only(logits, far <= far[order[min(last, len(law) - 1)]] + slack)


def _at_least(chance: float, logits: Numbers, slack: float) -> Numbers:
    """Keep tokens of probability at least `chance`, and always the likeliest."""
    return _only(logits, (softmax(logits) >= chance * (1 - slack)) | (logits == logits.max()))


def _eta_cutoff(epsilon: float, logits: Numbers, slack: float) -> Numbers:
    """Keep tokens of probability at least min(ε, √ε · exp(−entropy)) (Hewitt et al. 2022)."""
    return _at_least(min(epsilon, math.sqrt(epsilon) * math.exp(-_entropy(softmax(logits)))), logits, slack)


_FILTERS: dict[str, Filter] = {
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "typical_p": _typical_p,
    "epsilon_cutoff": _at_least,
    "eta_cutoff": _eta_cutoff,
}


class ReferencePolicy:
    """Computes the distribution under a policy's settings, by their definitions.

    Only the fields of `policy` are read; none of its methods is called. `limit` is the maximum number of generated
    tokens, for settings that depend on it.

    >>> from spectr.policy import Policy
    >>> reference = ReferencePolicy(Policy(top_k=2, presence_penalty=1.2))
    >>> [round(p, 3) for p in reference.law([1.0, 2.0, 1.5], prompt=[0], generated=[1])]
    [0.378, 0.0, 0.622]
    """

    def __init__(self, policy: Any, stops: Iterable[int] = (), limit: int | None = None, slack: float = 0.0) -> None:
        settings = {setting.name: getattr(policy, setting.name) for setting in fields(policy)}
        plain = type(policy)()
        used = {name: value for name, value in settings.items() if value != getattr(plain, name)}
        self.temperature = float(settings["temperature"])
        self.stops, self.limit, self.slack = frozenset(stops), limit, slack
        unknown = used.keys() - _EDITS.keys() - _FILTERS.keys() - {"temperature"}
        if unknown:
            raise ArgumentError(
                f"the reference policy must know every setting, and does not know {', '.join(sorted(unknown))}; "
                "add it to spectr.audit.reference_policy"
            )
        self._used = used

    @staticmethod
    def settings() -> frozenset[str]:
        """Return the names of all settings that have a reference."""
        return frozenset({"temperature", *_EDITS, *_FILTERS})

    def with_slack(self, slack: float) -> "ReferencePolicy":
        """Return a copy with another slack."""
        other = copy.copy(self)
        other.slack = slack
        return other

    @property
    def depends_on_text(self) -> bool:
        """Whether the distribution after a text depends on more than the model's logits."""
        return not self._used.keys().isdisjoint(_EDITS)

    def law(self, logits: Sequence[float], prompt: Sequence[int] = (), generated: Sequence[int] = ()) -> list[float]:
        """Return the distribution of the next token, given the model's logits after `prompt` and `generated`."""
        edited = self.edited(np.asarray(logits, dtype=np.float64), prompt, generated)
        if not edited.max() > NEVER:
            raise ArgumentError(
                f"a policy must leave at least one token, and leaves none after {(*prompt, *generated)}"
            )
        law: list[float] = softmax(self.shaped(edited)).tolist()
        return law

    def edited(self, logits: Numbers, prompt: Sequence[int], generated: Sequence[int]) -> Numbers:
        """Return the logits (V,) after all settings that precede the temperature; they may exclude every token."""
        text = _Text(tuple(prompt), tuple(generated), self.stops, self.limit)
        for name, edit in _EDITS.items():
            if name in self._used:
                logits = edit(self._used[name], logits, text)
        return logits

    def shaped(self, edited: Numbers) -> Numbers:
        """Apply temperature and filters to the logits of `edited`; at temperature 0 return the point mass."""
        if self.temperature == 0:
            return _point_mass(edited)
        shaped: Numbers = (edited - edited.max()) / self.temperature
        for name, cut in _FILTERS.items():
            if name in self._used:
                shaped = cut(self._used[name], shaped, self.slack)
        return shaped
