"""A drafting that remembers nothing: what the drafter knows of a row is the row's text."""

from collections.abc import Callable, Sequence

from torch import Tensor

from spectr.types import Draft, Scene

__all__ = ["SingleChoice", "Stateless"]


class SingleChoice:
    """A drafting that drafts in one way whatever happens, so that it never lags behind."""

    is_behind = False

    def choose(self, rows: int) -> int:
        """The only one."""
        return 0

    def observe(self, rows: int, choice: int, tokens: float, seconds: float) -> None:
        """Nothing to learn."""


class Stateless(SingleChoice):
    """A function of the scene."""

    def __init__(self, propose: Callable[[Scene], Draft]) -> None:
        self.propose = propose

    def keep(self, path: Tensor) -> None:
        """Nothing to keep."""

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> bool:
        """Nothing to remember."""
        return True

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Nothing to read."""

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Nothing to copy."""

    def make_room(self, rows: int, slots: int) -> None:
        """Nothing to make room for."""
