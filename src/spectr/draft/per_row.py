"""A drafting on the host that remembers something of each row's own text."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Generic, TypeVar

from torch import Tensor

from spectr.draft.stateless import SingleChoice
from spectr.types import Opening

__all__ = ["PerRow"]

T = TypeVar("T")


class PerRow(SingleChoice, Generic[T]):
    """What is remembered of each row, as `fresh` makes it when the row begins, from its source if it has one. What a
    row reads is in the texts of the next scene."""

    def __init__(self, opening: Opening, fresh: Callable[[Sequence[int]], T]) -> None:
        self._fresh = fresh
        self.rows = [fresh(()) for _ in range(opening.rows)]

    def keep(self, path: Tensor) -> None:
        """What was kept is in the texts of the next scene."""

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> bool:
        """Forget the row's last text."""
        self.rows[row] = self._fresh(source or ())
        return True

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """It is all in the texts of the next scene."""

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """A row that takes another place takes this along; one that begins like another is made fresh."""
        found = [deepcopy(self.rows[row]) for row in sources]
        for target, memory in zip(targets, found, strict=True):
            self.rows[target] = memory

    def make_room(self, rows: int, slots: int) -> None:
        """For more rows."""
        self.rows += [self._fresh(()) for _ in range(rows - len(self.rows))]
