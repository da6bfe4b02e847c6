"""The policies of several rows as one: their settings are tensors, so that a step does not depend on their values.

What a setting does is computed where some row uses it, and a row that does not use it passes bit-unchanged. On a CPU
only the rows that use a setting are computed. Elsewhere all rows are, and the others are put back: so a captured step
serves whatever its rows ask for, as long as they use no other settings.
"""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.policy import filters
from spectr.policy.history import History, Past
from spectr.policy.hooks import process, strike_disallowed
from spectr.policy.penalties import (
    add_bias,
    force_last,
    penalise_counts,
    penalise_repetition,
    strike_first,
    strike_repeats,
    strike_stops,
    strike_words,
)
from spectr.policy.policy import Policy
from spectr.rows import copy_to_device

__all__ = ["FEATURES", "MASKED", "PolicyRows", "rounded"]

_FLOATS = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
_WHOLES = {"top_k": 0, "no_repeat_ngram_size": 0, "min_new_tokens": 0, "min_length": 0}
_SETS = ("begin_suppress_tokens", "forced_eos_token_id")
_SHAPING = ("temperature", "cold", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "greedy")
_EDITS = ("bias", "repetition_penalty", "counts", "no_repeat_ngram_size", "bad_words", "least", *_SETS)
_HOOKS = ("allowed", "processors")
FEATURES = (*_SHAPING, *_EDITS, *_HOOKS)
MASKED = "masked"
"""A feature of logits, and not of a policy: some tokens were excluded before."""
_LOOKING = frozenset(_EDITS) - {"bias"}
_ALWAYS = frozenset({"temperature", "cold", "greedy"})
_COMMON = frozenset({"temperature", "greedy", "cold", "top_k", "top_p", "min_p"})
_PENALTIES = _ALWAYS | {"bias", "repetition_penalty", "counts", "least"}
_ALL = frozenset(_SHAPING) | frozenset(_EDITS)


def rounded(features: frozenset[str]) -> frozenset[str]:
    """A larger set, one of few: a captured step serves all policies that use no other features."""
    tiers = (frozenset({"temperature"}), _ALWAYS, _COMMON, _PENALTIES, _COMMON | _PENALTIES, _ALL)
    return next((tier for tier in tiers if features <= tier), _ALL | features)


def features_of(policy: Policy) -> frozenset[str]:
    """The parts of a policy's work that it uses."""
    found = {name for name, off in (_FLOATS | _WHOLES).items() if getattr(policy, name) != off}
    if found & {"presence_penalty", "frequency_penalty"}:
        found.add("counts")
    if found & {"min_new_tokens", "min_length"}:
        found.add("least")
    if policy.logit_bias or policy.suppress_tokens or any(len(word) == 1 for word in policy.bad_words):
        found.add("bias")
    if any(len(word) > 1 for word in policy.bad_words):
        found.add("bad_words")
    found |= {name for name in _SETS if getattr(policy, name)}
    found |= {"allowed"} if policy.allowed is not None else set()
    found |= {"processors"} if policy.processors else set()
    if policy.temperature == 0:  # the filters would change nothing
        found = (found - set(_SHAPING)) | {"greedy"}
    elif policy.temperature < 1e-3:
        found.add("cold")
    return frozenset(found) & frozenset(FEATURES)


class PolicyRows:
    """Room for the policies of `rows` rows; they are put in place, and may be replaced."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device | str = "cpu") -> None:
        self.vocabulary, self.device = vocabulary, torch.device(device)
        self.version = 0  # how often tensors were replaced by others
        self.policies = [Policy()] * rows
        self.used = [frozenset[str]()] * rows  # features of each row
        self._wants = self._full((rows, len(FEATURES)), False, torch.bool)  # (R, F): the same for the device
        self._floats = self._table(rows, _FLOATS, torch.float64)
        self._wholes = self._table(rows, _WHOLES, torch.int64)
        self.sets = {name: self._full((rows, 4), -1, torch.int64) for name in _SETS}  # (R, K), padded with -1
        self.bias: Tensor | None = None  # (R, V) float64: added to the logits, where some row asks for it
        self.last = self._full((rows, 4), -1, torch.int64)  # (R, W): the last token of bad words, padded with -1
        self.before = self._full((rows, 4, 4), -1, torch.int64)  # (R, W, reach): what stands before it, -1 for anything

    @classmethod
    def of(cls, policies: Sequence[Policy], vocabulary: int, device: torch.device | str = "cpu") -> "PolicyRows":
        """Rows with these policies."""
        made = cls(len(policies), vocabulary, device)
        made.put(0, policies)
        return made

    def __len__(self) -> int:
        """How many rows."""
        return len(self.policies)

    @torch.inference_mode(False)
    def put(self, first: int, policies: Sequence[Policy]) -> None:
        """Give the rows from `first` on other policies, in place."""
        row = first
        for policy, run in groupby(policies):
            count = len(list(run))
            if any(known != policy for known in _distinct(self.policies[row : row + count])):
                self._put(slice(row, row + count), policy, count)
            row += count

    def _put(self, rows: slice, policy: Policy, count: int) -> None:
        """Give some rows the same policy."""
        policy.check_tokens(self.vocabulary)
        used = features_of(policy)
        self.policies[rows], self.used[rows] = [policy] * count, [used] * count
        self._wants[rows] = copy_to_device([name in used for name in FEATURES], self.device, torch.bool)
        for table, names in ((self._floats, _FLOATS), (self._wholes, _WHOLES)):
            table[rows] = copy_to_device([getattr(policy, name) for name in names], self.device, table.dtype)
        for name in _SETS:
            self._put_set(name, rows, list(getattr(policy, name)))
        self._put_bias(rows, policy)
        self._put_words(rows, [word for word in policy.bad_words if len(word) > 1])

    def number(self, name: str) -> Tensor:
        """(R,): one setting of all rows."""
        if name in _WHOLES:
            return self._wholes[:, list(_WHOLES).index(name)]
        return self._floats[:, list(_FLOATS).index(name)]

    def features(self) -> frozenset[str]:
        """What some row uses."""
        return frozenset().union(*set(self.used))

    @property
    def reach(self) -> int:
        """At least the longest sequence of tokens that some row does not want to see twice: one of few numbers."""
        longest = max((policy.no_repeat_ngram_size for policy in _distinct(self.policies)), default=0)
        return 1 << max(0, longest - 1).bit_length() if longest else 0

    def window(self, rows: int) -> "PolicyRows":
        """The first rows, in the same places; of no use once others were put there."""
        return self._made(self.policies[:rows], self.used[:rows], slice(rows))

    def take_rows(self, rows: Sequence[int]) -> "PolicyRows":
        """The policies of these rows, in this order."""
        index = copy_to_device(list(rows), self.device)
        return self._made([self.policies[r] for r in rows], [self.used[r] for r in rows], index)

    def _made(self, policies: list[Policy], used: list[frozenset[str]], rows: slice | Tensor) -> "PolicyRows":
        made = type(self).__new__(type(self))
        made.vocabulary, made.device, made.version = self.vocabulary, self.device, self.version
        made.policies, made.used = policies, used
        made._wants, made._floats, made._wholes = self._wants[rows], self._floats[rows], self._wholes[rows]
        made.sets = {name: values[rows] for name, values in self.sets.items()}
        made.bias = None if self.bias is None else self.bias[rows]
        made.last, made.before = self.last[rows], self.before[rows]
        return made

    def copy_rows(self, sources: list[int], targets: list[int]) -> None:
        """The policies of some rows become those of others."""
        source, target = copy_to_device(sources, self.device), copy_to_device(targets, self.device)
        for table in self._tables():
            table[target] = table[source]
        found = [(self.policies[row], self.used[row]) for row in sources]
        for row, (policy, used) in zip(targets, found, strict=True):
            self.policies[row], self.used[row] = policy, used

    @torch.inference_mode(False)
    def make_room(self, rows: int) -> None:
        """Room for so many rows in all."""
        extra, old = rows - len(self), self
        if extra <= 0:
            return
        fresh = PolicyRows(extra, self.vocabulary, self.device)
        self.policies, self.used = [*self.policies, *fresh.policies], [*self.used, *fresh.used]
        for name in ("_wants", "_floats", "_wholes"):
            setattr(self, name, torch.cat([getattr(old, name), getattr(fresh, name)]))
        self.sets = {name: _taller(values, rows) for name, values in self.sets.items()}
        self.last, self.before = _taller(self.last, rows), _taller(self.before, rows)
        self.bias = None if self.bias is None else torch.nn.functional.pad(self.bias, (0, 0, 0, extra))
        self.version += 1

    def _tables(self) -> list[Tensor]:
        held = [self._wants, self._floats, self._wholes, *self.sets.values(), self.last, self.before]
        return held if self.bias is None else [*held, self.bias]

    def __call__(
        self,
        logits: Tensor,
        past: Past | None = None,
        *,
        ranked: bool = False,
        features: frozenset[str] | None = None,
    ) -> Tensor:
        """Logits (B, M, V) of the distributions to sample, float32 or better; excluded tokens are −inf. A `past` is
        needed where some row looks at its text. `ranked` is for guesses: a greedy row keeps its ranking. `features` are
        those that are computed, if not only those that some row uses."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        features = self.features() if features is None else features
        if features - set(_SHAPING):
            raw = logits
            logits = self._edited(raw, self._checked(raw, past, features), features)
            if self.may_leave_none(None if past is None else past.history, features):
                dead = _is_dead(logits)
                if past is None and dead.any():
                    raise ArgumentError(
                        "logit_bias, bad_words and suppress_tokens must leave at least one token, and they leave none"
                    )
                logits = torch.where(dead[..., None], raw, logits)
        return self._shaped(logits, features - {"greedy"} if ranked else features)

    def leave_none(self, logits: Tensor, past: Past, features: frozenset[str] | None = None) -> Tensor:
        """(B, M) bool: where the settings leave no token of logits (B, M, V), so that the raw ones were taken."""
        features = self.features() if features is None else features
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return _is_dead(self._edited(logits, self._checked(logits, past, features), features))

    def _edited(self, logits: Tensor, past: Past | None, features: frozenset[str]) -> Tensor:
        """All that comes before the temperature."""
        if "bias" in features and self.bias is not None:
            logits = self._put_back("bias", add_bias(logits, self.bias), logits)
        return self._along(logits, past, features)

    def _along(self, logits: Tensor, past: Past | None, features: frozenset[str]) -> Tensor:
        """What depends on each node's text, in the order that `Policy` names."""
        steps: list[tuple[str, Callable[..., Tensor]]] = [
            ("repetition_penalty", lambda rows, x, p: penalise_repetition(x, p, rows._of("repetition_penalty", x))),
            ("counts", lambda rows, x, p: penalise_counts(
                x, p, rows._of("presence_penalty", x), rows._of("frequency_penalty", x))),
            ("no_repeat_ngram_size", lambda rows, x, p: strike_repeats(
                x, p, rows.number("no_repeat_ngram_size"), rows.reach)),
            ("bad_words", lambda rows, x, p: strike_words(x, p, rows.last, rows.before)),
            ("least", lambda rows, x, p: strike_stops(
                x, p, rows.number("min_new_tokens"), rows.number("min_length"))),
            ("allowed", lambda rows, x, p: strike_disallowed(x, p, [policy.allowed for policy in rows.policies])),
            ("begin_suppress_tokens", lambda rows, x, p: strike_first(x, p, rows.sets["begin_suppress_tokens"])),
            ("forced_eos_token_id", lambda rows, x, p: force_last(x, p, rows.sets["forced_eos_token_id"])),
            ("processors", lambda rows, x, p: process(x, p, [policy.processors for policy in rows.policies])),
        ]  # fmt: skip
        for name, step in steps:
            if name in features:
                logits = self._put_back(name, step(self, logits, past), logits)
        return logits

    def _shaped(self, logits: Tensor, features: frozenset[str]) -> Tensor:
        """Temperature, then the filters; or the point mass."""
        steps: list[tuple[str, Callable[..., Tensor]]] = [
            ("cold", lambda _, x: x - x.amax(-1, keepdim=True)),  # a plain division could overflow
            ("temperature", lambda rows, x: x / rows._of("temperature", x)),
            ("top_k", lambda rows, x: filters.keep_ranks(x, rows.number("top_k")[:, None, None])),
            ("top_p", lambda rows, x: filters.keep_nucleus(x, rows._wide("top_p"))),
            ("min_p", lambda rows, x: filters.keep_likely(x, rows._of("min_p", x))),
            ("typical_p", lambda rows, x: filters.keep_typical(x, rows._wide("typical_p"))),
            ("epsilon_cutoff", lambda rows, x: filters.keep_above(x, rows._of("epsilon_cutoff", x))),
            ("eta_cutoff", lambda rows, x: filters.keep_above_entropy(x, rows._of("eta_cutoff", x))),
            ("greedy", lambda _, x: filters.point_mass(x)),
        ]
        for name, step in steps:
            if name in features:
                logits = self._where_used(name, step, logits)
        return logits

    def _where_used(self, name: str, step: Callable[["PolicyRows", Tensor], Tensor], logits: Tensor) -> Tensor:
        """A step on the rows that use it; on a CPU on those alone."""
        rows = [row for row, used in enumerate(self.used) if name in used]
        if logits.device.type != "cpu" or len(rows) == len(self):
            return self._put_back(name, step(self, logits), logits)
        if not rows:
            return logits
        index = torch.tensor(rows)
        return logits.index_copy(0, index, step(self.take_rows(rows), logits[index]))

    def _put_back(self, name: str, edited: Tensor, logits: Tensor) -> Tensor:
        """What was edited, in the rows that use it; the others as they were."""
        if logits.device.type == "cpu" and all(name in used for used in self.used):
            return edited
        return torch.where(self._wanting(name)[:, None, None], edited, logits)

    def _wanting(self, name: str) -> Tensor:
        """(B,) bool: which rows use a feature."""
        return self._wants[:, FEATURES.index(name)]

    def _of(self, name: str, like: Tensor) -> Tensor:
        """(B, 1, 1): a setting in the dtype of logits."""
        return self.number(name).to(like.dtype)[:, None, None]

    def _wide(self, name: str) -> Tensor:
        """(B, 1, 1): a setting in float64."""
        return self.number(name)[:, None, None]

    def _checked(self, logits: Tensor, past: Past | None, features: frozenset[str]) -> Past | None:
        looking = features & {*_LOOKING, *_HOOKS}
        if past is None and looking:
            raise ArgumentError("this policy looks at the text, so it must be given one: policy(logits, past)")
        if past is None or not looking:
            return None
        rows, vocabulary = len(past.history), past.history.vocabulary
        shape, paths = tuple(logits.shape), tuple(past.paths.shape)
        if len(shape) != 3 or shape[::2] != (rows, vocabulary) or len(paths) != 3 or paths[:2] != shape[:2]:
            raise ArgumentError(
                f"logits must be (B, M, V) and paths (B, M, D), with B = {rows} rows and V = {vocabulary} tokens as in "
                f"the history, got {shape} and {paths}"
            )
        return past

    def may_leave_none(self, history: History | None, features: frozenset[str]) -> bool:
        """Whether some row's settings could exclude every token; read off the settings, since a look at the logits
        would wait for the device."""
        if features.issubset(_SHAPING):
            return False
        return MASKED in features or any(
            policy.may_leave_none(self.vocabulary, history) for policy in _distinct(self.policies)
        )

    def _put_set(self, name: str, rows: slice, tokens: list[int]) -> None:
        """Tokens of a set, padded with -1; wider if they are many."""
        if len(tokens) > self.sets[name].shape[1]:
            self.sets[name] = _padded(self.sets[name], (len(self), len(tokens)))
            self.version += 1
        self.sets[name][rows] = -1
        if tokens:
            self.sets[name][rows, : len(tokens)] = copy_to_device(tokens, self.device)

    def _put_bias(self, rows: slice, policy: Policy) -> None:
        """What a policy adds, −inf for what it excludes wherever it stands."""
        if self.bias is None and "bias" not in features_of(policy):
            return
        self.make_bias()
        assert self.bias is not None
        self.bias[rows] = 0.0
        struck = [word[0] for word in policy.bad_words if len(word) == 1] + list(policy.suppress_tokens)
        added = {**policy.logit_bias, **dict.fromkeys(struck, -math.inf)}
        if added:
            values = copy_to_device(list(added.values()), self.device, self.bias.dtype)
            self.bias[rows, copy_to_device(list(added), self.device)] = values

    @torch.inference_mode(False)
    def make_bias(self) -> None:
        """Have a table of what is added, where there was none."""
        if self.bias is None:
            self.bias = self._full((len(self), self.vocabulary), 0.0, torch.float64)
            self.version += 1

    def _put_words(self, rows: slice, words: Sequence[Sequence[int]]) -> None:
        """Bad words of several tokens, aligned to the right."""
        reach = max([len(word) - 1 for word in words] + [self.before.shape[2]])
        count = max(len(words), self.last.shape[1])
        if (count, reach) != (self.last.shape[1], self.before.shape[2]):
            self.last = _padded(self.last, (len(self), count))
            self.before = _padded(self.before, (len(self), count, reach))
            self.version += 1
        self.last[rows], self.before[rows] = -1, -1
        for at, word in enumerate(words):
            self.last[rows, at] = word[-1]
            self.before[rows, at, reach + 1 - len(word) :] = copy_to_device(word[:-1], self.device)

    def _table(self, rows: int, settings: dict[str, Any], dtype: torch.dtype) -> Tensor:
        """(R, n): settings that are off."""
        made = self._full((rows, len(settings)), 0, dtype)
        return made.copy_(torch.tensor(list(settings.values()), dtype=dtype))

    @torch.inference_mode(False)
    def _full(self, shape: Any, value: float, dtype: torch.dtype) -> Tensor:
        return torch.full(shape if isinstance(shape, tuple) else (shape,), value, dtype=dtype, device=self.device)


def _distinct(policies: Sequence[Policy]) -> list[Policy]:
    """Each object once: to compare or hash settings takes time, and many rows share one policy."""
    return list({id(policy): policy for policy in policies}.values())


def _padded(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Values with -1 behind, or before along the last of three dimensions, up to a shape."""
    if tuple(values.shape) == shape:
        return values
    made = values.new_full(shape, -1)
    if values.dim() == 2:
        made[:, : values.shape[1]] = values
    else:
        made[:, : values.shape[1], shape[2] - values.shape[2] :] = values
    return made


def _taller(values: Tensor, rows: int) -> Tensor:
    """Values with rows of -1 below."""
    return torch.cat([values, values.new_full((rows - len(values), *values.shape[1:]), -1)])


def _is_dead(logits: Tensor) -> Tensor:
    """(B, M) bool: no token is left; NaN counts as none."""
    return ~(logits.amax(-1) > -torch.inf)
