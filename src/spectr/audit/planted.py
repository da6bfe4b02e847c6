"""Faults that people have shipped, planted on purpose: an audit that passes them would be worth nothing.

Those of `faults` are enumerated; the others go through the loop, the statistics and the comparisons that spectr itself
goes through.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spectr.audit.equality import Pair, batch_case, rows_finding, texts_of
from spectr.audit.faults import SECTION, argmax_with_soft_law, exact_faults
from spectr.audit.functions import biased_function, paired_function, right_function
from spectr.audit.laws import Claimed, law_case
from spectr.audit.proofs import LOSSY
from spectr.audit.replay import Replay
from spectr.audit.report import Case, Finding, Level
from spectr.audit.samplers import EngineSampler, FunctionSampler
from spectr.audit.setup import NOISY, Setup, toy_setup
from spectr.audit.texts import TextLaw
from spectr.coins import SeededCoins
from spectr.draft import Plan
from spectr.draft.model import ModelDrafter
from spectr.engine import Engine, Request
from spectr.types import Coins, Draft, Drafting, LogitsAt, Opening, Scene, Verdict
from spectr.verify import Rule, rule
from spectr.verify.rule import Way

__all__ = ["planted_cases"]


class _ArgmaxDrafter(ModelDrafter):
    """A drafter of the loop that drafts the likeliest token and reports the law it did not draw from."""

    __slots__ = ()

    def open(self, opening: Opening) -> Drafting:
        return _Watched(super().open(opening), argmax_with_soft_law)


@dataclass(frozen=True, slots=True)
class _Watched:
    """A drafting whose drafts are changed on the way out."""

    drafting: Drafting
    change: Callable[[Draft], Draft]
    coins: Callable[[Any], Coins] = lambda coins: coins

    def propose(self, scene: Scene) -> Draft:
        return self.change(self.drafting.propose(replace(scene, coins=self.coins(scene.coins))))

    def keep(self, path: Tensor) -> None:
        self.drafting.keep(path)

    def take_rows(self, rows: Tensor) -> None:
        self.drafting.take_rows(rows)


class _SiblingsSeen(Replay):
    """A target whose mask lets every node see the nodes drafted before it, as if a tree were a chain."""

    def score(
        self, session: Any, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        all_before = torch.ones(ancestors.shape[1:], dtype=torch.bool).tril(ancestors.shape[2] - ancestors.shape[1])
        return super().score(session, tokens, all_before.expand_as(ancestors), depth, only=only)


@dataclass(frozen=True, slots=True)
class _OtherCoins(ModelDrafter):
    """A drafter of the loop that draws with other coins than it is given."""

    coins: Callable[[Any], Coins] = lambda coins: coins

    def open(self, opening: Opening) -> Drafting:
        return _Watched(ModelDrafter.open(self, opening), lambda draft: draft, self.coins)


class _JudgedWith(Rule):
    """A rule that judges with other coins than it is given."""

    def __init__(self, inner: Rule, coins: Callable[[Any], Coins]) -> None:
        self.inner, self.card, self.coins = inner, inner.card, coins

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, way: Way) -> Verdict:
        return self.inner.verdict(logits, draft, self.coins(coins), way)


def _of_the_place(coins: SeededCoins) -> Coins:
    """Coins that belong to the place in the batch and not to the row's seed."""
    return SeededCoins(torch.arange(len(coins.seed)), coins.committed)


def _of_no_step(coins: SeededCoins) -> Coins:
    """The same coins in every step."""
    return SeededCoins(coins.seed, torch.zeros_like(coins.committed))


class _Purposeless(SeededCoins):
    """One coin for all that is decided at a node."""

    def flip(self, chance: Tensor, node: Tensor, purpose: int) -> Tensor:
        return SeededCoins.flip(self, chance, node, 0)

    def pick(self, weights: Tensor, node: Tensor, purpose: int) -> Tensor:
        return SeededCoins.pick(self, weights, node, 0)


def _of_no_purpose(coins: SeededCoins) -> Coins:
    return _Purposeless(coins.seed, coins.committed)


def _coin_fault(setup: Setup, made: Rule, coins: Callable[[Any], Coins]) -> EngineSampler:
    """The loop with coins that were changed for both drafter and rule."""
    drafter = setup.drafter(NOISY, made)
    assert isinstance(drafter, ModelDrafter)
    wrong = _OtherCoins(drafter.model, drafter.plan, coins)
    return EngineSampler(
        Engine(setup.model(), wrong, _JudgedWith(made, coins), setup.stops), setup.prompt, setup.policy
    )


def _siblings_seen(setup: Setup) -> list[Case]:
    """Two comparisons that must see a wrong mask."""
    race, requests = rule("race"), [Request(setup.prompt, seed, 8) for seed in range(16)]
    wrong = _SiblingsSeen(setup.rows, setup.vocabulary, [setup.prompt])
    plain = Engine(wrong, setup.drafter("none", race), race)

    def run(_: Level) -> Sequence[Finding]:
        return [rows_finding(wrong, setup.model().logits_after, [setup.prompt] * 3, "planted")]

    pair = Pair(
        "race", "with drafts and without", requests, setup.policy,
        lambda: texts_of(plain, requests, setup.policy), lambda: Engine(wrong, setup.drafter(NOISY, race), race),
        claim="planted",
    )  # fmt: skip
    name = "a mask that shows siblings"
    return [_moved(pair.case(), f"{name}, texts"), _moved(Case(SECTION, name, run), f"{name}, rows")]


def _moved(case: Case, name: str) -> Case:
    """The same case in this section, under a name of its own."""

    def run(level: Level) -> Sequence[Finding]:
        return [replace(finding, section=SECTION, case=name) for finding in case.run(level)]

    return Case(SECTION, name, run, case.tests)


def _law_case(claimed: Claimed) -> Case:
    """Functions are off by just what is to be seen: they get no fewer samples than that needs. What is wrong in the
    loop shows with fewer."""
    case, quick = law_case(claimed), isinstance(claimed.sampler, FunctionSampler)

    def run(level: Level) -> Sequence[Finding]:
        return case.run(replace(level, samples=max(level.draws, level.needed)) if quick else level.at_most(20_000))

    return replace(case, run=run)


def _sampled_faults(setup: Setup, law: TextLaw, bias: float) -> Iterator[Claimed]:
    """Faults that samples must show."""
    speculative = rule("speculative")
    drafter = setup.drafter(NOISY, speculative)
    assert isinstance(drafter, ModelDrafter)
    one = Plan("iid", tree=(1,))
    soft = Engine(setup.model(), _ArgmaxDrafter(drafter.model, one), speculative, setup.stops)
    made: list[tuple[str, Any]] = [
        ("argmax drafter in the loop, with its soft law", EngineSampler(soft, setup.prompt, setup.policy)),
        (f"a function off by {bias:g}", FunctionSampler(biased_function(law, bias), setup.prompt, setup.stops)),
        ("a function that gives texts twice", FunctionSampler(paired_function(law), setup.prompt, setup.stops)),
        ("the same coins in every step, block", _coin_fault(setup, rule("block"), _of_no_step)),
        ("the same coins in every step, optimal", _coin_fault(setup, rule("optimal"), _of_no_step)),
        ("one coin for all at a node, speculative", _coin_fault(setup, speculative, _of_no_purpose)),
    ]
    made += [
        (f"lossy rule {name} in the loop", setup.sampler(NOISY, rule(name, **options)))
        for name, options in LOSSY.items()
    ]
    return (Claimed(name, sampler, law, "planted", SECTION) for name, sampler in made)


def planted_cases(bias: float = 0.02) -> list[Case]:
    """Every planted fault, and beside the planted functions the right one, which must pass."""
    setup = toy_setup()
    law = setup.law()
    right = Claimed("a function that is right", FunctionSampler(right_function(law), setup.prompt, setup.stops), law)
    by_place = _JudgedWith(rule("optimal"), _of_the_place)
    return [
        *(Case(SECTION, fault.name, fault.run) for fault in exact_faults()),
        *(_law_case(claimed) for claimed in (*_sampled_faults(setup, law, bias), replace(right, section=SECTION))),
        *_siblings_seen(setup),
        _moved(batch_case(setup, NOISY, by_place, "planted"), "coins of the place in the batch"),
    ]
