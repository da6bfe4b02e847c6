"""The committed texts of rows, and the paths of tree nodes below them: the text that a policy may depend on.

All tables are on the device and changed in place, since captured steps refer to their addresses. The texts are also on
the host, for users' functions and grammars.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.rows import cached_arange, copy_to_device

__all__ = ["History", "HostText", "Past", "Text"]


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a row when it begins."""

    prompt: Sequence[int]
    generated: Sequence[int] = ()  # tokens generated before, if a text is continued
    limit: int | None = None  # the most tokens that may be generated, including those
    stops: frozenset[int] = frozenset()  # tokens that end it
    padding: Sequence[int] = ()  # left padding, which only custom processors get

    @property
    def tokens(self) -> list[int]:
        """Prompt and generated tokens."""
        return [*self.prompt, *self.generated]


@dataclass(slots=True)
class HostText:
    """The text of a row on the host, for users' functions, and the errors that those raised."""

    tokens: list[int] = field(default_factory=list)
    padding: list[int] = field(default_factory=list)
    stops: frozenset[int] = frozenset()
    answers: dict[tuple[int, ...], Tensor] = field(
        default_factory=dict
    )  # masks of the hook `allowed`, by path, since the last commit
    deferred: dict[tuple[int, ...], Exception] = field(default_factory=dict)

    def commit(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens. Raise a deferred error if one of the tokens was sampled after its path, and drops
        the other deferred errors."""
        deferred, self.deferred = self.deferred, {}
        self.answers.clear()
        for path in sorted(deferred, key=len):
            if tuple(tokens[: len(path)]) == path and len(tokens) > len(path):
                raise deferred[path]
        self.tokens += tokens

    def defer(self, path: tuple[int, ...], error: Exception) -> None:
        """Defer an error of the distribution after a path until a token that was sampled there is committed. The path
        may never become text."""
        self.deferred.setdefault(path, error)


_NO_LIMIT = 1 << 62
_TABLES = {"_tokens": -1, "length": 0, "prompt_length": 0, "limit": 0, "stop_ids": -1}
_LAZY_TABLES = ("_seen", "_counts")


class History:
    """The texts of R rows, with room for M tokens each.

    >>> history = History.of([[1, 2], [3]], 5)
    >>> history.commit([[4], [4, 4]])
    >>> history.texts, history.generated.tolist(), history.counts[1].tolist()
    ([[1, 2, 4], [3, 4, 4]], [1, 2], [0, 0, 0, 0, 2])
    """

    def __init__(self, rows: int, slots: int, vocabulary: int, device: torch.device | str = "cpu") -> None:
        self.vocabulary, self.device = vocabulary, torch.device(device)
        self.version = 0  # changes when a tensor is replaced: captured steps know tensors by their addresses
        self._tokens = self._full((rows, slots + 1), -1)  # (R, M + 1): padding is written to the last column
        self.length = self._full((rows,), 0)  # (R,): tokens of prompt and text
        self.prompt_length = self._full((rows,), 0)
        self.limit = self._full((rows,), 0)  # (R,): the most tokens of prompt and text
        self.stop_ids = self._full((rows, 4), -1)  # (R, S), padded with -1
        self._seen: Tensor | None = None  # (R, V + 1) bool, the last column as above
        self._counts: Tensor | None = None  # (R, V + 1) int32
        self.host = [HostText() for _ in range(rows)]

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        vocabulary: int,
        device: torch.device | str = "cpu",
        **more: Any,
    ) -> "History":
        """Return rows that begin with these prompts; `stops` are for all, `limits` and `padding` have one for each
        row."""
        stops, limits, padding = more.pop("stops", frozenset()), more.pop("limits", None), more.pop("padding", None)
        if more:
            raise ArgumentError(f"a history takes stops, limits and padding, got {', '.join(more)}")
        for name, rows in (("padding", padding), ("limits", limits)):
            if rows is not None and len(rows) != len(prompts):
                raise ArgumentError(f"{name} must have a row per prompt, got {len(rows)} for {len(prompts)} prompts")
        history = cls(len(prompts), 64 + 2 * max(map(len, prompts), default=0), vocabulary, device)
        rows = range(len(prompts))
        limit, before = limits or [None for _ in rows], padding or [() for _ in rows]
        if prompts:
            history.put(0, [Text(prompts[row], (), limit[row], stops, before[row]) for row in rows])
        return history

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.length)

    @torch.inference_mode(False)
    def put(self, first: int, texts: Sequence[Text]) -> None:
        """Begin the rows from `first` on with these texts."""
        tokens = [text.tokens for text in texts]
        longest = max(map(len, tokens))
        if longest > self.slots:
            self.grow(2 * longest)
        known = [sorted(stop for stop in text.stops if stop < self.vocabulary) for text in texts]
        if (widest := max(map(len, known))) > self.stop_ids.shape[1]:
            self.stop_ids = torch.nn.functional.pad(self.stop_ids, (0, widest - self.stop_ids.shape[1]), value=-1)
            self.version += 1
        rows = slice(first, first + len(texts))
        self._tokens[rows] = -1
        self._tokens[rows, :longest] = self._tensor([[*ids, *[-1] * (longest - len(ids))] for ids in tokens])
        self.length[rows] = self._tensor([len(ids) for ids in tokens])
        self.prompt_length[rows] = self._tensor([len(text.prompt) for text in texts])
        limits = [_NO_LIMIT if text.limit is None else len(text.prompt) + text.limit for text in texts]
        self.limit[rows] = self._tensor(limits)
        width = self.stop_ids.shape[1]
        self.stop_ids[rows] = self._tensor([[*ids, *[-1] * (width - len(ids))] for ids in known])
        for table, named in ((self._seen, tokens), (self._counts, [text.generated for text in texts])):
            if table is not None:
                table[rows] = 0
                for row, ids in enumerate(named, start=first):
                    self._mark(table, row, ids)
        self.host[rows] = [
            HostText(ids, list(text.padding), text.stops) for ids, text in zip(tokens, texts, strict=True)
        ]

    def append(self, tokens: Tensor, count: Tensor) -> None:
        """Append the first `count` (B,) of `tokens` (B, W) to the texts on the device."""
        batch, width = tokens.shape
        places = cached_arange(width, self.device)
        is_new = places < count[:, None]
        at = torch.where(is_new, self.length[:batch, None] + places, self.slots).clamp_max(self.slots)
        self._tokens[:batch].scatter_(1, at, tokens)
        known = torch.where(is_new & (tokens < self.vocabulary), tokens, self.vocabulary)
        if self._seen is not None:
            _add(self._seen[:batch], known)
        if self._counts is not None:
            _add(self._counts[:batch], known)
        self.length[:batch] += count

    def commit(self, tokens: Sequence[Sequence[int]]) -> None:
        """Append emitted tokens of each row on the host and on the device; a row may get none."""
        if len(tokens) != len(self):
            raise ArgumentError(f"commit takes a list of tokens per row, got {len(tokens)} for {len(self)} rows")
        widest = max(map(len, tokens), default=0)
        if max((len(self.host[r].tokens) + len(t) for r, t in enumerate(tokens)), default=0) > self.slots:
            self.grow(2 * self.slots + widest)
        for row, new in enumerate(tokens):
            self.host[row].commit(new)
        if widest:
            padded = self._tensor([[*new, *[0] * (widest - len(new))] for new in tokens])
            self.append(padded, self._tensor([len(new) for new in tokens]))

    def window(self, rows: int) -> "History":
        """Return a view of the first `rows` rows."""
        view = History.__new__(History)
        view.vocabulary, view.device, view.version = self.vocabulary, self.device, self.version
        view.host = self.host[:rows]
        for name in (*_TABLES, *_LAZY_TABLES):
            table = getattr(self, name)
            setattr(view, name, None if table is None else table[:rows])
        return view

    def copy_rows(self, sources: list[int], targets: list[int]) -> None:
        """Copy rows `sources` to rows `targets`."""
        source, target = self._tensor(sources), self._tensor(targets)
        for name in (*_TABLES, *_LAZY_TABLES):
            if (table := getattr(self, name)) is not None:
                table[target] = table[source]
        hosts = [self.host[row] for row in sources]
        for row, host in zip(targets, hosts, strict=True):
            self.host[row] = host

    @torch.inference_mode(False)
    def make_room(self, rows: int, slots: int) -> None:
        """Allocate at least `rows` rows of `slots` tokens."""
        self.grow(slots)
        extra = rows - len(self)
        if extra <= 0:
            return
        for name, value in _TABLES.items():
            table = getattr(self, name)
            setattr(self, name, torch.cat([table, table.new_full((extra, *table.shape[1:]), value)]))
        for name in _LAZY_TABLES:
            if (table := getattr(self, name)) is not None:
                setattr(self, name, torch.cat([table, table.new_zeros(extra, table.shape[1])]))
        self.host += [HostText() for _ in range(extra)]
        self.version += 1

    @torch.inference_mode(False)
    def grow(self, slots: int) -> None:
        """Allocate at least `slots` tokens per row."""
        if slots > self.slots:
            self._tokens = torch.nn.functional.pad(self.tokens, (0, slots - self.slots + 1), value=-1)
            self.version += 1

    @torch.inference_mode(False)
    def look_back(self, *, seen: bool, counts: bool) -> None:
        """Start to keep tables of the tokens that occur in each text, and of how often each was generated."""
        seen, counts = seen and self._seen is None, counts and self._counts is None
        if not seen and not counts:
            return
        self.version += 1
        texts, lengths, prompts = self.tokens.tolist(), self.length.tolist(), self.prompt_length.tolist()
        if seen:
            self._seen = torch.zeros(len(self), self.vocabulary + 1, dtype=torch.bool, device=self.device)
            for row, text in enumerate(texts):
                self._mark(self._seen, row, text[: lengths[row]])
        if counts:
            self._counts = torch.zeros(len(self), self.vocabulary + 1, dtype=torch.int32, device=self.device)
            for row, text in enumerate(texts):
                self._mark(self._counts, row, text[prompts[row] : lengths[row]])

    @property
    def seen(self) -> Tensor:
        """(B, V) bool: which tokens occur in prompt or text."""
        self.look_back(seen=True, counts=False)
        assert self._seen is not None
        return self._seen[:, :-1]

    @property
    def counts(self) -> Tensor:
        """(B, V) int32: how often each token was generated."""
        self.look_back(seen=False, counts=True)
        assert self._counts is not None
        return self._counts[:, :-1]

    @property
    def slots(self) -> int:
        """The number of tokens that a row has room for."""
        return self._tokens.shape[1] - 1

    @property
    def tokens(self) -> Tensor:
        """(B, M) int64: prompt and text, padded with -1."""
        return self._tokens[:, :-1]

    @property
    def generated(self) -> Tensor:
        """(B,) int64: how many tokens were generated."""
        return self.length - self.prompt_length

    @property
    def left(self) -> Tensor:
        """(B,) int64: how many tokens may still be generated."""
        return self.limit - self.length

    @property
    def texts(self) -> list[list[int]]:
        """The texts on the host."""
        return [host.tokens for host in self.host]

    def tail(self, length: int) -> Tensor:
        """(B, length) int64: the last tokens of each text, padded with -1 at the front."""
        places = self.length[:, None] - length + cached_arange(length, self.device)
        return torch.where(places >= 0, self.tokens.gather(1, places.clamp_min(0)), -1)

    def _tensor(self, values: Any) -> Tensor:
        return copy_to_device(values, self.device)

    @torch.inference_mode(False)
    def _full(self, shape: tuple[int, ...], value: int) -> Tensor:
        return torch.full(shape, value, dtype=torch.int64, device=self.device)

    def _mark(self, table: Tensor, row: int, ids: Sequence[int]) -> None:
        """Add tokens to a row of a table; ids beyond the vocabulary are ignored, since they have no logits."""
        known = [token for token in ids if 0 <= token < self.vocabulary]
        if known:
            _add(table[row : row + 1], self._tensor([known]))


def _add(table: Tensor, tokens: Tensor) -> None:
    """Count `tokens` (B, W) in a table."""
    ones = torch.ones_like(tokens, dtype=table.dtype)
    if table.dtype == torch.bool:
        table.scatter_(1, tokens, ones)
    else:
        table.scatter_add_(1, tokens, ones)


@dataclass(frozen=True, slots=True)
class Past:
    """The text before each node of a tree: the committed text of its row, then the path from the root."""

    history: History
    paths: Tensor  # (B, M, D) int64: the tokens below the root, padded with -1 at the end
    drafting: bool = False  # whether the distributions are for drafts only, where one without tokens is no error

    @property
    def lengths(self) -> Tensor:
        """(B, M) int64: how many tokens each path has."""
        return (self.paths >= 0).sum(-1)

    def tail(self, length: int) -> Tensor:
        """(B, M, length) int64: the last tokens of each node's text, padded with -1 at the front."""
        B, M, _ = self.paths.shape
        tail = self.history.tail(length)[:, None].expand(B, M, length)
        places = self.lengths[..., None] + cached_arange(length, self.paths.device)
        return torch.cat([tail, self.paths], -1).gather(-1, places)

    def lists(self) -> list[list[tuple[int, ...]]]:
        """Return the paths of each row's nodes, without padding."""
        return [[tuple(token for token in path if token >= 0) for path in row] for row in self.paths.tolist()]
