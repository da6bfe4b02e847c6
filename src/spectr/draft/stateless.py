"""A drafting that remembers nothing: what the drafter knows of a row is the row's text."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from spectr.types import Draft, Opening, Scene

__all__ = ["Stateless"]


@dataclass(frozen=True, slots=True)
class Stateless:
    """A function of the scene."""

    propose: Callable[[Scene], Draft]

    def keep(self, path: Tensor) -> None:
        """Nothing to keep."""

    def take_rows(self, rows: Tensor) -> None:
        """Nothing to take."""

    def assume(self, longest: int) -> None:
        """Nothing counts on it."""

    def begin(self, opening: Opening, kept: int) -> None:
        """Nothing was read."""
