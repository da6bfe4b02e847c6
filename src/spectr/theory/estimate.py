"""Estimates from samples, with standard errors."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Estimate", "Mask", "jackknife"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error."""

    value: float
    error: float

    def off(self, exact: float, error: float = 0.0) -> float:
        """Return the distance from `exact`, which may have an error of its own, in standard errors; 0 if both the
        errors and the difference are 0."""
        difference, combined = self.value - exact, math.hypot(self.error, error)
        return (
            difference / combined
            if combined > 0
            else 0.0
            if abs(difference) < 1e-9
            else math.copysign(math.inf, difference)
        )

    def as_data(self) -> dict[str, float | None]:
        """Return JSON data; an unknown error is null."""
        return {"value": self.value, "error": None if math.isnan(self.error) else self.error}


def jackknife(rows: Array, statistic: Callable[[Array], float]) -> Estimate:
    """Return `statistic` of the summed rows (texts, columns), and its error by the jackknife over texts.

    Texts are independent, but the tokens of a text are not, so whole texts are left out. A single text has no error.

    >>> found = jackknife(np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 4.0]]), lambda sums: sums[0] / sums[1])
    >>> round(found.value, 3), round(found.error, 3)
    (0.5, 0.192)
    """
    total, count = rows.sum(0), len(rows)
    value = float(statistic(total))
    if count < 2:
        return Estimate(value, math.nan)
    without = np.array([statistic(total - row) for row in rows])
    return Estimate(value, math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum())))
