"""Lenience (Leviathan et al. 2023) accepts with min(1, target / (lenience · law)) and keeps the residual. LOSSY.

No token is emitted more than 1 / lenience times as often as the target would, so the distribution of a token is off by
at most 1 − lenience in total variation. Lenience 1 is lossless.
"""

from typing import ClassVar

from torch import Tensor

from spectr.errors import ArgumentError
from spectr.transport.selection import SelectingCoupling
from spectr.verify.lossy.relaxed import RelaxedCoupling, selecting
from spectr.verify.walk import Walk

__all__ = ["Lenience"]


class LenientCoupling(RelaxedCoupling):
    """Divides the acceptance test by a constant factor."""

    name: ClassVar[str] = "lenience"
    papers: ClassVar[tuple[str, ...]] = ("leviathan2023",)

    def __init__(self, inner: SelectingCoupling, lenience: float) -> None:
        super().__init__(inner)
        self.lenience = lenience

    def test(self, lossless: Tensor, gap: Tensor) -> Tensor:
        """min(1, target / (lenience · law))."""
        return (lossless / self.lenience).clamp_max(1.0)


class Lenience(Walk):
    """The walk with a relaxed test; `lenience` lies in (0, 1]."""

    def __init__(self, lenience: float = 0.9, coupling: str = "optimal") -> None:
        if not 0 < lenience <= 1:
            raise ArgumentError(f"lenience must lie in (0, 1], got {lenience}; 1 is lossless")
        summary = "LOSSY: makes the test easier by a constant factor"
        super().__init__(LenientCoupling(selecting(coupling), lenience), "lenience", summary)
        self.bias_bound = 1 - lenience
