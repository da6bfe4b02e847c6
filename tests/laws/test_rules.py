"""Exact output laws of every registered rule × its kinds of siblings × corner cases of laws, over one step and three.

The quick tests enumerate a part of `spectr audit --exact`, the slow one all of it.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import spectr
from spectr import Draft, Growth, Shape
from spectr.audit import enumerate_steps
from spectr.audit.exact import Fault, Loop, enumerate_pairs
from spectr.audit.proofs import ROUNDING, Enumeration, enumerations, exact_cases
from spectr.audit.report import Level
from spectr.audit.toys import CORNERS, RandomModel, toy_pair
from spectr.types import Siblings
from spectr.verify import RULES

MADE = {name: spectr.rule(name) for name in RULES}
SAME = {"spectr": "kseq", "walk": "optimal"}  # two names of one rule
LOSSLESS = [name for name, rule in MADE.items() if rule.card.lossless and name not in SAME]
LOSSY = [name for name, rule in MADE.items() if not rule.card.lossless]
PAIRS = [(n, s) for n in LOSSLESS for s in MADE[n].card.siblings if s != "race"]
ON_TREES = [(n, s) for n, s in PAIRS if MADE[n].card.tree]

TREES = [
    Enumeration((2, 2), 2),
    Enumeration((3,), 3),
    Enumeration((2, 1, 1), 3, ("plain", "ties", "top_k")),
    Enumeration((2, 1), 3, ("plain",), lazily=False),
]
LARGER = [Enumeration((2, 1, 1, 1), 2, ("plain", "zeros")), Enumeration((6,), 2, ("plain", "ties"))]
CHAINS = [Enumeration((1, 1, 1), 3), Enumeration((1, 1, 1, 1), 2), Enumeration((1, 1), 3, ("plain",), lazily=False)]


def one_fixed(law: Tensor, most: int) -> Tensor:
    return torch.full(law.shape[:-1], min(1, most - 1))


def test_the_same_rule_under_two_names() -> None:
    for name, other in SAME.items():
        assert type(MADE[name]) is type(MADE[other])
        assert vars(MADE[name].coupling) == vars(MADE[other].coupling)


@pytest.mark.parametrize(("name", "siblings"), PAIRS)
def test_one_step_is_lossless(name: str, siblings: Siblings) -> None:
    trees = TREES if MADE[name].card.tree else CHAINS
    if siblings not in ("iid", "without_replacement"):
        trees = trees[:3]
    elif siblings == "without_replacement" and MADE[name].card.tree:  # with fewer tokens the last draw is determined
        trees = [*trees, Enumeration((4,), 5, ("plain",))]
    check(name, siblings, trees)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "siblings"), [(n, s) for n, s in ON_TREES if s in ("iid", "without_replacement")])
def test_one_step_of_larger_trees(name: str, siblings: Siblings) -> None:
    check(name, siblings, LARGER)


def check(name: str, siblings: Siblings, trees: list[Enumeration]) -> None:
    """Check that a rule has no bias on any of these trees, in any corner case."""
    for tree in trees:
        for pair, (bias, first_token) in tree.biases(MADE[name], siblings).items():
            assert bias < ROUNDING, (tree.widths, pair)
            assert first_token < ROUNDING


@pytest.mark.parametrize("name", ["race", "path_block", "optimal", "kseq", "recursive_wor", "block", "traversal"])
def test_three_steps(name: str) -> None:
    """Reused coins would show here but not in one step."""
    siblings = "without_replacement" if name == "recursive_wor" else "iid"
    widths = (2, 1) if MADE[name].card.tree else (1, 1)
    ((bias, _),) = Enumeration(widths, 2, ("plain",), steps=3).biases(MADE[name], siblings).values()
    assert bias < ROUNDING


def test_probabilities_sum_to_one() -> None:
    for name in ("optimal", "traversal", "match"):
        pairs = [toy_pair(corner, 3, 2) for corner in CORNERS]
        for law in enumerate_pairs(MADE[name], pairs, Growth(Shape.branching((2, 1)))):
            assert sum(law.values()) == pytest.approx(1, abs=1e-12)


def test_pairs_that_are_enumerated_together_are_those_enumerated_alone() -> None:
    pairs, growth = [toy_pair(corner, 2, 2) for corner in ("plain", "zeros", "ties")], Growth(Shape.branching((2,)))
    together = enumerate_pairs(MADE["optimal"], pairs, growth, Loop(3))
    for pair, law in zip(pairs, together, strict=True):
        assert dict(enumerate_steps(MADE["optimal"], pair, growth, 3)) == pytest.approx(dict(law), abs=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("case", exact_cases(), ids=lambda case: case.name)
def test_the_whole_exact_audit(case: object) -> None:
    """All trees and corner cases: up to four tokens deep and eight wide, with vocabularies of up to 9,000."""
    (found,) = case.run(Level())  # type: ignore[attr-defined]
    assert found.as_claimed, found.measured


def test_the_exact_audit_is_deep_and_wide() -> None:
    for name, siblings in PAIRS:
        trees = {(tree.widths, tree.vocabulary) for tree in enumerations(MADE[name].card, siblings)}
        assert {((1, 1, 1, 1), 2)} <= trees
        if MADE[name].card.tree:
            assert {((2, 1, 1), 3), ((2, 1, 1, 1), 2)} <= trees
            assert siblings == "without_replacement" or {((6,), 2), ((6,), 3), ((8,), 2)} <= trees
        assert any(vocabulary > 1024 for _, vocabulary in trees)


def flat_laws_branch(law: Tensor) -> Tensor:
    """Return two children where the draft law is flat, one where it is peaked."""
    return torch.where(law.amax(-1) < 0.6, 2, 1)


@pytest.mark.parametrize(("name", "siblings"), ON_TREES)
def test_shapes_that_depend_on_drawn_tokens(name: str, siblings: Siblings) -> None:
    """The laws depend on the drawn tokens, so the shape is random; it is fixed before each draw."""
    pairs = [(RandomModel(seed, 2), RandomModel(seed + 50, 2)) for seed in (11, 12)]
    growth = Growth(Shape.branching((2, 2)), siblings, child_counts=flat_laws_branch, fixed=one_fixed)
    for (target, _), law in zip(pairs, enumerate_pairs(MADE[name], pairs, growth), strict=True):
        assert law.deviation(target) < 1e-12


@pytest.mark.parametrize("name", ["optimal", "hybrid", "kseq"])
def test_pooled_copies_with_fixed_children(name: str) -> None:
    """Two sampled siblings with the same token have the same fixed child, which counts once."""
    target, draft = toy_pair("plain", 3, 1)
    law = enumerate_steps(MADE[name], (target, draft), Growth(Shape.branching((3, 2)), "hybrid", fixed=one_fixed))
    assert law.deviation(target) < 1e-12


def peaked_below_the_root(text: tuple[int, ...]) -> Tensor:
    return torch.tensor([0.7, 0.2, 0.1] if text else [0.4, 0.3, 0.3], dtype=torch.float64)


@pytest.mark.parametrize("name", ["optimal", "kseq", "path_block"])
def test_copies_agree_on_what_is_fixed_in_uneven_shapes(name: str) -> None:
    """Node 1 has three children and node 2 one; if both have the same token, their children are treated as one set."""
    growth = Growth(Shape((0, 0, 0, 1, 1, 1, 2)), "hybrid")
    target = RandomModel(3, 3)
    assert enumerate_steps(MADE[name], (target, peaked_below_the_root), growth).deviation(target) < 1e-12


@pytest.mark.parametrize("name", ["block", "path_block", "optimal"])
def test_laws_at_leaves_are_not_read(name: str) -> None:
    """A drafter may leave arbitrary values there."""
    target, draft = toy_pair("plain", 2, 5)

    def filled(tree: Draft) -> Draft:
        assert tree.laws is not None
        empty = tree.laws.sum(-1, keepdim=True) == 0
        return replace(tree, laws=torch.where(empty, torch.tensor([0.9, 0.1], dtype=torch.float64), tree.laws))

    growth = Growth(Shape.branching((1, 1)))
    law = enumerate_steps(MADE[name], (target, draft), growth, fault=Fault(change=filled))
    assert law.deviation(target) < 1e-12


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_rules_keep_their_bound(name: str) -> None:
    """The first token is off by at most the stated bias."""
    for tree in (Enumeration((2,), 3), Enumeration((2, 1), 3)):
        for _, first_token in tree.biases(MADE[name], "iid").values():
            assert first_token <= MADE[name].bias_bound + 1e-12


def test_lossy_rules_are_seen_to_be_lossy() -> None:
    target, draft = toy_pair("plain", 3, 2)
    for name in LOSSY:
        assert spectr.exact_step_law(name, target, draft, (2, 1)).total_variation(target) > 1e-3


def test_lossy_rules_without_slack_are_lossless() -> None:
    target, draft = toy_pair("plain", 3, 2)
    for rule in (spectr.rule("lenience", lenience=1.0), spectr.rule("pareto", budget=0.0)):
        assert spectr.exact_step_law(rule, target, draft, (2, 1)).deviation(target) < 1e-12


def test_pareto_is_on_the_bias_rejection_frontier() -> None:
    """Rejections fall by exactly the bias: P(reject) = TV − bias, for one draft and for two."""
    target_lm, draft_lm = toy_pair("plain", 4, 3)
    target, draft = target_lm(()), draft_lm(())
    for k, name in ((1, "maximal"), (2, "optimal")):
        gap = 1 - float(spectr.coupling(name).acceptance(target, draft, k))
        rule = spectr.rule("pareto", budget=gap / 3, coupling=name)
        assert float(rule.coupling.acceptance(target, draft, k)) == pytest.approx(1 - gap + gap / 3, abs=1e-12)
        law = spectr.exact_step_law(rule, target_lm, draft_lm, (k,))
        assert law.total_variation(target_lm) == pytest.approx(gap / 3, abs=1e-12)


def mean_tokens(name: str, pairs: list[tuple[RandomModel, RandomModel]], widths: tuple[int, ...]) -> Tensor:
    laws = enumerate_pairs(MADE[name], pairs, Growth(Shape.branching(widths)))
    return torch.tensor([law.expected_tokens for law in laws], dtype=torch.float64)


def test_block_keeps_at_least_what_tokens_keep() -> None:
    pairs = [toy_pair("plain", 3, seed) for seed in range(8)]
    gains = mean_tokens("block", pairs, (1, 1, 1)) - mean_tokens("speculative", pairs, (1, 1, 1))
    assert gains.min() >= -1e-12
    assert gains.max() > 1e-4


def test_path_block_keeps_at_least_what_the_walk_keeps() -> None:
    pairs = [toy_pair("plain", 2, seed) for seed in range(8)]
    trees = [(2, 2), (3, 1), (2, 1, 1)]
    gains = torch.cat([mean_tokens("path_block", pairs, w) - mean_tokens("optimal", pairs, w) for w in trees])
    assert gains.min() >= -1e-12
    assert gains.max() > 1e-4


def test_path_block_on_a_chain_is_block_and_traversal_too() -> None:
    models = toy_pair("plain", 3, 4)
    laws = [spectr.exact_step_law(name, *models, (1, 1, 1)) for name in ("block", "path_block", "traversal")]
    for law in laws[1:]:
        assert dict(law) == pytest.approx(dict(laws[0]), abs=1e-12)


def test_known_example_of_block_verification() -> None:
    """With target (1/3, 2/3) and draft (2/3, 1/3), two tokens: 10/9 token by token, 11/9 as a block."""

    def target(_: tuple[int, ...]) -> Tensor:
        return torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)

    def draft(_: tuple[int, ...]) -> Tensor:
        return torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)

    token, block = (
        spectr.exact_step_law(n, target, draft, (1, 1)).expected_tokens - 1 for n in ("speculative", "block")
    )
    assert token == pytest.approx(10 / 9, abs=1e-12)
    assert block == pytest.approx(11 / 9, abs=1e-12)
