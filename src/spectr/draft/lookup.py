"""Prompt lookup: what followed the last few tokens when they stood earlier in the text, several places as one tree."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from spectr.checks import whole
from spectr.draft.trie import draft_of_paths
from spectr.types import Draft, Drafting, Opening, Scene, Siblings

__all__ = ["Lookup"]

Text = npt.NDArray[np.int64]


def _places_after(text: Text, count: int) -> Text:
    """Positions after earlier occurrences of the last `count` tokens, latest first."""
    if len(text) <= count:
        return np.empty(0, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(text[:-1], count)
    return np.flatnonzero((windows == text[-count:]).all(1))[::-1] + count


class Lookup:
    """The longest suffix that occurred before, of `longest` to `shortest` tokens; `drafts` continuations of up to
    `length` tokens. A draft is as long as its match deserves: one token after the shortest, one more for each more."""

    name: ClassVar[str] = "lookup"
    gives_laws: ClassVar[bool] = False
    siblings: ClassVar[Siblings] = "fixed"

    def __init__(self, drafts: int = 2, length: int = 4, nodes: int = 8, shortest: int = 2) -> None:
        for name, value in (("drafts", drafts), ("length", length), ("nodes", nodes), ("shortest", shortest)):
            whole(f"{name} of lookup", value, 1)
        self.drafts, self.length, self.nodes, self.shortest = drafts, length, nodes, shortest

    @property
    def longest(self) -> int:
        """A longer match would not make a longer draft."""
        return self.shortest + self.length - 1

    def continuations(self, text: list[int]) -> list[tuple[int, ...]]:
        """Distinct continuations, those after the longest match first and among equals the latest first.

        >>> Lookup(drafts=2, length=2).continuations([1, 2, 3, 4, 9, 1, 2, 3])
        [(4, 9)]
        """
        array, found = np.asarray(text), list[tuple[int, ...]]()
        for count in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            length = count - self.shortest + 1
            for place in _places_after(array, count)[: 4 * self.drafts]:
                fresh = tuple(array[place : place + length].tolist())
                if all(known[: len(fresh)] != fresh for known in found):  # a shorter match finds the same place again
                    found.append(fresh)
                if len(found) == self.drafts:
                    return found
        return found

    def open(self, opening: Opening) -> Drafting:
        """An encoder-decoder model's source is searched too: it stands before the text."""
        return _LookupDrafting(self, opening.sources or [[] for _ in opening.prompts])


class _LookupDrafting:
    """The sources of the rows."""

    def __init__(self, lookup: Lookup, sources: list[list[int]]) -> None:
        self.lookup, self.sources = lookup, sources

    def propose(self, scene: Scene) -> Draft:
        """One tree a row."""
        texts = [source + text for source, text in zip(self.sources, scene.texts, strict=True)]
        paths = [self.lookup.continuations(text) for text in texts]
        return draft_of_paths(scene.root, paths, self.lookup.nodes)

    def keep(self, path: Tensor) -> None:
        """Nothing to keep."""

    def take_rows(self, rows: Tensor) -> None:
        """The sources of these rows."""
        self.sources = [self.sources[row] for row in rows.tolist()]
