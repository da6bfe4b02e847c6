"""Couplings by their definitions: a second implementation, which decisions of the engine are checked with.

NumPy in float64, one node at a time; it shares no code with `spectr.transport`. Laws are vectors (V,): `target` is p,
`draft` is q. A coupling that selects chooses one draft, whose token then has the law r, and tests it alone with
min(1, p / r); what the target still owes is (p − r)⁺.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Children", "Outcome", "ReferenceCoupling", "Selection", "left_over", "normalised", "without"]

Numbers = npt.NDArray[np.float64]

_TINY = 1e-12  # a mass below this carries no usable ratio
_LOWEST = -9.0  # log ratio below which all tokens share a class
_TURNS = 100  # of looking for a root
_KNOWN = {"maximal", "kseq", "kseq_plus", "optimal", "hybrid", "recursive", "recursive_wor", "match"}


@dataclass(frozen=True, slots=True)
class Children:
    """The drafted tokens below a node, copies included, in the order drafted."""

    tokens: tuple[int, ...]
    fixed: tuple[bool, ...] | None  # members of a fixed set; the others were drawn off that set. None: all were drawn
    width: int  # the most children that a node of this draft could have had

    @property
    def pinned(self) -> list[bool]:
        """Which of them are fixed."""
        return [False] * len(self.tokens) if self.fixed is None else list(self.fixed)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The law of the token that comes out, given the drafts."""

    ending: Numbers  # (k,) chance to end on each draft
    residual: Numbers  # (V,) weights of the token if on none


@dataclass(frozen=True, slots=True)
class Selection:
    """The law of the draft that is selected."""

    chance: Numbers  # (k,)
    law: Numbers  # (V,) of its token, over all drafts


def normalised(weights: Numbers, otherwise: Numbers) -> Numbers:
    """Weights divided by their sum; `otherwise` where there are none."""
    total = weights.sum()
    return weights / total if total > 0 else otherwise


def left_over(target: Numbers, taken: Numbers) -> Numbers:
    """(target − taken)⁺; the target itself where nothing is left."""
    left: Numbers = np.maximum(target - taken, 0.0)
    return left if left.sum() > 0 else target


def without(law: Numbers, tokens: list[int]) -> Numbers:
    """The law given that none of the tokens comes; zero where nothing else can come."""
    rest = law.copy()
    rest[tokens] = 0.0
    return normalised(rest, np.zeros_like(law))


def _first_copies(tokens: tuple[int, ...], among: list[bool]) -> list[bool]:
    """Of the slots in `among` those whose token stands in no earlier one of them."""
    return [is_in and token not in [t for t, a in zip(tokens[:at], among[:at], strict=True) if a]
            for at, (token, is_in) in enumerate(zip(tokens, among, strict=True))]  # fmt: skip


def _tested(target: Numbers, given: Numbers) -> Numbers:
    """min(1, target / given), and 1 where nothing was given."""
    return np.where(given > target, target / np.where(given > 0, given, 1.0), 1.0)


# Selecting


def _first(draft: Numbers, tokens: list[int]) -> Selection:
    """The first draft."""
    return Selection(np.eye(1, len(tokens))[0], draft)


def _one_of(chance: float, k: int) -> float:
    """1 − (1 − chance)^k."""
    return -math.expm1(k * math.log1p(-min(chance, 1 - 2.0**-53)))


def _per_visit(chance: float, k: int) -> float:
    """(1 − (1 − chance)^k) / chance."""
    return _one_of(chance, k) / chance if chance > 0 else float(k)


def _root(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Where a falling function crosses zero: a point at or right of the crossing, and the one where it was seen closest
    to zero. By false position, and where that is slow by halving. The function may be zero on an interval, of which the
    first point that is found counts as nearest: so the points that are tried belong to the definition."""
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


def _two_levels(target: Numbers, draft: Numbers, tokens: list[int]) -> Selection:
    """K-SEQ+: a draft is high with a(x); the first high one is selected, and the first of all if there is none."""
    k = len(tokens)

    def values(low: float) -> tuple[float, float]:
        return low ** (k - 1), _per_visit(1 - low, k)

    def excess(low: float) -> float:
        below, above = values(low)
        missed, spilt = np.maximum(target - above * draft, 0), np.maximum(below * draft - target, 0)
        return float(missed.sum() - spilt.sum())

    below, above = values(_root(excess, 0.0, 1.0)[1])
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
    """Tokens in classes of rising target / draft: the masses of each, and the class of every token."""

    target: Numbers
    draft: Numbers
    undrafted: float  # the target's mass where the draft law is zero
    of: npt.NDArray[np.int64]  # (V,)


def _classes(target: Numbers, draft: Numbers, width: int, bins: int) -> _Classes:
    """Every token a class of its own; or `bins` classes, log-spaced in the ratio from e^−9 to the largest that matters
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
    owed, given = np.zeros(count), np.zeros(count)
    np.add.at(owed, of[drafted], target[drafted])
    np.add.at(given, of[drafted], draft[drafted])
    return _Classes(owed, given, float(target[~drafted].sum()), of)


def _clip_ends(classes: _Classes, upto: Numbers, k: int) -> tuple[float, float]:
    """Between which multiples of the draft law the best selected law lies."""
    owed = classes.target.cumsum()
    loss = max(0.0, float((upto**k - owed).max()))
    beyond = classes.draft[::-1].cumsum()[::-1]
    owed_beyond = classes.target[::-1].cumsum()[::-1] + classes.undrafted
    low = float(((loss + owed)[upto > _TINY] / upto[upto > _TINY]).min())
    high = float(((owed_beyond - loss)[beyond > _TINY] / beyond[beyond > _TINY]).max())
    return low, min(max(high, low), float(k))


@dataclass(frozen=True, slots=True)
class _Levels:
    """What each level is worth, what each class must get on average, and who swaps levels with whom."""

    value: Numbers
    mean: Numbers
    up: Numbers  # running surplus of the classes that must rise
    down: Numbers  # running surplus of those that must fall


def _levels(classes: _Classes, k: int) -> _Levels:
    given, owed = classes.draft.sum(), classes.target.sum() + classes.undrafted
    classes = _Classes(classes.target / owed, classes.draft / given, classes.undrafted / owed, classes.of)
    upto = np.minimum(classes.draft.cumsum(), 1.0)
    before = np.concatenate([[0.0], upto[:-1]])
    value = np.sum([upto**i * before ** (k - 1 - i) for i in range(k)], axis=0)
    low, high = _clip_ends(classes, upto, k)
    held = classes.draft > 0
    mean = np.divide(classes.target, classes.draft, out=value.copy(), where=held)
    mean = np.where(held, np.clip(mean, low, high), value)
    if abs((classes.draft * mean).sum() - 1) > 1e-9:
        mean = value
    mean = np.where(abs(mean - value) < 1e-13 * value, value, mean)
    surplus = classes.draft * (mean - value)
    return _Levels(value, mean, np.maximum(surplus, 0).cumsum(), np.maximum(-surplus, 0).cumsum())


def _level_law(levels: _Levels, own: int) -> Numbers:
    """The law of the level that a draft of class `own` is put on: its own, or that of a class it swaps with."""
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
    """The chance of each draft to sit on the highest level; of several on one level the first wins."""
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


def _best(target: Numbers, draft: Numbers, tokens: list[int], width: int, bins: int) -> Selection:
    """The optimal coupling: the draft on the highest level. A draft law of no mass selects nothing."""
    total = draft.sum()
    if not total > 0:
        return Selection(np.zeros(len(tokens)), np.zeros_like(draft))
    classes = _classes(target, draft, width, bins)
    levels = _levels(classes, len(tokens))
    chance = _highest([_level_law(levels, int(classes.of[token])) for token in tokens])
    return Selection(chance, np.where(draft > 0, draft * levels.mean[classes.of] / total, 0.0))


# Testing one draft after the other


def _k_sequential(target: Numbers, draft: Numbers, tokens: list[int], rho: float | None) -> Outcome:
    """K-SEQ: each draft is tested with min(1, p / (ρ q)), the first that passes comes out."""
    k = len(tokens)

    def surplus(given: float) -> float:
        clipped = float(np.minimum(target, given * draft).sum())
        return _one_of(clipped / given, k) - clipped

    if rho is None:
        rho = _root(surplus, 1.0, float(k))[0] if k > 1 else 1.0
    visit = np.minimum(draft, target / rho)
    ending, none_before = np.zeros(k), 1.0
    for slot, token in enumerate(tokens):
        passes = min(1.0, visit[token] / draft[token]) if draft[token] > 0 else 0.0
        ending[slot] = none_before * passes
        none_before *= 1 - passes
    return Outcome(ending, left_over(target, visit * _per_visit(float(visit.sum()), k)))


def _recursive(target: Numbers, draft: Numbers, tokens: list[int], *, replaces: bool) -> Outcome:
    """Each draft is tested against what those before it left of the target."""
    ending, none_before = np.zeros(len(tokens)), 1.0
    for slot, token in enumerate(tokens):
        passes = min(1.0, target[token] / draft[token]) if draft[token] > 0 else 0.0
        ending[slot] = none_before * passes
        none_before *= 1 - passes
        target = normalised(left_over(target, draft), target)
        draft = draft if replaces else without(draft, [token])
    return Outcome(ending, target)


def _matching(target: Numbers, tokens: list[int]) -> Outcome:
    """A draw from the target, and whether it was drafted."""
    first = _first_copies(tuple(tokens), [True] * len(tokens))
    return Outcome(np.where(first, target[tokens], 0.0), normalised(without(target, tokens), target))


# Any of them, with fixed drafts among the others


@dataclass(frozen=True, slots=True)
class ReferenceCoupling:
    """A coupling by its name, with the options that its definition depends on."""

    name: str
    rho: float | None = None  # of kseq
    bins: int = 2048  # of the optimal coupling
    sort_below: int = 8192
    relaxed: str | None = None  # "lenience" or "pareto": the test of a selected draft is made easier
    ease: float = 0.0  # by so much

    @classmethod
    def of(cls, coupling: Any) -> "ReferenceCoupling | None":
        """The reference of a coupling of the engine, which is only read; None if there is none."""
        name = coupling.name
        if name in ("lenience", "pareto"):
            found, ease = cls.of(coupling.inner), coupling.lenience if name == "lenience" else coupling.budget
            return None if found is None else replace(found, relaxed=name, ease=float(ease))
        options = [option for option in ("rho", "bins", "sort_below") if hasattr(coupling, option)]
        return cls(name, **{option: getattr(coupling, option) for option in options}) if name in _KNOWN else None

    def outcome(self, target: Numbers, draft: Numbers, children: Children) -> Outcome:
        """What comes out, given the drafts."""
        if not children.tokens:
            return Outcome(np.zeros(0), target)
        if self.relaxed is not None:
            return self._relaxed(target, self.selection(target, draft, children), children)
        if children.fixed is None:
            return self._settled(target, draft, list(children.tokens), children.width)
        return self._with_fixed(target, draft, children)

    def selection(self, target: Numbers, draft: Numbers, children: Children) -> Selection:
        """Which draft is selected, and with which law."""
        if not children.tokens:
            return Selection(np.zeros(0), np.zeros_like(target))
        if children.fixed is None:
            return self._selected(target, draft, list(children.tokens), children.width)
        return self._selected_with_fixed(target, draft, children)

    def _selected(self, target: Numbers, draft: Numbers, tokens: list[int], width: int) -> Selection:
        if not tokens:
            return Selection(np.zeros(0), np.zeros_like(target))
        if self.name == "maximal" or len(tokens) == 1:
            return _first(draft, tokens)
        if self.name == "kseq_plus":
            return _two_levels(target, draft, tokens)
        bins = self.bins if len(target) > self.sort_below else 0
        return _best(target, draft, tokens, width, bins)

    def _settled(self, target: Numbers, draft: Numbers, tokens: list[int], width: int) -> Outcome:
        if not tokens:
            return Outcome(np.zeros(0), target)
        match self.name:
            case "kseq":
                return _k_sequential(target, draft, tokens, self.rho)
            case "recursive" | "recursive_wor":
                return _recursive(target, draft, tokens, replaces=self.name == "recursive")
            case "match":
                return _matching(target, tokens)
        chosen = self._selected(target, draft, tokens, width)
        tests = _tested(target[tokens], chosen.law[tokens])
        return Outcome(chosen.chance * tests, left_over(target, chosen.law))

    def _with_fixed(self, target: Numbers, draft: Numbers, children: Children) -> Outcome:
        """The drawn drafts are coupled alone; what the target owes then holds all its mass on the fixed tokens, and a
        draw from it that is fixed counts as a draft."""
        tokens, pinned = children.tokens, children.pinned
        fixed = [token for token, is_fixed in zip(tokens, pinned, strict=True) if is_fixed]
        drawn = [token for token, is_fixed in zip(tokens, pinned, strict=True) if not is_fixed]
        coupled = self._settled(target, without(draft, fixed), drawn, children.width)
        law = normalised(coupled.residual, target)
        missed = max(0.0, 1 - coupled.ending.sum())
        ending = np.where(_first_copies(tokens, pinned), law[list(tokens)] * missed, 0.0)
        ending[np.logical_not(pinned)] = coupled.ending
        return Outcome(ending, normalised(without(law, fixed), target))

    def _selected_with_fixed(self, target: Numbers, draft: Numbers, children: Children) -> Selection:
        """A drawn draft that would be rejected gives way to a fixed one, as often as the target's mass there allows."""
        tokens, pinned = list(children.tokens), np.array(children.pinned)
        fixed = [token for token, is_fixed in zip(tokens, pinned, strict=True) if is_fixed]
        drawn = [token for token, is_fixed in zip(tokens, pinned, strict=True) if not is_fixed]
        chosen = self._selected(target, without(draft, fixed), drawn, children.width)
        first = np.array(_first_copies(children.tokens, children.pinned))
        owed = np.where(first, target[tokens], 0.0)
        mass, lost = owed.sum(), np.maximum(chosen.law - target, 0).sum()
        among = owed / mass if mass > 0 else first / max(1, first.sum())
        share = min(1.0, mass / lost) if lost > 0 else 0.0
        chance, move = np.zeros(len(tokens)), np.zeros(len(tokens))
        chance[~pinned] = chosen.chance
        move[~pinned] = chosen.chance * (1 - _tested(target[drawn], chosen.law[drawn])) * share
        moved, moved_law = (move.sum(), share * lost) if drawn else (1.0, 1.0)
        law = chosen.law - share * np.maximum(chosen.law - target, 0)
        np.add.at(law, tokens, moved_law * among)
        return Selection(chance - move + moved * among, law)

    def _relaxed(self, target: Numbers, chosen: Selection, children: Children) -> Outcome:
        """A selected draft is accepted more often than is lossless."""
        tests = _tested(target[list(children.tokens)], chosen.law[list(children.tokens)])
        if self.relaxed == "lenience":
            eased = np.minimum(1.0, tests / self.ease)
        else:
            gap = 1 - float(np.minimum(target, chosen.law).sum())
            eased = 1 - (1 - tests) * (max(0.0, 1 - self.ease / gap) if gap > 0 else 0.0)
        return Outcome(chosen.chance * eased, left_over(target, chosen.law))
