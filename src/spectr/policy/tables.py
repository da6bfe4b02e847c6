"""The settings of the policies of several rows as tensors on the device, changed in place."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor

from spectr.policy.policy import Policy
from spectr.policy.stages import FLOATS, LIMITS, SETS, STAGES, WHOLES, stages_of
from spectr.rows import copy_to_device

__all__ = ["PolicyTables", "distinct"]


class PolicyTables:
    """Room for the policies of `rows` rows."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device | str = "cpu") -> None:
        self.vocabulary, self.device = vocabulary, torch.device(device)
        self.version = 0  # changes when a tensor is replaced: captured steps know tensors by their addresses
        self.policies = [Policy()] * rows
        self.used = [frozenset[str]()] * rows  # the stages that each row uses
        self._uses = self._full((rows, len(STAGES)), False, torch.bool)  # (R, S): the same on the device
        self._floats = self._table(rows, FLOATS, torch.float64)
        self._wholes = self._table(rows, WHOLES, torch.int64)
        self.sets = {name: self._full((rows, 4), -1, torch.int64) for name in SETS}  # (R, K), padded with -1
        self.bias: Tensor | None = None  # (R, V) float64: added to the logits; None if no row uses it
        self.last = self._full((rows, 4), -1, torch.int64)  # (R, W): the last token of bad words, padded with -1
        self.before = self._full((rows, 4, 4), -1, torch.int64)  # (R, W, reach): the tokens before it, padded with -1

    @classmethod
    def of(cls, policies: Sequence[Policy], vocabulary: int, device: torch.device | str = "cpu") -> Self:
        """Return rows with these policies."""
        rows = cls(len(policies), vocabulary, device)
        rows.put(0, policies)
        return rows

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.policies)

    @torch.inference_mode(False)
    def put(self, first: int, policies: Sequence[Policy]) -> None:
        """Set the policies of the rows from `first` on, in place."""
        row = first
        for policy, run in groupby(policies):
            count = len(list(run))
            if any(known != policy for known in distinct(self.policies[row : row + count])):
                self._put(slice(row, row + count), policy, count)
            row += count

    def _put(self, rows: slice, policy: Policy, count: int) -> None:
        """Set one policy for several rows."""
        policy.check_tokens(self.vocabulary)
        used = stages_of(policy)
        self.policies[rows], self.used[rows] = [policy] * count, [used] * count
        self._uses[rows] = copy_to_device([name in used for name in STAGES], self.device, torch.bool)
        for table, names in ((self._floats, FLOATS), (self._wholes, WHOLES)):
            values = [_limited(name, getattr(policy, name)) for name in names]
            table[rows] = copy_to_device(values, self.device, table.dtype)
        for name in SETS:
            self._put_set(name, rows, list(getattr(policy, name)))
        self._put_bias(rows, policy)
        self._put_words(rows, [word for word in policy.bad_words if len(word) > 1])

    def _put_set(self, name: str, rows: slice, tokens: list[int]) -> None:
        """Set the tokens of a set for rows; widen the table if needed."""
        if len(tokens) > self.sets[name].shape[1]:
            self.sets[name] = _padded(self.sets[name], (len(self), len(tokens)))
            self.version += 1
        self.sets[name][rows] = -1
        if tokens:
            self.sets[name][rows, : len(tokens)] = copy_to_device(tokens, self.device)

    def _put_bias(self, rows: slice, policy: Policy) -> None:
        """Set what a policy adds to logits, −inf for the tokens that it always excludes."""
        if self.bias is None and "bias" not in stages_of(policy):
            return
        self.make_bias()
        assert self.bias is not None
        self.bias[rows] = 0.0
        struck = [word[0] for word in policy.bad_words if len(word) == 1] + list(policy.suppress_tokens)
        given = {token: _limited("logit_bias", value) for token, value in policy.logit_bias.items()}
        added = {**given, **dict.fromkeys(struck, -math.inf)}
        if added:
            values = copy_to_device(list(added.values()), self.device, self.bias.dtype)
            self.bias[rows, copy_to_device(list(added), self.device)] = values

    @torch.inference_mode(False)
    def make_bias(self) -> None:
        """Allocate the table of biases if there is none."""
        if self.bias is None:
            self.bias = self._full((len(self), self.vocabulary), 0.0, torch.float64)
            self.version += 1

    def _put_words(self, rows: slice, words: Sequence[Sequence[int]]) -> None:
        """Set bad words of several tokens, aligned to the right."""
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

    def number(self, name: str) -> Tensor:
        """Return one setting of all rows, (R,)."""
        if name in WHOLES:
            return self._wholes[:, list(WHOLES).index(name)]
        return self._floats[:, list(FLOATS).index(name)]

    def users(self, stage: str) -> Tensor:
        """Return which rows use a stage, (R,) bool."""
        return self._uses[:, STAGES.index(stage)]

    def stages(self) -> frozenset[str]:
        """Return the stages that some row uses."""
        return frozenset().union(*set(self.used))

    @property
    def reach(self) -> int:
        """The largest no_repeat_ngram_size of a row, rounded up to a power of two so that few graphs are captured."""
        longest = max((policy.no_repeat_ngram_size for policy in distinct(self.policies)), default=0)
        return 1 << max(0, longest - 1).bit_length() if longest else 0

    def window(self, rows: int) -> Self:
        """Return a view of the first rows, which is valid until policies are put there."""
        return self._view(self.policies[:rows], self.used[:rows], slice(rows))

    def take_rows(self, rows: Sequence[int]) -> Self:
        """Return a copy of these rows, in this order."""
        index = copy_to_device(list(rows), self.device)
        return self._view([self.policies[r] for r in rows], [self.used[r] for r in rows], index)

    def _view(self, policies: list[Policy], used: list[frozenset[str]], rows: slice | Tensor) -> Self:
        view = type(self).__new__(type(self))
        view.vocabulary, view.device, view.version = self.vocabulary, self.device, self.version
        view.policies, view.used = policies, used
        view._uses, view._floats, view._wholes = self._uses[rows], self._floats[rows], self._wholes[rows]
        view.sets = {name: values[rows] for name, values in self.sets.items()}
        view.bias = None if self.bias is None else self.bias[rows]
        view.last, view.before = self.last[rows], self.before[rows]
        return view

    def copy_rows(self, sources: list[int], targets: list[int]) -> None:
        """Copy rows `sources` to rows `targets`."""
        source, target = copy_to_device(sources, self.device), copy_to_device(targets, self.device)
        for table in self._tables():
            table[target] = table[source]
        copied = [(self.policies[row], self.used[row]) for row in sources]
        for row, (policy, used) in zip(targets, copied, strict=True):
            self.policies[row], self.used[row] = policy, used

    @torch.inference_mode(False)
    def make_room(self, rows: int) -> None:
        """Allocate at least `rows` rows."""
        extra = rows - len(self)
        if extra <= 0:
            return
        new = PolicyTables(extra, self.vocabulary, self.device)
        self.policies, self.used = [*self.policies, *new.policies], [*self.used, *new.used]
        for name in ("_uses", "_floats", "_wholes"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(new, name)]))
        self.sets = {name: _add_rows(values, rows) for name, values in self.sets.items()}
        self.last, self.before = _add_rows(self.last, rows), _add_rows(self.before, rows)
        self.bias = None if self.bias is None else torch.nn.functional.pad(self.bias, (0, 0, 0, extra))
        self.version += 1

    def _tables(self) -> list[Tensor]:
        tables = [self._uses, self._floats, self._wholes, *self.sets.values(), self.last, self.before]
        return tables if self.bias is None else [*tables, self.bias]

    def _table(self, rows: int, settings: dict[str, Any], dtype: torch.dtype) -> Tensor:
        """(R, n): settings with the values at which they are off."""
        table = self._full((rows, len(settings)), 0, dtype)
        return table.copy_(torch.tensor(list(settings.values()), dtype=dtype))

    @torch.inference_mode(False)
    def _full(self, shape: Any, value: float, dtype: torch.dtype) -> Tensor:
        return torch.full(shape if isinstance(shape, tuple) else (shape,), value, dtype=dtype, device=self.device)


def distinct(policies: Sequence[Policy]) -> list[Policy]:
    """Return each policy object once. Objects are compared by identity: many rows share one, and comparing settings is
    slow."""
    return list({id(policy): policy for policy in policies}.values())


def _limited(setting: str, value: float) -> float:
    """Return a number within the limits of its setting; a temperature of 0, for greedy decoding, and a bias of -inf,
    which excludes a token, stay."""
    if setting not in LIMITS or value in (0, -math.inf):
        return value
    least, most = LIMITS[setting]
    return min(max(value, least), most)


def _padded(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Pad values with -1 to a shape: behind, but in front along the last of three dimensions."""
    if tuple(values.shape) == shape:
        return values
    padded = values.new_full(shape, -1)
    if values.dim() == 2:
        padded[:, : values.shape[1]] = values
    else:
        padded[:, : values.shape[1], shape[2] - values.shape[2] :] = values
    return padded


def _add_rows(values: Tensor, rows: int) -> Tensor:
    """Append rows of -1 up to `rows` rows."""
    return torch.cat([values, values.new_full((rows - len(values), *values.shape[1:]), -1)])
