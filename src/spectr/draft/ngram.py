"""A back-off n-gram model, trained on a text and on each row's own text as it grows.

Witten–Bell smoothing: after a context that was seen N times with T different followers, a follower seen c times has
probability (c + T · p) / (N + T), where p is its probability after the shorter context; below the empty context the
distribution is uniform. So every token has a positive probability, and drafts carry the distribution that they were
drawn from.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spectr.checks import whole
from spectr.draft.per_row import PerRow
from spectr.draft.plan import Plan, Planned, draw
from spectr.errors import ArgumentError
from spectr.trees import Frontier
from spectr.types import Draft, Drafting, Opening, Scene

__all__ = ["Counts", "NGram"]


class Counts:
    """Counts which tokens followed which contexts of up to `order` − 1 tokens."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.followed = 0  # tokens counted of a growing text
        self._table: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def learn(self, text: Sequence[int], start: int = 0) -> None:
        """Count the tokens of `text` from `start` on, each after all contexts before it."""
        for at in range(start, len(text)):
            for length in range(min(self.order, at + 1)):
                self._table[tuple(text[at - length : at])][text[at]] += 1

    def follow(self, text: Sequence[int]) -> None:
        """Count the tokens that were added to a growing text since the last call."""
        self.learn(text, self.followed)
        self.followed = len(text)

    def after(self, context: tuple[int, ...]) -> dict[int, int]:
        """Return the counts of the tokens that followed exactly this context."""
        return self._table.get(context, {})


class NGram(Planned):
    """Drafts with an n-gram model of `order` tokens, trained on `text` and on each row's own text."""

    name: ClassVar[str] = "ngram"

    def __init__(self, plan: Plan, order: int = 4, text: Sequence[int] = ()) -> None:
        whole("order of ngram", order, 1)
        self.plan, self.largest = plan, max(text, default=0)
        self.shared = Counts(order)
        self.shared.learn(text)

    def open(self, opening: Opening) -> Drafting:
        """Open counts for each row."""
        if self.largest >= opening.vocabulary:
            raise ArgumentError(
                f"tokens of the n-gram text must be below {opening.vocabulary}, the target's vocabulary size, got "
                f"{self.largest}; encode it with the target's tokenizer"
            )
        return _NGramDrafting(self, opening)


class _NGramDrafting(PerRow[Counts]):
    """Shared counts and counts of each row, which learns its source when it begins, and its text as it grows."""

    def __init__(self, drafter: NGram, opening: Opening) -> None:
        self.order = drafter.shared.order
        super().__init__(opening, self._counts)
        self.plan, self.shared, self.vocabulary = drafter.plan, drafter.shared, opening.vocabulary

    def _counts(self, source: Sequence[int]) -> Counts:
        """Return counts trained on a source."""
        counts = Counts(self.order)
        counts.learn(source)
        return counts

    def propose(self, scene: Scene) -> Draft:
        """Count the new tokens of each row, and draw a tree by the plan."""
        texts = scene.host_texts
        for row, text in enumerate(texts):
            self.rows[row].follow(text)
        return draw(self.plan, scene, lambda frontier: self._logits(texts, frontier)).draft

    def law(self, row: int, text: Sequence[int]) -> tuple[float, dict[int, float]]:
        """The distribution of the token after `text`: the probability that every token has, and the additional
        probability of the tokens that were counted."""
        left, masses = 1.0, dict[int, float]()
        for length in range(min(self.shared.order - 1, len(text)), -1, -1):  # the longest context first
            followers = self._followers(row, tuple(text[len(text) - length :]))
            total = sum(followers.values()) + len(followers)
            for token, count in followers.items():
                masses[token] = masses.get(token, 0.0) + left * count / total
            left *= len(followers) / total if followers else 1.0
        return left / self.vocabulary, masses

    def _followers(self, row: int, context: tuple[int, ...]) -> dict[int, int]:
        own, shared = self.rows[row].after(context), self.shared.after(context)
        if not own or not shared:
            return own or shared
        return {token: own.get(token, 0) + shared.get(token, 0) for token in {*own, *shared}}

    def _logits(self, texts: list[list[int]], frontier: Frontier) -> Tensor:
        reach = self.shared.order - 1
        rows = [
            self._row(row, [*texts[row][-reach:], *path] if reach else [])
            for row, paths in enumerate(frontier.paths.tolist())
            for path in paths
        ]
        return torch.from_numpy(np.stack(rows)).view(*frontier.tokens.shape, -1).to(frontier.tokens.device)

    def _row(self, row: int, text: Sequence[int]) -> npt.NDArray[np.float32]:
        """(V,): log-probabilities of the token after `text`."""
        base, masses = self.law(row, text)
        logits = np.full(self.vocabulary, np.log(base), np.float32)
        if masses:
            ids, more = np.fromiter(masses.keys(), np.int64), np.fromiter(masses.values(), np.float64)
            logits[ids] = np.log(base + more)
        return logits
