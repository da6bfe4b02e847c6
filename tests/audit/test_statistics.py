"""The statistical tests of the audit: the bound is checked by enumeration, the power by simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import gammaln, xlogy
from scipy.stats import chi2, ncx2

from spectr.audit.statistics import (
    alarm_limit,
    compare_counts,
    false_alarm_bound,
    samples_needed,
    smallest_bias,
)
from spectr.errors import ArgumentError


def every_count(samples: int, law: list[float]) -> list[tuple[tuple[int, ...], float]]:
    """Return all outcomes of a multinomial draw and their probabilities."""
    found = []
    for counts in itertools.product(range(samples + 1), repeat=len(law) - 1):
        last = samples - sum(counts)
        if last >= 0:
            each = np.array([*counts, last])
            chance = gammaln(samples + 1) - gammaln(each + 1).sum() + xlogy(each, law).sum()
            found.append((tuple(each.tolist()), math.exp(chance)))
    return found


@pytest.mark.parametrize("law", [[0.5, 0.5], [0.99, 0.01], [0.7, 0.2, 0.1], [0.001, 0.299, 0.7], [0.4, 0.3, 0.2, 0.1]])
@pytest.mark.parametrize("samples", [1, 4, 17])
def test_no_outcome_is_rarer_than_its_bound(law: list[float], samples: int) -> None:
    """The bound on P(G ≥ g) holds at every g, by the sum over all outcomes, for any number of samples."""
    outcomes = [(compare_counts(counts, law), chance) for counts, chance in every_count(samples, law)]
    for test, _ in outcomes:
        tail = sum(chance for other, chance in outcomes if other.statistic >= test.statistic - 1e-12)
        assert tail <= test.p_bound + 1e-9


def test_the_usual_tail_would_not_be_a_bound() -> None:
    """The χ² tail does not decide tests because some outcomes are more than twice as likely as it says."""
    outcomes = [
        (compare_counts(counts, [0.5, 0.3, 0.2]), chance) for counts, chance in every_count(30, [0.5, 0.3, 0.2])
    ]
    tails = [
        (test.p_about, sum(chance for other, chance in outcomes if other.statistic >= test.statistic - 1e-12))
        for test, _ in outcomes
    ]
    assert any(tail > 2 * about > 1e-12 for about, tail in tails)


def test_the_tails_are_the_usual_ones() -> None:
    """p ≈ is the χ² tail, and the samples needed reach the limit with the stated power, by the noncentral χ²."""
    test = compare_counts([60, 25, 15], [0.5, 0.3, 0.2])
    assert test.p_about == pytest.approx(chi2.sf(test.statistic, 2), rel=1e-9)
    for cells, power in itertools.product((2, 16, 64), (0.9, 0.99)):
        noncentrality = 4 * samples_needed(0.001, cells, 1e-8, power) * 0.001**2
        assert ncx2.sf(alarm_limit(cells, 1e-8), cells - 1, noncentrality) == pytest.approx(power, abs=1e-4)


def test_limits_and_bounds_fit_together() -> None:
    for cells, alarms in itertools.product((2, 16, 64), (1e-3, 1e-8)):
        assert false_alarm_bound(alarm_limit(cells, alarms), cells) == pytest.approx(alarms, rel=1e-6)
        samples = samples_needed(0.02, cells, alarms)
        assert smallest_bias(samples, cells, alarms) == pytest.approx(0.02, rel=1e-4)
    assert false_alarm_bound(1.0, 1) == 0  # with one cell nothing can differ


def test_power_is_as_stated() -> None:
    """400 audits of a law that is off by exactly the detectable bias, in the shape that is hardest to detect. 99 % of
    them must detect it; fewer than 384 detections have probability 10^-6."""
    alarms, cells, bias = 1e-6, 16, 0.05
    samples = samples_needed(bias, cells, alarms)
    law = np.full(cells, 1 / cells)
    wrong = law * np.where(np.arange(cells) % 2, 1 + 2 * bias, 1 - 2 * bias)
    assert np.abs(wrong - law).sum() / 2 == pytest.approx(bias)
    draw = np.random.default_rng(3)
    seen = sum(compare_counts(draw.multinomial(samples, wrong), law).p_bound <= alarms for _ in range(400))
    right = sum(compare_counts(draw.multinomial(samples, law), law).p_bound <= alarms for _ in range(400))
    assert seen >= 384
    assert right == 0


def test_impossible_samples_fail() -> None:
    test = compare_counts([3, 7, 1], [0.5, 0.5, 0.0])
    assert (test.impossible, test.p_bound, test.p_about) == (1, 0.0, 0.0)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="chances must sum to 1"):
        compare_counts([1, 2], [0.5, 0.6])
    with pytest.raises(ArgumentError, match=r"must lie in \(0, 1\], got 0"):
        samples_needed(0, 4, 1e-6)
    with pytest.raises(ArgumentError, match="between 0 and 1, got 2"):
        alarm_limit(4, 2)
