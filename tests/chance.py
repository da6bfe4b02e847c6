"""Compares counts with exact probabilities, at a stated false-alarm rate."""

import pytest
from torch import Tensor

__all__ = ["chi_square"]


def chi_square(found: Tensor, expected: Tensor, rate: float) -> float:
    """Return the chi-square of counts against expected ones, as a multiple of the value exceeded with probability
    `rate`.

    Cells that expect at most five are merged into one; a count in an impossible cell gives infinity.
    """
    chi2 = pytest.importorskip("scipy.stats").chi2
    if float(found[expected == 0].sum()) > 0:
        return float("inf")
    likely = expected > 5
    statistic = ((found - expected)[likely] ** 2 / expected[likely]).sum()
    rare = (found[~likely].sum() - expected[~likely].sum()) ** 2 / expected[~likely].sum().clamp_min(5)
    return float(statistic + rare) / float(chi2.isf(rate, int(likely.sum())))
