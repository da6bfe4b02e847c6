"""What rows have committed so far, and the paths of tree nodes below it: the text a policy may look at.

Everything is on the device, in fixed places, and changed in place: a captured step finds it where it was. Where users
plug in functions, the texts are on the host as well. Knows no setting of any policy.
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
    """What is known of a row when it begins."""

    prompt: Sequence[int]
    generated: Sequence[int] = ()  # what was generated before, if it goes on
    limit: int | None = None  # most tokens that may be generated, those before included
    stops: frozenset[int] = frozenset()  # tokens that end it
    padding: Sequence[int] = ()  # left padding, which only custom processors see, as transformers' count it

    @property
    def tokens(self) -> list[int]:
        """All of it."""
        return [*self.prompt, *self.generated]


@dataclass(slots=True)
class HostText:
    """A row's text where users' functions run, and what they raised."""

    tokens: list[int] = field(default_factory=list)
    padding: list[int] = field(default_factory=list)
    stops: frozenset[int] = frozenset()
    answers: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # of a mask hook, since the last commit
    deferred: dict[tuple[int, ...], Exception] = field(default_factory=dict)

    def commit(self, tokens: Sequence[int]) -> None:
        """Add what the row emitted; an error that was put off is raised if it concerns a text that was emitted from,
        and forgotten otherwise."""
        deferred, self.deferred = self.deferred, {}
        self.answers.clear()
        for path in sorted(deferred, key=len):
            if tuple(tokens[: len(path)]) == path and len(tokens) > len(path):
                raise deferred[path]
        self.tokens += tokens

    def defer(self, path: tuple[int, ...], error: Exception) -> None:
        """There is no distribution after this path, which may never become text, since it may lie beyond the end: the
        error waits until a token that came from there is committed."""
        self.deferred.setdefault(path, error)


_ENDLESS = 1 << 62
_TABLES = {"_tokens": -1, "length": 0, "prompt_length": 0, "limit": 0, "stop_ids": -1}
_LOOKS = ("_seen", "_counts")


class History:
    """The texts of R rows, with room for M tokens each.

    >>> history = History.of([[1, 2], [3]], 5)
    >>> history.commit([[4], [4, 4]])
    >>> history.texts, history.generated.tolist(), history.counts[1].tolist()
    ([[1, 2, 4], [3, 4, 4]], [1, 2], [0, 0, 0, 0, 2])
    """

    def __init__(self, rows: int, slots: int, vocabulary: int, device: torch.device | str = "cpu") -> None:
        self.vocabulary, self.device = vocabulary, torch.device(device)
        self.version = 0  # how often tensors were replaced by others
        self._tokens = self._full((rows, slots + 1), -1)  # (R, M + 1): the last place is where padding is written
        self.length = self._full((rows,), 0)  # (R,) tokens of prompt and text
        self.prompt_length = self._full((rows,), 0)
        self.limit = self._full((rows,), 0)  # (R,) most tokens of prompt and text
        self.stop_ids = self._full((rows, 4), -1)  # (R, S), padded with -1
        self._seen: Tensor | None = None  # (R, V + 1) bool, the last place as above
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
        """Rows that begin with these prompts; `stops` for all, `limits` and `padding` one for each row."""
        stops, limits, padding = more.pop("stops", frozenset()), more.pop("limits", None), more.pop("padding", None)
        if more:
            raise ArgumentError(f"a history takes stops, limits and padding, got {', '.join(more)}")
        for name, rows in (("padding", padding), ("limits", limits)):
            if rows is not None and len(rows) != len(prompts):
                raise ArgumentError(f"{name} must have a row per prompt, got {len(rows)} for {len(prompts)} prompts")
        made = cls(len(prompts), 64 + 2 * max(map(len, prompts), default=0), vocabulary, device)
        rows = range(len(prompts))
        limit, before = limits or [None for _ in rows], padding or [() for _ in rows]
        if prompts:
            made.put(0, [Text(prompts[row], (), limit[row], stops, before[row]) for row in rows])
        return made

    def __len__(self) -> int:
        """How many rows."""
        return len(self.length)

    @torch.inference_mode(False)
    def put(self, first: int, texts: Sequence[Text]) -> None:
        """Begin the rows from `first` on anew with these texts."""
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
        limits = [_ENDLESS if text.limit is None else len(text.prompt) + text.limit for text in texts]
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
        """The first `count` (B,) of `tokens` (B, W) follow the texts, on the device alone."""
        batch, width = tokens.shape
        places = cached_arange(width, self.device)
        fresh = places < count[:, None]
        at = torch.where(fresh, self.length[:batch, None] + places, self.slots).clamp_max(self.slots)
        self._tokens[:batch].scatter_(1, at, tokens)
        known = torch.where(fresh & (tokens < self.vocabulary), tokens, self.vocabulary)
        if self._seen is not None:
            _add(self._seen[:batch], known)
        if self._counts is not None:
            _add(self._counts[:batch], known)
        self.length[:batch] += count

    def commit(self, tokens: Sequence[Sequence[int]]) -> None:
        """Add what each row emitted, here and on the device; a row may get nothing."""
        if len(tokens) != len(self):
            raise ArgumentError(f"commit takes a list of tokens per row, got {len(tokens)} for {len(self)} rows")
        widest = max(map(len, tokens), default=0)
        if max((len(self.host[r].tokens) + len(t) for r, t in enumerate(tokens)), default=0) > self.slots:
            self.grow(2 * self.slots + widest)
        for row, fresh in enumerate(tokens):
            self.host[row].commit(fresh)
        if widest:
            padded = self._tensor([[*fresh, *[0] * (widest - len(fresh))] for fresh in tokens])
            self.append(padded, self._tensor([len(fresh) for fresh in tokens]))

    def window(self, rows: int) -> "History":
        """The first `rows` rows, in the same places."""
        made = History.__new__(History)
        made.vocabulary, made.device, made.version = self.vocabulary, self.device, self.version
        made.host = self.host[:rows]
        for name in (*_TABLES, *_LOOKS):
            table = getattr(self, name)
            setattr(made, name, None if table is None else table[:rows])
        return made

    def copy_rows(self, sources: list[int], targets: list[int]) -> None:
        """Some rows take the places of others."""
        source, target = self._tensor(sources), self._tensor(targets)
        for name in (*_TABLES, *_LOOKS):
            if (table := getattr(self, name)) is not None:
                table[target] = table[source]
        found = [self.host[row] for row in sources]
        for row, host in zip(targets, found, strict=True):
            self.host[row] = host

    @torch.inference_mode(False)
    def make_room(self, rows: int, slots: int) -> None:
        """Room for so many rows and tokens at least."""
        self.grow(slots)
        extra = rows - len(self)
        if extra <= 0:
            return
        for name, value in _TABLES.items():
            table = getattr(self, name)
            setattr(self, name, torch.cat([table, table.new_full((extra, *table.shape[1:]), value)]))
        for name in _LOOKS:
            if (table := getattr(self, name)) is not None:
                setattr(self, name, torch.cat([table, table.new_zeros(extra, table.shape[1])]))
        self.host += [HostText() for _ in range(extra)]
        self.version += 1

    @torch.inference_mode(False)
    def grow(self, slots: int) -> None:
        """Make room for so many tokens a row."""
        if slots > self.slots:
            self._tokens = torch.nn.functional.pad(self.tokens, (0, slots - self.slots + 1), value=-1)
            self.version += 1

    @torch.inference_mode(False)
    def look_back(self, *, seen: bool, counts: bool) -> None:
        """Keep tables of which tokens stand in each text, and of how often each was generated, from now on."""
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
        """(B, V) bool: which tokens stand in prompt or text."""
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
        """How many tokens a row has room for."""
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
        """The texts, where users' functions run."""
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
        """Add tokens to a row of a table; ids beyond the vocabulary have no logit to change."""
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
    """The text before each node of a tree: what its row committed, then the way down from the root."""

    history: History
    paths: Tensor  # (B, M, D) int64: the tokens below the root, which is committed; padded with -1 at the end
    drafting: bool = False  # nothing is emitted from these distributions, so that one without tokens is no error

    @property
    def lengths(self) -> Tensor:
        """(B, M) int64: how many tokens each path has."""
        return (self.paths >= 0).sum(-1)

    def window(self, length: int) -> Tensor:
        """(B, M, length) int64: the last tokens of each node's text, padded with -1 at the front."""
        B, M, _ = self.paths.shape
        tail = self.history.tail(length)[:, None].expand(B, M, length)
        places = self.lengths[..., None] + cached_arange(length, self.paths.device)
        return torch.cat([tail, self.paths], -1).gather(-1, places)

    def lists(self) -> list[list[tuple[int, ...]]]:
        """The paths of each row's nodes, without padding."""
        return [[tuple(token for token in path if token >= 0) for path in row] for row in self.paths.tolist()]
