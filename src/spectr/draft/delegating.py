"""A drafting around another one, for those who watch or change what is drafted."""

from collections.abc import Sequence

from torch import Tensor

from spectr.types import Draft, Drafting, Scene

__all__ = ["DelegatingDrafting"]


class DelegatingDrafting:
    """Passes every call on to `inner`. Derive from it and override what differs."""

    def __init__(self, inner: Drafting) -> None:
        self.inner = inner

    @property
    def is_behind(self) -> bool:
        """As the other."""
        return self.inner.is_behind

    def choose(self, rows: int) -> int:
        """As `inner` does."""
        return self.inner.choose(rows)

    def propose(self, scene: Scene) -> Draft:
        """As `inner` does."""
        return self.inner.propose(scene)

    def keep(self, path: Tensor) -> None:
        """As `inner` does."""
        self.inner.keep(path)

    def observe(self, rows: int, choice: int, tokens: float, seconds: float) -> None:
        """As `inner` does."""
        self.inner.observe(rows, choice, tokens, seconds)

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> bool:
        """As `inner` does."""
        return self.inner.begin(row, text, limit, source)

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """As `inner` does."""
        self.inner.read(first, texts, starts)

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """As `inner` does."""
        self.inner.copy_rows(sources, targets, most)

    def make_room(self, rows: int, slots: int) -> None:
        """As `inner` does."""
        self.inner.make_room(rows, slots)
