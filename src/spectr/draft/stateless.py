"""Draftings without state: the draft depends on the scene only."""

from collections.abc import Callable, Sequence

from torch import Tensor

from spectr.types import Draft, Scene

__all__ = ["SingleChoice", "Stateless"]


class SingleChoice:
    """A base class of draftings that have one way of drafting, and so are never behind."""

    is_behind = False

    def choose(self, rows: int) -> int:
        """Return 0, the only choice."""
        return 0

    def observe(self, rows: int, drafter_index: int, tokens: float, seconds: float) -> None:
        """Do nothing."""


class Stateless(SingleChoice):
    """A drafting that calls a function of the scene."""

    def __init__(self, propose: Callable[[Scene], Draft]) -> None:
        self.propose = propose

    def keep(self, path: Tensor) -> None:
        """Do nothing."""

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Do nothing."""

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Do nothing."""

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Do nothing."""

    def make_room(self, rows: int, slots: int) -> None:
        """Do nothing."""
