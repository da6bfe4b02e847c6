"""Chi-square tests of counts against exact probabilities, with a stated false-alarm rate."""

import pytest
from torch import Tensor

__all__ = ["chi_square"]


def chi_square(found: Tensor, expected: Tensor, rate: float) -> float:
    """Return the chi-square statistic of counts against expected counts, as a multiple of its quantile at 1 − `rate`.

    Cells with an expected count of at most five are pooled into one; a count where none is possible gives infinity."""
    chi2 = pytest.importorskip("scipy.stats").chi2
    if float(found[expected == 0].sum()) > 0:
        return float("inf")
    likely = expected > 5
    statistic = ((found - expected)[likely] ** 2 / expected[likely]).sum()
    rare = (found[~likely].sum() - expected[~likely].sum()) ** 2 / expected[~likely].sum().clamp_min(5)
    return float(statistic + rare) / float(chi2.isf(rate, int(likely.sum())))
