"""Seeded coins sample the enumerated law for every rule, and lazy and eager descents agree."""

import pytest
import torch
from torch import Tensor

import spectr
from spectr import Draft, Growth, SeededCoins, Shape, grow
from spectr.audit import enumerate_steps
from spectr.audit.toys import toy_pair
from spectr.verify import RULES

chi2 = pytest.importorskip("scipy.stats").chi2

ROWS = 20_000
NAMES = [name for name in RULES if name not in ("spectr", "walk")]  # other names of kseq and optimal


def drafts(name: str, rows: int, widths: tuple[int, ...]) -> tuple[Tensor, Draft, SeededCoins, Growth]:
    """Return logits, drafts and coins for many rows of one context-free toy pair."""
    rule = spectr.rule(name)
    siblings = "iid" if name in ("race", "match") else rule.card.siblings[0]
    growth = Growth(Shape.branching(widths), siblings)
    target, draft = (model(()) for model in toy_pair("plain", 3, 8))
    seeds = torch.arange(rows) * 7 + 3
    coins = SeededCoins(seeds, torch.full((rows,), 11))
    tree = grow(torch.zeros(rows, dtype=torch.int64), lambda _, n: draft.expand(rows, len(n), 3), growth, coins)
    return target.log().expand(rows, len(growth.shape.parents), 3), tree, coins, growth


@pytest.mark.parametrize("name", NAMES)
def test_seeded_coins_give_the_enumerated_law(name: str) -> None:
    """A chi-square test over emitted texts, with a false-alarm rate of 10^-8 per rule."""
    widths = (2, 2) if spectr.rule(name).card.tree else (1, 1, 1)
    logits, tree, coins, growth = drafts(name, ROWS, widths)
    verdict = spectr.rule(name)(logits, tree, coins)
    path = torch.where(verdict.path >= 0, tree.tokens.gather(-1, verdict.path.clamp_min(0)), -1)
    found: dict[tuple[int, ...], int] = {}
    for row, bonus in zip(path.tolist(), verdict.bonus.tolist(), strict=True):
        text = (*(x for x in row if x >= 0), bonus)
        found[text] = found.get(text, 0) + 1
    target, draft = (model(()) for model in toy_pair("plain", 3, 8))
    law = enumerate_steps(spectr.rule(name), (lambda _: target, lambda _: draft), growth)
    likely = {text: chance * ROWS for text, chance in law.items() if chance * ROWS > 5}
    rare = ROWS - sum(likely.values())
    statistic = sum((found.get(text, 0) - expected) ** 2 / expected for text, expected in likely.items())
    others = sum(count for text, count in found.items() if text not in likely)
    statistic += (others - rare) ** 2 / max(rare, 5.0)
    assert set(found) <= set(law)
    assert statistic < chi2.isf(1e-8, len(likely))


@pytest.mark.parametrize("name", NAMES)
def test_lazy_and_eager_verdicts_agree(name: str) -> None:
    widths = (3, 2, 1) if spectr.rule(name).card.tree else (1, 1, 1)
    logits, tree, coins, _ = drafts(name, 3_000, widths)
    lazy, eager = (spectr.rule(name)(logits, tree, coins, lazily=way) for way in (True, False))
    for field in ("path", "length", "bonus", "corrected"):
        assert torch.equal(getattr(lazy, field), getattr(eager, field))


@pytest.mark.parametrize("name", ["race", "match", "speculative", "path_block", "block"])
def test_lazy_and_eager_descents_reach_the_end_of_a_long_chain(name: str) -> None:
    """If the drafter is the target, everything is kept, nine tokens deep."""
    shape, rows = Shape.branching((1,) * 9), 50
    law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    seeds = torch.arange(rows)
    coins = SeededCoins(seeds, torch.zeros_like(seeds))
    siblings = "race" if name == "race" else "iid"
    tree = grow(torch.zeros_like(seeds), lambda _, n: law.expand(rows, len(n), 3), Growth(shape, siblings), coins)
    logits = law.log().expand(rows, 10, 3)
    lazy, eager = (spectr.rule(name)(logits, tree, coins, lazily=way) for way in (True, False))
    assert torch.equal(lazy.path, eager.path)
    if name != "match":
        assert eager.length.unique().tolist() == [9]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    widths = (2, 2) if spectr.rule(name).card.tree else (1, 1)
    logits, tree, coins, _ = drafts(name, 50, widths)
    together = spectr.rule(name)(logits, tree, coins)
    for row in (0, 17, 49):
        at = slice(row, row + 1)
        assert tree.laws is not None
        alone = Draft(
            tree.tokens[at],
            tree.parents[at],
            tree.alive[at],
            tree.fixed[at],
            tree.laws[at],
            tree.siblings,
            tree.depth,
            tree.width,
        )
        verdict = spectr.rule(name)(logits[at], alone, SeededCoins(coins.seed[at], coins.committed[at]))
        assert torch.equal(verdict.path[0], together.path[row])
        assert int(verdict.bonus) == int(together.bonus[row])
