"""The trade-off between longer drafts and more target calls (Chen et al. 2023): mean and variance of a text's time.

Exact, for acceptance by depth that is independent between calls. Times are in target calls; a text of n tokens takes n
of them without speculation. The last call counts in full, even if it emits more tokens than needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spectr.checks import whole
from spectr.theory.leviathan import chance, price, token_law

__all__ = ["TextTime", "call_moments", "text_time", "trade_off"]


def call_moments(acceptance: Sequence[float], tokens: int) -> tuple[float, float]:
    """Return mean and variance of the number of calls for a text of `tokens` tokens, for the trade-off of [chen2023].

    The calls left after the first are those of a shorter text: R(t) = 1 + R((t − N)⁺), with N from `token_law`, which
    gives the mean by recursion over t, and the variance as the mean of variances plus the variance of means.

    >>> mean, variance = call_moments([0.5], 2)  # one call if the draft is accepted, else two
    >>> mean, variance
    (1.5, 0.25)
    """
    law = np.asarray(token_law(acceptance))[::-1]
    length = whole("tokens", tokens, 0)
    mean, variance = np.zeros((2, length + len(law)))  # for texts of −γ … tokens; below 1 there are no calls
    for t in range(len(law), length + len(law)):
        left = slice(t - len(law), t)
        expected = law @ mean[left]
        mean[t] = 1 + expected
        variance[t] = law @ (variance[left] + (mean[left] - expected) ** 2)
    return float(mean[-1]), float(variance[-1])


@dataclass(frozen=True)
class TextTime:
    """The time of a text of `tokens` tokens with drafts of length `gamma`."""

    acceptance: tuple[float, ...]  # by depth
    cost: float
    tokens: int

    @property
    def gamma(self) -> int:
        """The length of a draft."""
        return len(self.acceptance)

    @property
    def per_call(self) -> float:
        """The time of one call."""
        return 1 + self.gamma * self.cost

    @cached_property
    def _moments(self) -> tuple[float, float]:
        return call_moments(self.acceptance, self.tokens)

    @property
    def calls(self) -> float:
        """The mean number of target calls."""
        return self._moments[0]

    @property
    def mean(self) -> float:
        """The mean time."""
        return self.per_call * self._moments[0]

    @property
    def deviation(self) -> float:
        """The standard deviation of the time."""
        return self.per_call * math.sqrt(self._moments[1])

    @property
    def rate(self) -> float:
        """The time per token of an endless text: per_call / E[N]."""
        return self.per_call / self._count(1)

    @property
    def spread(self) -> float:
        """The variance per token of an endless text, by the renewal theorem: per_call² · Var N / E[N]³."""
        mean = self._count(1)
        return self.per_call**2 * (self._count(2) - mean**2) / mean**3

    def _count(self, power: int) -> float:
        return math.fsum(n**power * p for n, p in enumerate(token_law(self.acceptance), start=1))


def text_time(acceptance: Sequence[float], cost: float, tokens: int) -> TextTime:
    """Return mean and deviation of a text's time for measured acceptance by depth: the trade-off of [chen2023].

    >>> time = text_time([0.8] * 4, cost=0.05, tokens=128)
    >>> round(time.mean, 2), round(time.deviation, 2)
    (46.25, 3.56)
    """
    return TextTime(tuple(acceptance), price("cost", cost), whole("tokens", tokens, 1))


def trade_off(alpha: float, cost: float, tokens: int, lengths: Sequence[int]) -> list[TextTime]:
    """Return the times of drafts of several lengths, each accepted with α at every depth: longer drafts against more
    target calls, as in [chen2023].

    >>> [round(time.calls, 1) for time in trade_off(0.8, 0.05, 128, (1, 4, 16))]
    [71.4, 38.5, 26.9]
    """
    chance("alpha", alpha)
    return [text_time([alpha] * whole("a length", gamma, 0), cost, tokens) for gamma in lengths]
