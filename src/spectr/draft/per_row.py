"""A drafting on the host with some state for each row."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Generic, TypeVar

from torch import Tensor

from spectr.draft.stateless import SingleChoice
from spectr.types import Opening

__all__ = ["PerRow"]

T = TypeVar("T")


class PerRow(SingleChoice, Generic[T]):
    """Keeps a state for each row, which `fresh` makes when the row begins, from the row's source if it has one. New
    tokens of a row are in the texts of the next scene."""

    def __init__(self, opening: Opening, fresh: Callable[[Sequence[int]], T]) -> None:
        self._fresh = fresh
        self.rows = [fresh(()) for _ in range(opening.rows)]

    def keep(self, path: Tensor) -> None:
        """Do nothing: accepted tokens are in the texts of the next scene."""

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Make a new state for the row."""
        self.rows[row] = self._fresh(source or ())

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Do nothing: prompts are in the texts of the next scene."""

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the states of rows."""
        states = [deepcopy(self.rows[row]) for row in sources]
        for target, state in zip(targets, states, strict=True):
            self.rows[target] = state

    def make_room(self, rows: int, slots: int) -> None:
        """Make states for more rows."""
        self.rows += [self._fresh(()) for _ in range(rows - len(self.rows))]
