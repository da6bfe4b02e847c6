"""With the race the text is a function of the seed alone, with any drafter, and has the target's law."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectr
from spectr import Growth, SeededCoins, Shape
from spectr.audit.toys import RandomModel, toy_pair
from spectr.coins import gumbel
from spectr.policy import Policy
from spectr.types import Siblings
from spectr.verify import RULES

chi2 = pytest.importorskip("scipy.stats").chi2

Generate = Callable[..., list[tuple[int, ...]]]
SEEDS = [0, 1, 2, -5, 2**40]


def plain(target: RandomModel, seed: int, length: int) -> tuple[int, ...]:
    """Decode plainly, by the argmin of E / target without a drafter."""
    text: tuple[int, ...] = ()
    while len(text) < length:
        noise = gumbel(torch.tensor([seed]), torch.tensor([[len(text)]]), target.vocabulary)[0, 0]
        text = (*text, int((target(text).log() + noise).argmax()))
    return text


GROWTHS: list[tuple[tuple[int, ...], Siblings]] = [
    ((1,), "iid"),
    ((1, 1, 1, 1), "race"),
    ((3, 2), "race"),
    ((3, 2), "iid"),
    ((2, 2), "without_replacement"),
    ((3, 1), "fixed"),
    ((3, 1, 1), "hybrid"),
]


@pytest.mark.parametrize(("widths", "siblings"), GROWTHS)
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.5, marks=pytest.mark.slow), 0.0])
def test_same_seed_same_text(
    generate: Generate, widths: tuple[int, ...], siblings: Siblings, temperature: float
) -> None:
    target = RandomModel(3, 6, Policy(temperature))
    meant = [plain(target, seed, 12) for seed in SEEDS]
    for draft in (RandomModel(3, 6, Policy(1.5)), RandomModel(99, 6)):
        growth = Growth(Shape.branching(widths), siblings)
        assert generate(spectr.rule("race"), (target, draft), growth, 12, SEEDS) == meant
    if temperature:
        assert len(set(meant)) > 1


def test_only_the_race_promises_texts_that_do_not_depend_on_drafts() -> None:
    """The engine varies drafts freely under rules that promise it, so a rule that is added here needs these tests."""
    assert [name for name in RULES if not spectr.rule(name).card.text_depends_on_drafts] == ["race"]


def test_pruning_and_dropping_change_nothing(generate: Generate) -> None:
    """Numbers of children that depend on anything, even on a global counter, cannot change the text."""
    calls = itertools.count()

    def moody(law: Tensor) -> Tensor:
        return torch.full(law.shape[:-1], next(calls) % 3)

    target, draft = RandomModel(4, 5), RandomModel(5, 5)
    meant = [plain(target, seed, 15) for seed in SEEDS]
    for siblings in ("race", "iid"):
        growth = Growth(Shape.branching((2, 2)), siblings, child_counts=moody)
        assert generate(spectr.rule("race"), (target, draft), growth, 15, SEEDS) == meant


def test_law_of_three_tokens() -> None:
    """A chi-square test of 60,000 texts against the target, with a false-alarm rate of 10^-7."""
    target, _ = toy_pair("plain", 3, 6)
    seeds = torch.arange(60_000)
    codes = torch.zeros_like(seeds)
    laws: dict[int, Tensor] = {}
    texts: dict[int, tuple[int, ...]] = {0: ()}
    for position in range(3):
        noise = gumbel(seeds, torch.full((len(seeds), 1), position), 3)[:, 0]
        for code in codes.unique().tolist():
            laws[code] = target(texts[code]).log()
            texts |= {code * 3 + x + 1: (*texts[code], x) for x in range(3)}
        logits = torch.stack([laws[code] for code in codes.tolist()])
        codes = codes * 3 + (logits + noise).argmax(-1) + 1
    counts = {code: int((codes == code).sum()) for code in codes.unique().tolist()}
    statistic = 0.0
    for text in itertools.product(range(3), repeat=3):
        code, chance = 0, 1.0
        for place, token in enumerate(text):
            chance *= float(target(text[:place])[token])
            code = code * 3 + token + 1
        expected = chance * len(seeds)
        statistic += (counts.get(code, 0) - expected) ** 2 / expected
    assert statistic < chi2.isf(1e-7, 26)


def test_acceptance_of_one_child_is_the_closed_form() -> None:
    """The frequency of equal winners over 50,000 draws of shared noise is within 6 standard errors."""
    target, draft = (model(()) for model in toy_pair("plain", 8, 9))
    seeds = torch.arange(50_000)
    coins = SeededCoins(seeds, torch.zeros_like(seeds))
    depth = torch.zeros(len(seeds), 1, dtype=torch.int64)
    winner = coins.race(target.log().expand(len(seeds), 1, 8), depth)
    for k in (1, 2, 4):
        ahead = coins.top_racers(draft.log().expand(len(seeds), 1, 8), depth, k)
        hit = float((ahead == winner[..., None]).any(-1).double().mean())
        assert abs(hit - float(spectr.race_acceptance(target, draft, k))) < 6 * (0.25 / len(seeds)) ** 0.5
