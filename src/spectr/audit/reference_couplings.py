"""Couplings by their definitions: a second implementation, with which the engine's decisions are checked.

NumPy in float64, one node at a time; it shares no code with `spectr.transport`. Laws are vectors (V,): `target` is p,
`draft` is q.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spectr.audit.reference_selection import (
    Numbers,
    Outcome,
    Selection,
    any_of,
    falling_root,
    first_copies,
    first_draft,
    left_over,
    normalised,
    one_draft_test,
    optimal_draft,
    per_visit,
    two_levels,
    without,
)

__all__ = ["Children", "Outcome", "ReferenceCoupling", "Selection", "left_over", "normalised", "without"]

_KNOWN = {"maximal", "kseq", "kseq_plus", "optimal", "hybrid", "recursive", "recursive_wor", "match"}


@dataclass(frozen=True, slots=True)
class Children:
    """The drafted tokens below a node, copies included, in the order drafted."""

    tokens: tuple[int, ...]
    fixed: tuple[bool, ...] | None  # members of a fixed set; the others were drawn outside it. None: all were drawn
    width: int  # the largest number of children that a node of this draft can have

    @property
    def pinned(self) -> list[bool]:
        """Whether each child is fixed."""
        return [False] * len(self.tokens) if self.fixed is None else list(self.fixed)


def _k_sequential(target: Numbers, draft: Numbers, tokens: list[int], rho: float | None) -> Outcome:
    """K-SEQ: test each draft with min(1, p / (ρ q)); the first that passes is the output."""
    k = len(tokens)

    def surplus(rho: float) -> float:
        clipped = float(np.minimum(target, rho * draft).sum())
        return any_of(clipped / rho, k) - clipped

    if rho is None:
        rho = falling_root(surplus, 1.0, float(k))[0] if k > 1 else 1.0
    visit = np.minimum(draft, target / rho)
    ending, none_before = np.zeros(k), 1.0
    for slot, token in enumerate(tokens):
        passes = min(1.0, visit[token] / draft[token]) if draft[token] > 0 else 0.0
        ending[slot] = none_before * passes
        none_before *= 1 - passes
    return Outcome(ending, left_over(target, visit * per_visit(float(visit.sum()), k)))


def _recursive(target: Numbers, draft: Numbers, tokens: list[int], *, replaces: bool) -> Outcome:
    """Test each draft against the target's residual after the drafts before it."""
    ending, none_before = np.zeros(len(tokens)), 1.0
    for slot, token in enumerate(tokens):
        passes = min(1.0, target[token] / draft[token]) if draft[token] > 0 else 0.0
        ending[slot] = none_before * passes
        none_before *= 1 - passes
        target = normalised(left_over(target, draft), target)
        draft = draft if replaces else without(draft, [token])
    return Outcome(ending, target)


def _matching(target: Numbers, tokens: list[int]) -> Outcome:
    """Draw from the target and accept if the token was drafted."""
    first = first_copies(tuple(tokens), [True] * len(tokens))
    return Outcome(np.where(first, target[tokens], 0.0), normalised(without(target, tokens), target))


@dataclass(frozen=True, slots=True)
class ReferenceCoupling:
    """A coupling by its name, with the options that its definition depends on."""

    name: str
    rho: float | None = None  # option of kseq
    bins: int = 2048  # option of the optimal coupling
    sort_below: int = 8192
    relaxed: str | None = None  # "lenience" or "pareto": how the test of a selected draft is relaxed
    ease: float = 0.0  # the factor of lenience, or the budget of pareto

    @classmethod
    def of(cls, coupling: Any) -> "ReferenceCoupling | None":
        """Return the reference of a coupling of the engine, or None; only the coupling's options are read."""
        name = coupling.name
        if name in ("lenience", "pareto"):
            found, ease = cls.of(coupling.inner), coupling.lenience if name == "lenience" else coupling.budget
            return None if found is None else replace(found, relaxed=name, ease=float(ease))
        options = [option for option in ("rho", "bins", "sort_below") if hasattr(coupling, option)]
        return cls(name, **{option: getattr(coupling, option) for option in options}) if name in _KNOWN else None

    def outcome(self, target: Numbers, draft: Numbers, children: Children) -> Outcome:
        """Return the law of the output token, given the drafts."""
        if not children.tokens:
            return Outcome(np.zeros(0), target)
        if self.relaxed is not None:
            return self._relaxed(target, self.selection(target, draft, children), children)
        if children.fixed is None:
            return self._settled(target, draft, list(children.tokens), children.width)
        return self._with_fixed(target, draft, children)

    def selection(self, target: Numbers, draft: Numbers, children: Children) -> Selection:
        """Return the law of the selected draft."""
        if not children.tokens:
            return Selection(np.zeros(0), np.zeros_like(target))
        if children.fixed is None:
            return self._selected(target, draft, list(children.tokens), children.width)
        return self._selected_with_fixed(target, draft, children)

    def _selected(self, target: Numbers, draft: Numbers, tokens: list[int], width: int) -> Selection:
        if not tokens:
            return Selection(np.zeros(0), np.zeros_like(target))
        if self.name == "maximal" or len(tokens) == 1:
            return first_draft(draft, tokens)
        if self.name == "kseq_plus":
            return two_levels(target, draft, tokens)
        bins = self.bins if len(target) > self.sort_below else 0
        return optimal_draft(target, draft, tokens, width, bins)

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
        tests = one_draft_test(target[tokens], chosen.law[tokens])
        return Outcome(chosen.chance * tests, left_over(target, chosen.law))

    def _with_fixed(self, target: Numbers, draft: Numbers, children: Children) -> Outcome:
        """Couple the drawn drafts alone. The residual then has all the target's mass on the fixed tokens, and a draw
        from it that is fixed counts as accepted."""
        tokens, pinned = children.tokens, children.pinned
        fixed = [token for token, is_fixed in zip(tokens, pinned, strict=True) if is_fixed]
        drawn = [token for token, is_fixed in zip(tokens, pinned, strict=True) if not is_fixed]
        coupled = self._settled(target, without(draft, fixed), drawn, children.width)
        law = normalised(coupled.residual, target)
        missed = max(0.0, 1 - coupled.ending.sum())
        ending = np.where(first_copies(tokens, pinned), law[list(tokens)] * missed, 0.0)
        ending[np.logical_not(pinned)] = coupled.ending
        return Outcome(ending, normalised(without(law, fixed), target))

    def _selected_with_fixed(self, target: Numbers, draft: Numbers, children: Children) -> Selection:
        """Replace a drawn draft that would be rejected by a fixed one, as often as the target's mass there allows."""
        tokens, pinned = list(children.tokens), np.array(children.pinned)
        fixed = [token for token, is_fixed in zip(tokens, pinned, strict=True) if is_fixed]
        drawn = [token for token, is_fixed in zip(tokens, pinned, strict=True) if not is_fixed]
        chosen = self._selected(target, without(draft, fixed), drawn, children.width)
        first = np.array(first_copies(children.tokens, children.pinned))
        fixed_mass = np.where(first, target[tokens], 0.0)
        mass, lost = fixed_mass.sum(), np.maximum(chosen.law - target, 0).sum()
        among = fixed_mass / mass if mass > 0 else first / max(1, first.sum())
        share = min(1.0, mass / lost) if lost > 0 else 0.0
        chance, move = np.zeros(len(tokens)), np.zeros(len(tokens))
        chance[~pinned] = chosen.chance
        move[~pinned] = chosen.chance * (1 - one_draft_test(target[drawn], chosen.law[drawn])) * share
        moved, moved_law = (move.sum(), share * lost) if drawn else (1.0, 1.0)
        law = chosen.law - share * np.maximum(chosen.law - target, 0)
        np.add.at(law, tokens, moved_law * among)
        return Selection(chance - move + moved * among, law)

    def _relaxed(self, target: Numbers, chosen: Selection, children: Children) -> Outcome:
        """Accept the selected draft with the relaxed test."""
        tests = one_draft_test(target[list(children.tokens)], chosen.law[list(children.tokens)])
        if self.relaxed == "lenience":
            relaxed = np.minimum(1.0, tests / self.ease)
        else:
            gap = 1 - float(np.minimum(target, chosen.law).sum())
            relaxed = 1 - (1 - tests) * (max(0.0, 1 - self.ease / gap) if gap > 0 else 0.0)
        return Outcome(chosen.chance * relaxed, left_over(target, chosen.law))
