"""The exact part of an audit: the output distribution of every rule on small models, over all drafts and all coins.

A rule is enumerated with every kind of siblings it is valid for, on trees and chains up to four deep and eight wide,
for all corner cases of the laws (`toys.CORNERS`), over one step and over three. One step tests the verdict; reused
coins and mass lost between steps show in three.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spectr.audit.exact import Loop, Models, enumerate_pairs
from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.toys import CORNERS, Corner, sparse_pair, toy_pair
from spectr.threads import one_thread
from spectr.trees import Growth, Shape
from spectr.types import Siblings
from spectr.verify import RULES, Card, Rule, rule

__all__ = [
    "LOSSY", "ROUNDING", "Enumeration", "NamedRule", "distinct_rules", "enumerations", "exact_cases", "named_rules",
]  # fmt: skip

ROUNDING = 1e-12
"""The total variation that float64 rounding may cause."""

LOSSY: dict[str, Mapping[str, Any]] = {"lenience": {"lenience": 0.8}, "pareto": {"budget": 0.05}}
"""The lossy rules, and the settings with which an audit shows them."""

_SAME_AS = ("spectr", "walk")  # other names of kseq and optimal

_FEW: tuple[Corner, ...] = ("plain", "zeros")
"""The corner cases for expensive enumerations."""

_VARIANTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("walk", {"coupling": "optimal_binned", "bins": 16}),  # the form of the optimal coupling for large vocabularies
    ("path_block", {"coupling": "kseq_plus"}),
)
"""Rules with options other than their defaults, so that every coupling is enumerated."""


@dataclass(frozen=True, slots=True)
class NamedRule:
    """A rule and its name in a report."""

    name: str
    rule: Rule
    by_name: bool = False  # requested by name: then the report fails if the output does not have the target's law

    @property
    def claim(self) -> Claim:
        """Whether the rule claims to be lossless or lossy."""
        return "lossless" if self.rule.card.lossless else "lossy"


def named_rules(name: str | None = None, options: Mapping[str, Any] | None = None) -> list[NamedRule]:
    """Return the rule called `name` with its options, or every registered rule."""
    if name is None:
        return [_named(each, LOSSY.get(each, {}), by_name=False) for each in RULES]
    return [_named(name, options or {}, by_name=True)]


def distinct_rules() -> list[NamedRule]:
    """Return every rule under one name only."""
    return [named for named in named_rules() if named.rule.card.name not in _SAME_AS]


def _named(name: str, options: Mapping[str, Any], *, by_name: bool) -> NamedRule:
    settings = ", ".join(f"{key}={value}" for key, value in options.items())
    return NamedRule(f"{name}({settings})" if settings else name, rule(name, **options), by_name)


def _one_fixed(law: Tensor, most: int) -> Tensor:
    """Fix one of several hybrid siblings, so that both kinds occur."""
    return torch.full(law.shape[:-1], min(1, most - 1))


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One tree, enumerated for several pairs of models at once."""

    widths: tuple[int, ...]
    vocabulary: int
    corners: tuple[Corner, ...] = CORNERS
    steps: int = 1
    sparse: bool = False  # few tokens of a large vocabulary, in place of the corner cases
    lazily: bool = True  # the rule visits nodes one by one, as on a CPU, or all at once
    one_fixed: bool = True  # one hybrid sibling is fixed; otherwise the draft law determines the number

    @property
    def pairs(self) -> dict[str, Models]:
        """The pairs of models by name."""
        if self.sparse:
            return {"sparse": sparse_pair(self.vocabulary, len(self.widths))}
        return {corner: toy_pair(corner, self.vocabulary, len(self.widths)) for corner in self.corners}

    def biases(self, made: Rule, siblings: Siblings) -> dict[str, tuple[float, float]]:
        """Return for each pair the total variation between the output's and the target's distribution: of whole texts,
        and of the first token."""
        pairs = self.pairs
        growth = Growth(Shape.branching(self.widths), siblings)
        if self.one_fixed:
            growth = replace(growth, fixed=_one_fixed)
        laws = enumerate_pairs(made, list(pairs.values()), growth, Loop(self.steps, lazily=self.lazily))
        targets = [target for target, _ in pairs.values()]
        found = [(law.total_variation(t), law.first_token_bias(t)) for law, t in zip(laws, targets, strict=True)]
        return dict(zip(pairs, found, strict=True))


def enumerations(card: Card, siblings: Siblings) -> Iterator[Enumeration]:
    """Yield the trees on which a rule is enumerated.

    With two tokens a residual is a point mass, so three are needed to test its shape; draws without replacement need a
    token for each draft. Lossy rules make weaker claims and get fewer trees."""
    if not card.tree:
        yield from (Enumeration((1, 1, 1), 3), Enumeration((1,) * 4, 2), Enumeration((1,) * 4, 3))
        yield from (Enumeration((1,) * 6, 2, _FEW), Enumeration((1,), 1100, sparse=True))
        yield from (Enumeration((1, 1, 1), 2, _FEW, steps=3), Enumeration((1, 1, 1), 3, _FEW, lazily=False))
        return
    yield from (Enumeration((2, 2), 2), Enumeration((3,), 3), Enumeration((2, 1), 2, _FEW, steps=3))
    if not card.lossless:
        return
    yield from (Enumeration((2, 1, 1), 3), Enumeration((2, 1, 1, 1), 2), Enumeration((1, 1, 1, 1), 2))
    if siblings == "without_replacement":
        yield Enumeration((5,), 6)
    else:
        yield from (Enumeration((6,), 2), Enumeration((6,), 3), Enumeration((8,), 2))
        yield Enumeration((4,), 5, _FEW, one_fixed=False)
    if siblings == "hybrid":  # copies of a drawn sibling that have the same fixed child
        yield Enumeration((3, 2), 3, ("plain",))
    if card.needs_laws:
        yield (
            Enumeration((7,), 7, ("plain",)) if siblings == "without_replacement" else Enumeration((8,), 3, ("plain",))
        )
    yield from (Enumeration((3,), 1100, sparse=True), Enumeration((2,), 9000, sparse=True))
    yield from (Enumeration((2, 1), 3, _FEW, lazily=False), Enumeration((1,) * 5, 2, ("plain",), lazily=False))


@dataclass(frozen=True, slots=True)
class _Worst:
    """The largest bias of several enumerations, and where it occurred."""

    bias: float
    first_token: float
    where: dict[str, Any]


def _worst(made: Rule, siblings: Siblings, steps: int) -> _Worst:
    found, first, where = -1.0, 0.0, dict[str, Any]()
    for one in enumerations(made.card, siblings):
        for pair, (text, token) in one.biases(made, siblings).items() if one.steps == steps else ():
            first = max(first, token)
            if text > found:
                found, where = text, {"corner": pair, "tree": one.widths, "vocabulary": one.vocabulary}
    return _Worst(found, first, where)


def _run(named: NamedRule, siblings: Siblings, _: Level) -> Sequence[Finding]:
    made, lossless = named.rule, named.rule.card.lossless
    with one_thread():
        one, three = (_worst(made, siblings, steps) for steps in (1, 3))
    bias = max(one.bias, three.bias)
    measured = f"total variation {one.bias:.1e} in one step, {three.bias:.1e} in three"
    trees = list(enumerations(made.card, siblings))
    details: dict[str, Any] = {
        "rule": named.name, "siblings": siblings, "total_variation": {"1": one.bias, "3": three.bias},
        "worst": {"1": one.where, "3": three.where}, "corners": CORNERS, "tolerance": ROUNDING,
        "trees": [{"tree": tree.widths, "vocabulary": tree.vocabulary, "steps": tree.steps} for tree in trees],
        "enumerations": sum(len(tree.pairs) for tree in trees),
    }  # fmt: skip
    within = lossless or one.first_token <= made.bias_bound + ROUNDING
    if not lossless:
        details |= {"stated_bias": made.bias_bound, "first_token": one.first_token}
        measured = (
            f"the first token is off by at most {one.first_token:.3f}, and {made.bias_bound:g} per token is stated; "
            f"whole texts by {one.bias:.3f} after one step, {three.bias:.3f} after three"
        )
    return [
        Finding("exact", f"{named.name} × {siblings}", bias < ROUNDING, measured, details, named.claim,
                by_name=named.by_name and not lossless, within_bound=within)
    ]  # fmt: skip


def exact_cases(rules: Sequence[NamedRule] | None = None) -> list[Case]:
    """Return a case for each rule and kind of siblings; by default for all rules, with some options.

    The order of a race has no finite distribution to enumerate. Rules that accept such siblings do not depend on how
    they were drawn, and are enumerated with the other kinds."""
    variants = [_named(name, options, by_name=False) for name, options in _VARIANTS]
    every = [*distinct_rules(), *variants] if rules is None else rules
    pairs = [(named, siblings) for named in every for siblings in named.rule.card.siblings if siblings != "race"]
    return [Case("exact", f"{named.name} × {siblings}", partial(_run, named, siblings)) for named, siblings in pairs]
