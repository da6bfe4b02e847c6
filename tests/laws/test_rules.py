"""Every registered rule × the sibling laws it declares × the corners of policies: exact laws, one step and three."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import spectr
from spectr import Draft, Growth, Shape
from spectr.audit import enumerate_steps
from spectr.audit.exact import Fault
from spectr.audit.toys import CASES, RandomModel, toy_pair
from spectr.types import Siblings
from spectr.verify import RULES, Rule

MADE = {name: spectr.rule(name) for name in RULES}
LOSSLESS = [name for name, rule in MADE.items() if rule.card.lossless]
LOSSY = [name for name in MADE if name not in LOSSLESS]
PAIRS = [(n, s) for n in LOSSLESS for s in MADE[n].card.siblings if s != "race"]


def shapes(rule: Rule) -> list[tuple[int, ...]]:
    return [(2, 2), (3, 1), (2, 1, 1)] if rule.card.tree else [(1, 1, 1)]


def one_fixed(law: Tensor, most: int) -> Tensor:
    return torch.full(law.shape[:-1], min(1, most - 1))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "siblings"), PAIRS)
def test_one_step(name: str, siblings: Siblings, case: str) -> None:
    rule = MADE[name]
    at = list(CASES).index(case) % len(shapes(rule))  # one shape a corner; `test_every_shape_in_every_corner` has all
    check_one_step(rule, siblings, case, at)


def check_one_step(rule: Rule, siblings: Siblings, case: str, at: int) -> None:
    widths = shapes(rule)[at]
    target, draft = toy_pair(case, 2 if widths == (2, 2) else 3, at)
    law = enumerate_steps(rule, (target, draft), Growth(Shape.branching(widths), siblings, fixed=one_fixed))
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert law.deviation(target) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("name", "siblings"), PAIRS)
def test_every_shape_in_every_corner(name: str, siblings: Siblings) -> None:
    for case in CASES:
        for at in range(len(shapes(MADE[name]))):
            check_one_step(MADE[name], siblings, case, at)


@pytest.mark.parametrize(("name", "siblings"), [(n, s) for n, s in PAIRS if MADE[n].card.tree])
def test_four_drafts(name: str, siblings: Siblings) -> None:
    for case in ("plain", "zeros", "ties"):
        target, draft = toy_pair(case, 4, 3)
        law = enumerate_steps(MADE[name], (target, draft), Growth(Shape.branching((4,)), siblings))
        assert law.deviation(target) < 1e-12


@pytest.mark.parametrize("case", ["plain", pytest.param("zeros", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "siblings"), PAIRS)
def test_three_steps(name: str, siblings: Siblings, case: str) -> None:
    """Coins that come again would show here and not in one step."""
    rule, (target, draft) = MADE[name], toy_pair(case, 2, 7)
    widths = (2, 1) if rule.card.tree else (1, 1, 1)
    law = enumerate_steps(rule, (target, draft), Growth(Shape.branching(widths), siblings, fixed=one_fixed), steps=3)
    assert law.deviation(target) < 1e-12


def flat_laws_branch(law: Tensor) -> Tensor:
    """A census from the draft law alone: two children where the law is flat, one where it is peaked."""
    return torch.where(law.amax(-1) < 0.6, 2, 1)


@pytest.mark.parametrize(("name", "siblings"), [(n, s) for n, s in PAIRS if MADE[n].card.tree])
def test_shapes_that_depend_on_drawn_tokens(name: str, siblings: Siblings) -> None:
    """Which laws are met depends on what was drawn, so the shape is random; it is fixed before each draw."""
    for seed in (11, 12):
        target, draft = RandomModel(seed, 2), RandomModel(seed + 50, 2)
        growth = Growth(Shape.branching((2, 2, 1)), siblings, census=flat_laws_branch, fixed=one_fixed)
        assert enumerate_steps(MADE[name], (target, draft), growth).deviation(target) < 1e-12


@pytest.mark.parametrize("name", ["optimal", "hybrid", "kseq"])
def test_pooled_copies_with_fixed_children(name: str) -> None:
    """Two sampled siblings carry one token, and both have the same fixed child: one of them collects the hit."""
    target, draft = toy_pair("plain", 3, 1)
    law = enumerate_steps(MADE[name], (target, draft), Growth(Shape.branching((3, 2)), "hybrid", fixed=one_fixed))
    assert law.deviation(target) < 1e-12


def peaked_below_the_root(text: tuple[int, ...]) -> Tensor:
    peaked = torch.tensor([0.6, 0.25, 0.05, 0.05, 0.05], dtype=torch.float64)
    return peaked if text else torch.full((5,), 0.2, dtype=torch.float64)


@pytest.mark.parametrize(
    "name", ["optimal", *(pytest.param(name, marks=pytest.mark.slow) for name in ("kseq", "path_block"))]
)
def test_copies_agree_on_what_is_fixed_in_uneven_shapes(name: str) -> None:
    """Node 1 has three children and node 2 one; when both carry one token their children are pooled."""
    growth = Growth(Shape((0, 0, 0, 1, 1, 1, 2)), "hybrid")
    target = RandomModel(3, 5)
    assert enumerate_steps(MADE[name], (target, peaked_below_the_root), growth).deviation(target) < 1e-12


@pytest.mark.parametrize("name", ["block", "path_block", "optimal"])
def test_laws_at_leaves_are_not_read(name: str) -> None:
    """A drafter may leave anything there."""
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
    for case in CASES:
        target, draft = toy_pair(case, 3, 2)
        law = spectr.exact_step_law(MADE[name], target, draft, (2,))
        first: dict[int, float] = {}
        for text, chance in law.items():
            first[text[0]] = first.get(text[0], 0.0) + chance
        meant = target(()).tolist()
        off = sum(abs(first.get(token, 0.0) - meant[token]) for token in range(3)) / 2
        assert off <= MADE[name].bias_bound + 1e-12


def test_lossy_rules_are_seen_to_be_lossy() -> None:
    target, draft = toy_pair("plain", 3, 2)
    for name in LOSSY:
        assert spectr.exact_step_law(name, target, draft, (2, 1)).total_variation(target) > 1e-3


def test_lossy_rules_without_slack_are_lossless() -> None:
    target, draft = toy_pair("plain", 3, 2)
    for rule in (spectr.rule("lenience", lenience=1.0), spectr.rule("pareto", budget=0.0)):
        assert spectr.exact_step_law(rule, target, draft, (2, 1)).deviation(target) < 1e-12


def test_pareto_is_on_the_front() -> None:
    """Rejections fall by exactly the bias spent: P(reject) = TV − bias, for one draft and for two."""
    target_lm, draft_lm = toy_pair("plain", 4, 3)
    target, draft = target_lm(()), draft_lm(())
    for k, name in ((1, "maximal"), (2, "optimal")):
        gap = 1 - float(spectr.coupling(name).acceptance(target, draft, k))
        rule = spectr.rule("pareto", budget=gap / 3, coupling=name)
        assert float(rule.coupling.acceptance(target, draft, k)) == pytest.approx(1 - gap + gap / 3, abs=1e-12)
        law = spectr.exact_step_law(rule, target_lm, draft_lm, (k,))
        assert law.total_variation(target_lm) == pytest.approx(gap / 3, abs=1e-12)


def test_block_keeps_at_least_what_tokens_keep() -> None:
    for seed in range(8):
        models = toy_pair("plain", 3, seed)
        token = spectr.exact_step_law("speculative", *models, (1, 1, 1)).expected_tokens
        block = spectr.exact_step_law("block", *models, (1, 1, 1)).expected_tokens
        assert block >= token - 1e-12
    assert block > token + 1e-4


def test_path_block_keeps_at_least_what_the_walk_keeps() -> None:
    gains = []
    for seed in range(4):
        models = toy_pair("plain", 2, seed)
        for widths in ((2, 2), (3, 1, 1)):
            walk = spectr.exact_step_law("optimal", *models, widths).expected_tokens
            path = spectr.exact_step_law("path_block", *models, widths).expected_tokens
            gains.append(path - walk)
    assert min(gains) >= -1e-12
    assert max(gains) > 1e-4


def test_path_block_on_a_chain_is_block_and_traversal_too() -> None:
    models = toy_pair("plain", 3, 4)
    laws = [spectr.exact_step_law(name, *models, (1, 1, 1)) for name in ("block", "path_block", "traversal")]
    for law in laws[1:]:
        assert dict(law) == pytest.approx(dict(laws[0]), abs=1e-12)


def test_known_example_of_block_verification() -> None:
    """target (1/3, 2/3), draft (2/3, 1/3), two tokens: 10/9 token by token, 11/9 as a block."""

    def target(_: tuple[int, ...]) -> Tensor:
        return torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)

    def draft(_: tuple[int, ...]) -> Tensor:
        return torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)

    token, block = (
        spectr.exact_step_law(n, target, draft, (1, 1)).expected_tokens - 1 for n in ("speculative", "block")
    )
    assert token == pytest.approx(10 / 9, abs=1e-12)
    assert block == pytest.approx(11 / 9, abs=1e-12)
