"""Estimates from independent values: means, standard deviations and proportions, each with its standard error."""

import math
from collections.abc import Sequence

import numpy as np

from spectr.theory.estimate import Array, Estimate, Mask

__all__ = ["deviation_of", "mean_of", "proportion", "running_means"]


def mean_of(sample: Sequence[float] | Array) -> Estimate:
    """Return the mean of independent values.

    >>> mean_of([1.0, 2.0, 3.0])
    Estimate(value=2.0, error=0.5773502691896258)
    """
    values = np.asarray(sample, dtype=np.float64)
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(float(values.mean()), error)


def deviation_of(sample: Sequence[float] | Array) -> Estimate:
    """Return the standard deviation of independent values; its standard error follows from their fourth moment."""
    values = np.asarray(sample, dtype=np.float64)
    around, spread = values - values.mean(), float(values.std(ddof=1))
    variance = max(0.0, float((around**4).mean()) - spread**4) / len(values)
    return Estimate(spread, math.sqrt(variance) / (2 * spread) if spread > 0 else 0.0)


def proportion(hits: Array | Mask, exact: float) -> Estimate:
    """Return the share of hits, with the standard error that follows from the true probability `exact`.

    An error estimated from the sample would be 0 where all draws are hits.
    """
    return Estimate(float(np.mean(hits)), math.sqrt(max(0.0, exact * (1 - exact)) / len(hits)))


def running_means(sample: Sequence[float] | Array, at: Sequence[int]) -> list[Estimate]:
    """Return the means of the first n values, for every n in `at`."""
    return [mean_of(np.asarray(sample)[:count]) for count in at]
