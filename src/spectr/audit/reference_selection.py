"""Selecting couplings by their definitions: a second implementation, with which the engine's decisions are checked.

NumPy in float64, one node at a time; it shares no code with `spectr.transport`. Laws are vectors (V,): `target` is p,
`draft` is q. A coupling that selects chooses one draft, whose token then has the law r, and tests it alone with
min(1, p / r); the residual is (p − r)⁺.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "Numbers", "Outcome", "Selection", "any_of", "falling_root", "first_copies", "first_draft", "left_over",
    "normalised", "one_draft_test", "optimal_draft", "per_visit", "two_levels", "without",
]  # fmt: skip

Numbers = npt.NDArray[np.float64]

_TINY = 1e-12  # a mass below this carries no usable ratio
_LOWEST = -9.0  # log ratio below which all tokens share a class
_TURNS = 100  # iterations of the search for a root


@dataclass(frozen=True, slots=True)
class Outcome:
    """The law of the output token, given the drafts."""

    ending: Numbers  # (k,) probability that each draft is the output
    residual: Numbers  # (V,) weights of the output token if no draft is accepted


@dataclass(frozen=True, slots=True)
class Selection:
    """The law of the selected draft."""

    chance: Numbers  # (k,)
    law: Numbers  # (V,) law of its token, over all drafts


def normalised(weights: Numbers, otherwise: Numbers) -> Numbers:
    """Return weights divided by their sum, or `otherwise` if that is zero."""
    total = weights.sum()
    return weights / total if total > 0 else otherwise


def left_over(target: Numbers, taken: Numbers) -> Numbers:
    """Return (target − taken)⁺, or the target itself if nothing is left."""
    left: Numbers = np.maximum(target - taken, 0.0)
    return left if left.sum() > 0 else target


def without(law: Numbers, tokens: list[int]) -> Numbers:
    """Return the law without the given tokens, renormalised; zero if they have all its mass."""
    rest = law.copy()
    rest[tokens] = 0.0
    return normalised(rest, np.zeros_like(law))


def first_copies(tokens: tuple[int, ...], among: list[bool]) -> list[bool]:
    """Mark the slots of `among` whose token does not occur in an earlier one of them."""
    return [is_in and token not in [t for t, a in zip(tokens[:at], among[:at], strict=True) if a]
            for at, (token, is_in) in enumerate(zip(tokens, among, strict=True))]  # fmt: skip


def one_draft_test(target: Numbers, selected: Numbers) -> Numbers:
    """Return min(1, target / selected), and 1 where `selected` is zero."""
    return np.where(selected > target, target / np.where(selected > 0, selected, 1.0), 1.0)


def first_draft(draft: Numbers, tokens: list[int]) -> Selection:
    """Select the first draft."""
    return Selection(np.eye(1, len(tokens))[0], draft)


def any_of(chance: float, k: int) -> float:
    """Return 1 − (1 − chance)^k."""
    return -math.expm1(k * math.log1p(-min(chance, 1 - 2.0**-53)))


def per_visit(chance: float, k: int) -> float:
    """Return (1 − (1 − chance)^k) / chance."""
    return any_of(chance, k) / chance if chance > 0 else float(k)


def falling_root(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Find the root of a falling function: return a point at or right of it, and the point closest to zero.

    The method is false position, then bisection if that is slow. If the function is zero on an interval, the first
    point found there counts as closest, so the sequence of points is part of the definition."""
    at_low, at_high, side = function(low), function(high), 0
    if at_low <= 0:
        return low, low
    nearest, least = (low, abs(at_low)) if abs(at_low) < abs(at_high) else (high, abs(at_high))
    for turn in range(_TURNS):
        share = at_low / (at_low - at_high) if turn < _TURNS / 2 and at_low > at_high else 0.5
        middle = low + (high - low) * share
        value = function(middle)
        if abs(value) < least:
            nearest, least = middle, abs(value)
        if value <= 0:
            at_low, at_high, high, side = (at_low / 2 if side > 0 else at_low), value, middle, 1
        else:
            at_low, at_high, low, side = value, (at_high / 2 if side < 0 else at_high), middle, -1
        if high - low <= 1e-15 * high or value == 0:
            break
    return high, nearest


def two_levels(target: Numbers, draft: Numbers, tokens: list[int]) -> Selection:
    """Select as K-SEQ+ does: a draft is high with probability a(x); the first high one, or else the first, is
    selected."""
    k = len(tokens)

    def values(low: float) -> tuple[float, float]:
        return low ** (k - 1), per_visit(1 - low, k)

    def excess(low: float) -> float:
        below, above = values(low)
        missed, spilt = np.maximum(target - above * draft, 0), np.maximum(below * draft - target, 0)
        return float(missed.sum() - spilt.sum())

    below, above = values(falling_root(excess, 0.0, 1.0)[1])
    ratio = np.minimum(np.divide(target, draft, out=np.full_like(target, 1e9), where=draft > 0), 1e9)
    high = np.clip((ratio - below) / (above - below if above > below else 1.0), 0.0, 1.0)
    below, above = values(float((draft * (1 - high)).sum()))
    chance, none_before = np.zeros(k), 1.0
    for slot, token in enumerate(tokens):
        chance[slot] = none_before * high[token]
        none_before *= 1 - high[token]
    chance[0] += none_before
    return Selection(chance, draft * ((1 - high) * below + high * above))


@dataclass(frozen=True, slots=True)
class _Classes:
    """Classes of tokens with rising target / draft: the masses of each, and the class of every token."""

    target: Numbers
    draft: Numbers
    undrafted: float  # the target's mass where the draft law is zero
    of: npt.NDArray[np.int64]  # (V,)


def _classes(target: Numbers, draft: Numbers, width: int, bins: int) -> _Classes:
    """Return a class for every token; or `bins` classes with ratios log-spaced from e^−9 to the largest that matters
    for `width` drafts."""
    drafted = draft > 0
    ratio = np.divide(target, draft, out=np.full_like(target, math.inf), where=drafted)
    if bins == 0:
        order = ratio.argsort(kind="stable")
        of, count = np.empty_like(order), len(order)
        of[order] = np.arange(count)
    else:
        step = (math.log(max(width, 2)) - _LOWEST) / (bins - 2)
        with np.errstate(divide="ignore"):
            place = (np.log(ratio) - _LOWEST) / step + 1
        of, count = np.clip(place, 0, bins - 1).astype(np.int64), bins
    target_mass, draft_mass = np.zeros(count), np.zeros(count)
    np.add.at(target_mass, of[drafted], target[drafted])
    np.add.at(draft_mass, of[drafted], draft[drafted])
    return _Classes(target_mass, draft_mass, float(target[~drafted].sum()), of)


def _clip_ends(classes: _Classes, upto: Numbers, k: int) -> tuple[float, float]:
    """Return the multiples of the draft law between which the best selected law lies."""
    below = classes.target.cumsum()
    loss = max(0.0, float((upto**k - below).max()))
    beyond = classes.draft[::-1].cumsum()[::-1]
    target_beyond = classes.target[::-1].cumsum()[::-1] + classes.undrafted
    low = float(((loss + below)[upto > _TINY] / upto[upto > _TINY]).min())
    high = float(((target_beyond - loss)[beyond > _TINY] / beyond[beyond > _TINY]).max())
    return low, min(max(high, low), float(k))


@dataclass(frozen=True, slots=True)
class _Levels:
    """The value of each level, the mean that each class must have, and the masses that classes swap."""

    value: Numbers
    mean: Numbers
    up: Numbers  # running surplus of the classes that must rise
    down: Numbers  # running surplus of those that must fall


def _levels(classes: _Classes, k: int) -> _Levels:
    draft_mass, target_mass = classes.draft.sum(), classes.target.sum() + classes.undrafted
    classes = _Classes(
        classes.target / target_mass, classes.draft / draft_mass, classes.undrafted / target_mass, classes.of
    )
    upto = np.minimum(classes.draft.cumsum(), 1.0)
    before = np.concatenate([[0.0], upto[:-1]])
    value = np.sum([upto**i * before ** (k - 1 - i) for i in range(k)], axis=0)
    low, high = _clip_ends(classes, upto, k)
    has_mass = classes.draft > 0
    mean = np.divide(classes.target, classes.draft, out=value.copy(), where=has_mass)
    mean = np.where(has_mass, np.clip(mean, low, high), value)
    if abs((classes.draft * mean).sum() - 1) > 1e-9:
        mean = value
    mean = np.where(abs(mean - value) < 1e-13 * value, value, mean)
    surplus = classes.draft * (mean - value)
    return _Levels(value, mean, np.maximum(surplus, 0).cumsum(), np.maximum(-surplus, 0).cumsum())


def _level_law(levels: _Levels, own: int) -> Numbers:
    """Return the law of the level of a draft of class `own`: its own level, or that of a class it swaps with."""
    gain = levels.mean[own] - levels.value[own]
    mine, theirs = (levels.up, levels.down) if gain > 0 else (levels.down, levels.up)
    start, end = (mine[own - 1] if own else 0.0), mine[own]
    shared = np.minimum(end, theirs) - np.maximum(start, np.concatenate([[0.0], theirs[:-1]]))
    apart = levels.value - levels.value[own]
    swap = np.clip(np.divide(gain, apart, out=np.zeros_like(apart), where=apart != 0), 0.0, 1.0)
    law: Numbers = np.maximum(shared, 0.0) * swap / (end - start if end > start else 1.0)
    law[own] += max(0.0, 1 - law.sum())
    return law


def _highest(laws: list[Numbers]) -> Numbers:
    """Return the probability of each draft to be on the highest level; the first wins a tie."""
    at_most = [law.cumsum() for law in laws]
    below = [np.concatenate([[0.0], sums[:-1]]) for sums in at_most]
    chance = np.zeros(len(laws))
    for slot, law in enumerate(laws):
        wins = law.copy()
        for other in range(len(laws)):
            if other != slot:
                wins *= below[other] if other < slot else at_most[other]
        chance[slot] = wins.sum()
    return normalised(chance, chance)


def optimal_draft(target: Numbers, draft: Numbers, tokens: list[int], width: int, bins: int) -> Selection:
    """Select as the optimal coupling does: the draft on the highest level. Without draft mass nothing is selected."""
    total = draft.sum()
    if not total > 0:
        return Selection(np.zeros(len(tokens)), np.zeros_like(draft))
    classes = _classes(target, draft, width, bins)
    levels = _levels(classes, len(tokens))
    chance = _highest([_level_law(levels, int(classes.of[token])) for token in tokens])
    return Selection(chance, np.where(draft > 0, draft * levels.mean[classes.of] / total, 0.0))
