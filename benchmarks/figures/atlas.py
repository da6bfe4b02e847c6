"""All sheets together, and how well simulation and theory agree over them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.figures.acceptance import acceptance_sheets
from benchmarks.figures.race import race_sheets
from benchmarks.figures.rejections import rejection_sheets
from benchmarks.figures.sheet import Sheet
from benchmarks.figures.speed import speed_sheets
from spectr.threads import one_thread

__all__ = ["SHEETS", "Atlas", "make_atlas"]

_MAKERS: tuple[tuple[Callable[[], Iterator[Sheet]], tuple[str, ...]], ...] = (
    (speed_sheets, ("speedup", "time")),
    (acceptance_sheets, ("acceptance_tv", "acceptance_k")),
    (rejection_sheets, ("rejections", "batches", "front")),
    (race_sheets, ("race", "race_bound")),
)
SHEETS: tuple[str, ...] = tuple(name for _, names in _MAKERS for name in names)
"""Their names, in order."""


@dataclass(frozen=True, slots=True)
class Atlas:
    """Every sheet, in order."""

    sheets: tuple[Sheet, ...]

    @property
    def deviations(self) -> list[float]:
        """How far every simulated value is from its theorem, in standard errors."""
        return [value for sheet in self.sheets for value in sheet.deviations()]

    @property
    def worst(self) -> float:
        """The largest of them."""
        return max(map(abs, self.deviations), default=0.0)

    @property
    def likelihood(self) -> float:
        """The chance that the largest of as many independent normal deviations is at least that large."""
        return -math.expm1(len(self.deviations) * math.log1p(-math.erfc(self.worst / math.sqrt(2))))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"agreement": self.agreement, "sheets": [sheet.to_json() for sheet in self.sheets]}

    @property
    def agreement(self) -> Mapping[str, float]:
        """Simulation against theory, in four numbers."""
        beyond = sum(abs(value) > 2 for value in self.deviations)
        return {
            "compared": len(self.deviations),
            "beyond_two_errors": beyond,
            "largest_deviation": self.worst,
            "chance_of_one_so_large": self.likelihood,
        }


def make_atlas(progress: Callable[[], None] = lambda: None) -> Atlas:
    """Compute and simulate everything; seeds are fixed, and `progress` is called after each sheet."""
    found = []
    with one_thread():
        for maker, _ in _MAKERS:
            for sheet in maker():
                found.append(sheet)
                progress()
    return Atlas(tuple(found))
