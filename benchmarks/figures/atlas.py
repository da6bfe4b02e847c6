"""All sheets together, and how well simulation and theory agree on them."""

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
"""The names of all sheets, in order."""


@dataclass(frozen=True, slots=True)
class Atlas:
    """All sheets, in order."""

    sheets: tuple[Sheet, ...]

    @property
    def deviations(self) -> list[float]:
        """The deviation of every simulated value from its theoretical value, in standard errors."""
        return [value for sheet in self.sheets for value in sheet.deviations()]

    @property
    def worst(self) -> float:
        """The largest absolute deviation."""
        return max(map(abs, self.deviations), default=0.0)

    @property
    def likelihood(self) -> float:
        """The probability that the largest of as many independent normal deviations is at least as large as `worst`."""
        return -math.expm1(len(self.deviations) * math.log1p(-math.erfc(self.worst / math.sqrt(2))))

    def as_data(self) -> dict[str, Any]:
        """Return the atlas as JSON data."""
        return {"agreement": self.agreement, "sheets": [sheet.as_data() for sheet in self.sheets]}

    @property
    def agreement(self) -> Mapping[str, float]:
        """The agreement of simulation and theory, in four numbers."""
        beyond = sum(abs(value) > 2 for value in self.deviations)
        return {
            "compared": len(self.deviations),
            "beyond_two_errors": beyond,
            "largest_deviation": self.worst,
            "chance_of_one_so_large": self.likelihood,
        }


def make_atlas(progress: Callable[[], None] = lambda: None) -> Atlas:
    """Compute and simulate all sheets with fixed seeds, and call `progress` after each sheet."""
    found = []
    with one_thread():
        for maker, _ in _MAKERS:
            for sheet in maker():
                found.append(sheet)
                progress()
    return Atlas(tuple(found))
