"""The exact part of an audit: the output law of every rule on small models, enumerated over every draft and every coin.

A rule is taken through every sibling law it holds for, every corner of policies and laws (`toys.CASES`), trees and
chains, one step and three. One step shows what a verdict does; coins that come again, and mass lost between steps, show
in three.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spectr.audit.exact import enumerate_steps
from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.toys import CASES, toy_pair
from spectr.audit.toys import Case as Corner
from spectr.threads import one_thread
from spectr.trees import Growth, Shape
from spectr.types import Siblings
from spectr.verify import RULES, Rule, rule

__all__ = ["LOSSY", "ROUNDING", "Named", "distinct_rules", "exact_cases", "named_rules"]

ROUNDING = 1e-12
"""Total variation that float64 may leave of a law that is kept."""

LOSSY: dict[str, Mapping[str, Any]] = {"lenience": {"lenience": 0.8}, "pareto": {"budget": 0.05}}
"""The lossy rules at the settings an audit shows them with."""

_SAME_AS = ("spectr", "walk")  # other names of kseq and optimal

_LATER: tuple[Corner, ...] = ("plain", "zeros")
"""Corners for three steps, which are many more ways to follow."""


@dataclass(frozen=True, slots=True)
class Named:
    """A rule as it is called in a report."""

    name: str
    rule: Rule
    asked: bool = False  # by name: then a lossy rule has to answer for its law

    @property
    def claims(self) -> bool:
        """Whether it is held to be lossless here."""
        return self.asked or self.rule.card.lossless


def named_rules(name: str | None = None, options: Mapping[str, Any] | None = None) -> list[Named]:
    """The rule called `name` with its options, or every rule that is registered."""
    if name is None:
        return [_named(each, LOSSY.get(each, {}), asked=False) for each in RULES]
    return [_named(name, options or {}, asked=True)]


def distinct_rules() -> list[Named]:
    """Every rule under one name."""
    return [named for named in named_rules() if named.rule.card.name not in _SAME_AS]


def _named(name: str, options: Mapping[str, Any], *, asked: bool) -> Named:
    said = ", ".join(f"{key}={value}" for key, value in options.items())
    return Named(f"{name}({said})" if said else name, rule(name, **options), asked)


def _one_fixed(law: Tensor, most: int) -> Tensor:
    """Of hybrid siblings one is fixed, so that both kinds are there."""
    return torch.full(law.shape[:-1], min(1, most - 1))


@dataclass(frozen=True, slots=True)
class _Setting:
    """One enumeration."""

    corner: Corner
    widths: tuple[int, ...]
    vocabulary: int
    steps: int
    seed: int

    def distance(self, made: Rule, siblings: Siblings) -> float:
        """Total variation between the law that comes out and the target's."""
        target, draft = toy_pair(self.corner, self.vocabulary, self.seed)
        growth = Growth(Shape.branching(self.widths), siblings, fixed=_one_fixed)
        return enumerate_steps(made, (target, draft), growth, self.steps).total_variation(target)


def _settings(made: Rule, steps: int) -> Iterator[_Setting]:
    if steps > 1:
        for corner in _LATER:
            yield _Setting(corner, (2, 1) if made.card.tree else (1, 1, 1), 2, steps, 7)
        return
    for corner in CASES:
        for widths, size in (((2, 2), 2), ((3,), 3)) if made.card.tree else (((1, 1, 1), 3),):
            yield _Setting(corner, widths, size, 1, len(widths))


@dataclass(frozen=True, slots=True)
class _Worst:
    """The largest of several distances, and where it was found."""

    distance: float
    where: _Setting
    looked: int


def _worst(made: Rule, siblings: Siblings, steps: int) -> _Worst:
    found = [(setting.distance(made, siblings), setting) for setting in _settings(made, steps)]
    distance, where = max(found, key=lambda pair: pair[0])
    return _Worst(distance, where, len(found))


def _run(named: Named, siblings: Siblings, _: Level) -> Sequence[Finding]:
    with one_thread():
        one, three = (_worst(named.rule, siblings, steps) for steps in (1, 3))
    distance = max(one.distance, three.distance)
    bound = "" if named.rule.card.lossless else f"; at most {named.rule.bias_bound:g} a token is what it says"
    measured = f"total variation {one.distance:.1e} in one step, {three.distance:.1e} in three{bound}"
    details = {
        "rule": named.name, "siblings": siblings, "total_variation": {"1": one.distance, "3": three.distance},
        "worst": {str(w.where.steps): {"corner": w.where.corner, "tree": w.where.widths} for w in (one, three)},
        "corners": CASES, "enumerations": one.looked + three.looked, "tolerance": ROUNDING,
    }  # fmt: skip
    claim: Claim = "lossless" if named.claims else "lossy"
    return [Finding("exact", f"{named.name} × {siblings}", distance < ROUNDING, measured, details, claim)]


def exact_cases(rules: Sequence[Named]) -> list[Case]:
    """Every rule with every sibling law it holds for. The order of a race has no finite law to enumerate; rules that
    take such siblings never look at how they were drawn, and are enumerated with the others."""
    pairs = [(named, siblings) for named in rules for siblings in named.rule.card.siblings if siblings != "race"]
    return [Case("exact", f"{named.name} × {siblings}", partial(_run, named, siblings)) for named, siblings in pairs]
