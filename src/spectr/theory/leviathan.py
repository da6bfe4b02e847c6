"""The speed-up of one chain of drafts, with one acceptance rate for all depths or one for each.

Everything here is exact. Times are in target calls: `cost` is the time that one more drafted token adds to a call,
drafting and scoring together, so that a call with γ drafts takes 1 + γ·cost.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, takewhile
from operator import mul

from spectr.checks import whole
from spectr.errors import ArgumentError

__all__ = [
    "LONGEST",
    "Prediction",
    "chance",
    "expected_tokens",
    "expected_tokens_by_depth",
    "operations",
    "pays",
    "predict",
    "predict_by_depth",
    "price",
    "speedup",
    "token_law",
]

LONGEST = 1000  # longest draft considered: at cost 0, or if everything is accepted, no length is optimal


def chance(name: str, value: float) -> float:
    """Return a probability, or raise if it is not in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ArgumentError(f"{name} must be a probability in [0, 1], got {value!r}")
    return float(value)


def price(name: str, value: float) -> float:
    """Return a cost in target calls, or raise if it is negative or infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ArgumentError(f"{name} must be a finite number of at least 0, in target calls, got {value!r}")
    return float(value)


def _chances(acceptance: Sequence[float]) -> list[float]:
    return [chance("acceptance at each depth", value) for value in acceptance]


def token_law(acceptance: Sequence[float]) -> tuple[float, ...]:
    """Return P(a call emits n tokens), n = 1 … γ + 1, if depth j accepts with `acceptance[j]` once it is reached.

    With one value γ times it is the capped geometric law of [leviathan2023], §3.1.

    >>> [round(value, 3) for value in token_law([0.8, 0.5])]
    [0.2, 0.4, 0.4]
    """
    reached = list(accumulate(_chances(acceptance), mul, initial=1.0))
    return tuple(here * (1 - on) for here, on in zip(reached, [*acceptance, 0.0], strict=True))


def expected_tokens(alpha: float, gamma: int) -> float:
    """Return tokens per target call, (1 − α^(γ+1)) / (1 − α): equation (1) of [leviathan2023].

    >>> round(expected_tokens(0.8, 8), 4), expected_tokens(1.0, 3)
    (4.3289, 4.0)
    """
    alpha, count = chance("alpha", alpha), whole("gamma", gamma, 0) + 1
    if alpha in (0.0, 1.0):
        return float(count) if alpha else 1.0
    return -math.expm1(count * math.log(alpha)) / (1 - alpha)


def expected_tokens_by_depth(acceptance: Sequence[float]) -> float:
    """Return tokens per target call, 1 + Σ_i Π_{j≤i} a_j, where depth j accepts with a_j once it is reached.

    It assumes no model: Π_{j≤i} a_j is the probability that depth i is kept, for any rule, text and correlation between
    depths. It extends equation (1) of [leviathan2023], in which all a_j are one α.

    >>> round(expected_tokens_by_depth([0.8, 0.5]), 3)
    2.2
    """
    return math.fsum(accumulate(_chances(acceptance), mul, initial=1.0))


def speedup(alpha: float, cost: float, gamma: int) -> float:
    """Return plain decoding's time over speculation's, (1 − α^(γ+1)) / ((1 − α)(γ·cost + 1)): theorem 3.8 of
    [leviathan2023].

    >>> round(speedup(0.8, 0.05, 8), 4)
    3.0921
    """
    return expected_tokens(alpha, gamma) / (1 + whole("gamma", gamma, 0) * price("cost", cost))


def operations(alpha: float, cost: float, gamma: int) -> float:
    """Return arithmetic operations over those of plain decoding, (1 − α)(γ·ĉ + γ + 1) / (1 − α^(γ+1)): theorem 3.11 of
    [leviathan2023]. Here `cost` is ĉ, the ratio of the drafter's operations per token to the target's.

    >>> round(operations(0.8, 0.05, 8), 4)
    2.1715
    """
    gamma = whole("gamma", gamma, 0)
    return (gamma * price("cost", cost) + gamma + 1) / expected_tokens(alpha, gamma)


def pays(alpha: float, cost: float) -> bool:
    """Return whether some γ ≥ 1 is faster than plain decoding, which holds if and only if α > cost: corollary 3.9 of
    [leviathan2023].

    If α > cost, γ = 1 gives (1 + α) / (1 + cost) > 1. Conversely γ gains only if α + … + α^γ > γ·cost, and the left
    side is at most γ·α.

    >>> pays(0.8, 0.05), pays(0.1, 0.1)
    (True, False)
    """
    return chance("alpha", alpha) > price("cost", cost)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The best length of a draft and its speed-up; gamma 0 means no speculation."""

    gamma: int
    speedup: float
    expected_tokens: float

    def as_data(self) -> dict[str, float]:
        """Return the prediction as JSON data."""
        return asdict(self)


def predict(alpha: float, cost: float, longest: int = LONGEST) -> Prediction:
    """Return the best γ of at most `longest`, by theorem 3.8 of [leviathan2023].

    The speed-up rises with γ as long as α^(γ+1)·(1 + γ·cost) exceeds cost times the tokens so far. The difference of
    the two falls in γ, so the speed-up rises and then falls, and the search stops where it first does not rise.

    >>> predict(0.8, 0.05).gamma, predict(0.05, 0.1)
    (8, Prediction(gamma=0, speedup=1.0, expected_tokens=1.0))
    """
    alpha, cost = chance("alpha", alpha), price("cost", cost)

    def rises(gamma: int) -> bool:
        return alpha ** (gamma + 1) * (1 + gamma * cost) > cost * expected_tokens(alpha, gamma)

    gamma = sum(1 for _ in takewhile(rises, range(whole("longest", longest, 0))))
    return Prediction(gamma, speedup(alpha, cost, gamma), expected_tokens(alpha, gamma))


def predict_by_depth(acceptance: Sequence[float], cost: float) -> Prediction:
    """Return the best γ among the measured depths, by [leviathan2023] with an acceptance rate for each depth.

    Acceptance may rise again below a bad depth, so every length is tried.

    >>> predict_by_depth([0.8, 0.1, 0.9], 0.05).gamma
    1
    """
    cost, kept = price("cost", cost), accumulate(_chances(acceptance), mul)
    predictions = [
        Prediction(n, tokens / (1 + n * cost), tokens) for n, tokens in enumerate(accumulate(kept, initial=1.0))
    ]
    return max(predictions, key=lambda one: one.speedup)
