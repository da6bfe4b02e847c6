"""What rows have committed so far, and the paths of tree nodes below it: the text a law may depend on.

A history is the only mutable thing here. Tensors are made when a policy first asks for them, and then kept up to date
in place, so that a captured graph finds them where they were. Knows no setting of any policy.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError

__all__ = ["History", "Past"]


class History:
    """The committed texts of a batch of rows.

    `padding` is what stood before a prompt as left padding: only custom processors see it, as transformers' count it.
    `limits` are the most tokens that each row may generate, where that is known.

    >>> history = History([[1, 2], [3]], 5)
    >>> history.commit([[4], [4, 4]])
    >>> history.texts, history.generated.tolist(), history.counts[1].tolist()
    ([[1, 2, 4], [3, 4, 4]], [1, 2], [0, 0, 0, 0, 2])
    """

    def __init__(  # noqa: PLR0913  what a law may depend on besides the text
        self,
        prompts: list[list[int]],
        vocabulary: int,
        *,
        device: torch.device | str = "cpu",
        stops: frozenset[int] = frozenset(),
        padding: list[list[int]] | None = None,
        limits: list[int] | None = None,
    ) -> None:
        for name, rows in (("padding", padding), ("limits", limits)):
            if rows is not None and len(rows) != len(prompts):
                raise ArgumentError(f"{name} must have a row per prompt, got {len(rows)} for {len(prompts)} prompts")
        self.texts = [list(prompt) for prompt in prompts]
        self.padding = [list(row) for row in padding] if padding is not None else [[] for _ in prompts]
        self.limits = None if limits is None else list(limits)
        self.vocabulary, self.device, self.stops = vocabulary, torch.device(device), stops
        self.ids = list(range(len(prompts)))  # which row of the whole batch each row is
        self.answers: dict[int, tuple[Any, dict[Any, Tensor]]] = {}  # what a mask hook said since the last commit
        self._doubts: dict[tuple[int, tuple[int, ...]], Exception] = {}
        self._prompts = [len(prompt) for prompt in prompts]
        self._seen: Tensor | None = None
        self._counts: Tensor | None = None
        self._generated: Tensor | None = None
        self._length: Tensor | None = None
        self._left: Tensor | None = None
        self._text_ids: Tensor | None = None
        self._stop_ids: Tensor | None = None
        self._tails: dict[int, Tensor] = {}

    def __len__(self) -> int:
        """How many rows."""
        return len(self.texts)

    @property
    def seen(self) -> Tensor:
        """(B, V) bool: which tokens stand in prompt or text."""
        if self._seen is None:
            self._seen = self._blank(torch.bool)
            self._mark(self._seen, self.texts)
        return self._seen

    @property
    def counts(self) -> Tensor:
        """(B, V) int32: how often each token was generated."""
        if self._counts is None:
            self._counts = self._blank(torch.int32)
            self._mark(self._counts, self._answered())
        return self._counts

    @property
    def generated(self) -> Tensor:
        """(B,) int64: how many tokens were generated."""
        if self._generated is None:
            self._generated = self._tensor(self._answer_lengths())
        return self._generated

    @property
    def length(self) -> Tensor:
        """(B,) int64: how many tokens prompt and text have."""
        if self._length is None:
            self._length = self._tensor([len(text) for text in self.texts])
        return self._length

    @property
    def left(self) -> Tensor:
        """(B,) int64: how many tokens may still be generated."""
        if self._left is None:
            self._left = self._tensor(self._tokens_left())
        return self._left

    @property
    def text_ids(self) -> Tensor:
        """(B, C) int64: prompt and text, padded with -1 at the end; C grows with the longest text."""
        if self._text_ids is None:
            room = 2 * max(map(len, self.texts), default=0) + 1
            self._text_ids = self._tensor([text + [-1] * (room - len(text)) for text in self.texts]).view(
                len(self), room
            )
        return self._text_ids

    @property
    def stop_ids(self) -> Tensor:
        """(S,) int64: the stop tokens that the vocabulary has."""
        if self._stop_ids is None:
            self._stop_ids = self._tensor(sorted(stop for stop in self.stops if stop < self.vocabulary))
        return self._stop_ids

    def tail(self, length: int) -> Tensor:
        """(B, length) int64: the last tokens of each text, padded with -1 at the front."""
        if length not in self._tails:
            self._tails[length] = self._tensor(self._ends(length))
        return self._tails[length]

    def doubt(self, row: int, path: tuple[int, ...], error: Exception) -> None:
        """There is no law after this path. For the text itself that is an error now; a path below it may never become
        text, since it may lie beyond the end: the error waits until a token that came from there is committed."""
        if not path:
            raise error
        self._doubts.setdefault((row, path), error)

    def commit(self, tokens: list[list[int]]) -> None:
        """Add what each row emitted; a row may get nothing."""
        if len(tokens) != len(self):
            raise ArgumentError(f"commit takes a list of tokens per row, got {len(tokens)} for {len(self)} rows")
        self._settle_doubts(tokens)
        self._write(tokens)
        for text, fresh in zip(self.texts, tokens, strict=True):
            text += fresh
        self.answers.clear()
        for table in (self._seen, self._counts):
            if table is not None:
                self._mark(table, tokens)
        fresh_counts = self._tensor([len(fresh) for fresh in tokens])
        for count in (self._generated, self._length):
            if count is not None:
                count += fresh_counts
        if self._left is not None:
            self._left -= fresh_counts
        for length, tail in self._tails.items():
            tail.copy_(self._tensor(self._ends(length)))

    @torch.inference_mode(False)
    def take_rows(self, rows: list[int]) -> None:
        """The rows become these, in this order; a row may be repeated."""
        if any(not 0 <= row < len(self) for row in rows):
            raise ArgumentError(f"rows must lie in 0 to {len(self) - 1}, got {rows}")
        self.texts = [list(self.texts[row]) for row in rows]
        self.padding = [self.padding[row] for row in rows]
        self._prompts = [self._prompts[row] for row in rows]
        self.limits = None if self.limits is None else [self.limits[row] for row in rows]
        self.ids = [self.ids[row] for row in rows]
        self.answers.clear()
        self._doubts.clear()
        index = self._tensor(rows)
        self._seen = self._seen[index] if self._seen is not None else None
        self._counts = self._counts[index] if self._counts is not None else None
        self._generated = self._length = self._left = self._text_ids = None
        self._tails.clear()

    def _settle_doubts(self, tokens: list[list[int]]) -> None:
        """Raise what was put off, if it concerns a text that was emitted from; forget the rest."""
        doubts, self._doubts = self._doubts, {}
        for row, path in sorted(doubts, key=lambda place: len(place[1])):
            if tuple(tokens[row][: len(path)]) == path and len(tokens[row]) > len(path):
                raise doubts[row, path]

    def _answered(self) -> list[list[int]]:
        return [text[prompt:] for text, prompt in zip(self.texts, self._prompts, strict=True)]

    def _answer_lengths(self) -> list[int]:
        return [len(text) - prompt for text, prompt in zip(self.texts, self._prompts, strict=True)]

    def _tokens_left(self) -> list[int]:
        if self.limits is None:
            raise ArgumentError(
                "this policy changes the last token of a text, so it must know where texts end: History(…, limits=…)"
            )
        return [limit - count for limit, count in zip(self.limits, self._answer_lengths(), strict=True)]

    def _ends(self, length: int) -> list[list[int]]:
        ends = [text[max(0, len(text) - length) :] for text in self.texts]
        return [[-1] * (length - len(end)) + end for end in ends]

    @torch.inference_mode(False)  # what is updated in place must not be an inference tensor
    def _tensor(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    @torch.inference_mode(False)
    def _blank(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(len(self), self.vocabulary, dtype=dtype, device=self.device)

    def _write(self, tokens: list[list[int]]) -> None:
        """Add tokens to `text_ids`, before the texts have them; what is full is made anew when it is asked for."""
        if self._text_ids is None:
            return
        if any(
            len(text) + len(fresh) > self._text_ids.shape[1] for text, fresh in zip(self.texts, tokens, strict=True)
        ):
            self._text_ids = None
            return
        places = [
            (row, len(self.texts[row]) + at, token)
            for row, fresh in enumerate(tokens)
            for at, token in enumerate(fresh)
        ]
        if places:
            rows, columns, ids = self._tensor(places).unbind(-1)
            self._text_ids[rows, columns] = ids

    def _mark(self, table: Tensor, tokens: Iterable[list[int]]) -> None:
        """Add tokens to a table of rows; ids beyond the vocabulary have no logit to change."""
        pairs = [(row, id_) for row, ids in enumerate(tokens) for id_ in ids if 0 <= id_ < self.vocabulary]
        if not pairs:
            return
        rows, ids = self._tensor(pairs).unbind(-1)
        if table.dtype == torch.bool:
            table[rows, ids] = True
        else:
            table.index_put_((rows, ids), torch.ones_like(ids, dtype=table.dtype), accumulate=True)


@dataclass(frozen=True, slots=True)
class Past:
    """The text before each node of a tree: what its row committed, then the way down from the root."""

    history: History
    paths: Tensor  # (B, M, D) int64: the tokens below the root, which is committed; padded with -1 at the end
    drafting: bool = False  # nothing is emitted from these laws, so that one without tokens is no error

    @property
    def lengths(self) -> Tensor:
        """(B, M) int64: how many tokens each path has."""
        return (self.paths >= 0).sum(-1)

    def window(self, length: int) -> Tensor:
        """(B, M, length) int64: the last tokens of each node's text, padded with -1 at the front."""
        B, M, _ = self.paths.shape
        tail = self.history.tail(length)[:, None].expand(B, M, length)
        places = self.lengths[..., None] + torch.arange(length, device=self.paths.device)
        return torch.cat([tail, self.paths], -1).gather(-1, places)

    def lists(self) -> list[list[tuple[int, ...]]]:
        """The paths of each row's nodes, without padding."""
        return [[tuple(token for token in path if token >= 0) for path in row] for row in self.paths.tolist()]
