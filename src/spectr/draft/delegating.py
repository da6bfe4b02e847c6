"""A wrapper around a drafting, for classes that observe or change what is drafted."""

from collections.abc import Sequence

from torch import Tensor

from spectr.types import Draft, Drafting, Scene

__all__ = ["DelegatingDrafting"]


class DelegatingDrafting:
    """Passes every call on to `inner`; subclasses override what differs."""

    def __init__(self, inner: Drafting) -> None:
        self.inner = inner

    @property
    def is_behind(self) -> bool:
        """Whether `inner` is behind."""
        return self.inner.is_behind

    def choose(self, rows: int) -> int:
        """Call `inner.choose`."""
        return self.inner.choose(rows)

    def propose(self, scene: Scene) -> Draft:
        """Call `inner.propose`."""
        return self.inner.propose(scene)

    def keep(self, path: Tensor) -> None:
        """Call `inner.keep`."""
        self.inner.keep(path)

    def observe(self, rows: int, drafter_index: int, tokens: float, seconds: float) -> None:
        """Call `inner.observe`."""
        self.inner.observe(rows, drafter_index, tokens, seconds)

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Call `inner.begin`."""
        self.inner.begin(row, text, limit, source)

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Call `inner.read`."""
        self.inner.read(first, texts, starts)

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Call `inner.copy_rows`."""
        self.inner.copy_rows(sources, targets, most)

    def make_room(self, rows: int, slots: int) -> None:
        """Call `inner.make_room`."""
        self.inner.make_room(rows, slots)
