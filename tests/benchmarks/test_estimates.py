"""Errors of estimates: against formulas where there are some, and against repetition where there are none."""

import math

import numpy as np
import pytest

from benchmarks.figures.estimates import deviation_of, mean_of, proportion, running_means
from spectr.theory.estimate import Estimate, jackknife


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    sample = np.random.default_rng(0).normal(size=50)
    rows = np.stack([sample, np.ones_like(sample)], -1)
    found = jackknife(rows, lambda sums: sums[0] / sums[1])
    meant = mean_of(sample)
    assert (found.value, found.error) == pytest.approx((meant.value, meant.error), abs=1e-12)


def test_errors_are_what_repetition_shows() -> None:
    """A ratio of clustered sums and a standard deviation, 400 times over; errors agree within a tenth or so."""
    rng = np.random.default_rng(1)
    ratios, deviations = [], []
    for _ in range(400):
        level = rng.beta(2, 2, 40)  # a text is easy or hard
        counts = rng.integers(5, 30, 40)
        hits = rng.binomial(counts, level)
        ratios.append(jackknife(np.stack([hits, counts], -1).astype(float), lambda sums: sums[0] / sums[1]))
        deviations.append(deviation_of(rng.gamma(3.0, size=300)))
    for found in (ratios, deviations):
        spread = np.std([one.value for one in found])
        stated = np.mean([one.error for one in found])
        assert stated == pytest.approx(spread, rel=0.15)


def test_proportions_take_their_error_from_the_chance() -> None:
    assert proportion(np.ones(100), 0.99) == Estimate(1.0, pytest.approx(math.sqrt(0.99 * 0.01 / 100)))
    assert proportion(np.ones(4), 1.0).off(1.0) == 0.0


def test_estimates_of_one_value_have_no_error() -> None:
    alone = jackknife(np.array([[1.0, 2.0]]), lambda sums: sums[0] / sums[1])
    assert alone.value == 0.5
    assert math.isnan(alone.error)
    assert alone.as_data() == {"value": 0.5, "error": None}
    assert math.isnan(mean_of([3.0]).error)
    assert Estimate(1.0, 0.0).off(2.0) == -math.inf
    assert Estimate(3.0, 3.0).off(3.5, 4.0) == pytest.approx(-0.1)
    assert [one.value for one in running_means([1.0, 3.0, 5.0], (1, 2, 3))] == [1.0, 2.0, 3.0]
    assert deviation_of([2.0, 2.0]) == Estimate(0.0, 0.0)
