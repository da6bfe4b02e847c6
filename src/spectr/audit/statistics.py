"""Multinomial tests with a proven false-alarm rate, and the bias that a number of samples detects.

The statistic is G = 2 Σ count · log(count / expected) = 2·n·KL(found ‖ expected). For every law on k cells and every n,

    P(G ≥ g) ≤ exp(−g/2) · (e·g / (2(k − 1)))^(k − 1)    once g > 2(k − 1)        (Agrawal 2020),

so no count is too small and nothing is asymptotic. This bound decides a test; the χ² tail, to which G converges, is
only reported.

A bias of total variation δ between the cells, of any shape, has KL ≥ 2δ² (Pinsker), so G then behaves like a noncentral
χ² with noncentrality at least 4·n·δ². That gives the number of samples needed to detect a bias, and the bias that a
number of samples detects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import chdtrc, chndtrinc, lambertw
from torch import Tensor

from spectr.errors import ArgumentError

__all__ = ["GTest", "alarm_limit", "compare_counts", "false_alarm_bound", "samples_needed", "smallest_bias"]

_POWER = 0.99


def false_alarm_bound(statistic: float, cells: int) -> float:
    """Return a bound on how often a correct sampler reaches `statistic`, for any law and number of samples.

    >>> false_alarm_bound(104.2, 16) < 1.01e-8, false_alarm_bound(20.0, 16)
    (True, 1.0)
    """
    half, freedom = statistic / 2, cells - 1
    if freedom == 0:
        return 1.0 if half <= 0 else 0.0
    return 1.0 if half <= freedom else math.exp(freedom - half + freedom * math.log(half / freedom))


def alarm_limit(cells: int, alarms: float) -> float:
    """Return the statistic that a correct sampler reaches with probability at most `alarms`.

    >>> round(alarm_limit(16, 1e-8), 1)
    104.2
    """
    if not 0 < alarms < 1:
        raise ArgumentError(f"a false-alarm rate must lie between 0 and 1, got {alarms}")
    freedom = cells - 1
    if freedom == 0:
        return 0.0
    # With x = g / (2·freedom) the bound is alarms where x·exp(−x) = exp(log(alarms) / freedom − 1) and x > 1.
    return float(-2 * freedom * lambertw(-math.exp(math.log(alarms) / freedom - 1), -1).real)


def _noncentrality(cells: int, alarms: float, power: float) -> float:
    """Return the noncentrality that exceeds the limit with probability `power`."""
    return float(chndtrinc(alarm_limit(cells, alarms), max(cells - 1, 1), 1 - power))


def samples_needed(bias: float, cells: int, alarms: float, power: float = _POWER) -> int:
    """Return the number of samples that detects any bias of this total variation with probability `power`.

    >>> 85_000 < samples_needed(0.02, cells=16, alarms=1e-8) < 92_000
    True
    """
    if not 0 < bias <= 1:
        raise ArgumentError(f"a bias is a total variation and must lie in (0, 1], got {bias}")
    return math.ceil(_noncentrality(cells, alarms, power) / (4 * bias**2))


def smallest_bias(samples: int, cells: int, alarms: float, power: float = _POWER) -> float:
    """Return the total variation above which a bias of any shape is detected with probability `power`.

    >>> 0.019 < smallest_bias(90_000, cells=16, alarms=1e-8) < 0.02
    True
    """
    return min(1.0, math.sqrt(_noncentrality(cells, alarms, power) / (4 * samples)))


@dataclass(frozen=True, slots=True)
class GTest:
    """The comparison of counts with a law."""

    samples: int
    cells: int  # cells of positive probability
    statistic: float  # G; infinite if an impossible cell was hit
    distance: float  # total variation between the frequencies and the law; its noise is of order √(cells / samples)
    impossible: int  # samples in cells of probability zero

    @property
    def p_bound(self) -> float:
        """A bound on how often a correct sampler is this far off. It decides the test."""
        return 0.0 if self.impossible else false_alarm_bound(self.statistic, self.cells)

    @property
    def p_about(self) -> float:
        """The same for many samples, by the χ² tail. It is shown but does not decide."""
        if self.impossible or self.cells == 1:
            return 0.0 if self.impossible else 1.0
        return float(chdtrc(self.cells - 1, self.statistic))


def compare_counts(counts: Sequence[float] | Tensor, chances: Sequence[float] | Tensor) -> GTest:
    """Compare the counts (k) of independent samples with the probabilities (k) of their cells.

    >>> compare_counts([52, 48], [0.5, 0.5]).p_about > 0.5
    True
    """
    found, expected = (torch.as_tensor(x, dtype=torch.float64) for x in (counts, chances))
    if found.shape != expected.shape or abs(float(expected.sum()) - 1) > 1e-6:
        raise ArgumentError(
            f"every cell must have a count and a chance, and chances must sum to 1; got {counts} and {chances}"
        )
    total = float(found.sum())
    impossible = int(found[expected <= 0].sum())
    seen = (found > 0) & (expected > 0)
    terms = found[seen] * (found[seen] / (expected[seen] * total)).log()
    statistic = math.inf if impossible else max(0.0, 2 * float(terms.sum()))
    distance = float((found / total - expected).abs().sum() / 2) if total else 0.0
    return GTest(int(total), int((expected > 0).sum()), statistic, distance, impossible)
