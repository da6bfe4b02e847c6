"""Deliberate faults, most of which have occurred in released software: an audit that misses them proves nothing.

The faults of `faults` and `policy_faults` are enumerated or compared with a reference; the others are subject to the
same loop, statistics and comparisons as spectr itself.
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
from spectr.audit.loop import in_section, texts_case
from spectr.audit.noise import BORDERS, coin_streams, draw_case, key_case, noise_streams, race_noise, stream_case
from spectr.audit.policy_faults import CommittedOnly, PresenceOnPrompt, policy_faults
from spectr.audit.proofs import LOSSY
from spectr.audit.replay import Replay
from spectr.audit.report import Case, Finding, Level
from spectr.audit.samplers import EngineSampler, FunctionSampler
from spectr.audit.setup import NOISY, Setup, toy_setup
from spectr.audit.texts import TextLaw
from spectr.audit.witnessed import witnessed_faults
from spectr.coins import SeededCoins, draw, uniform
from spectr.draft import Plan
from spectr.draft.delegating import DelegatingDrafting
from spectr.draft.model import ModelDrafter
from spectr.engine import Engine
from spectr.policy import Policy, PolicyRows
from spectr.types import Coins, Draft, Drafting, LogitsAt, Opening, Scene, Verdict
from spectr.verify import Rule, rule
from spectr.verify.rule import Descent

__all__ = ["planted_cases"]


class _ArgmaxDrafter(ModelDrafter):
    """A drafter that drafts the likeliest token and reports a law it did not draw from."""

    __slots__ = ()

    def open(self, opening: Opening) -> Drafting:
        return _Changed(super().open(opening), argmax_with_soft_law)


class _Changed(DelegatingDrafting):
    """A drafting with changed coins and changed drafts."""

    def __init__(
        self,
        inner: Drafting,
        change: Callable[[Draft], Draft] = lambda draft: draft,
        coins: Callable[[Any], Coins] = lambda coins: coins,
    ) -> None:
        super().__init__(inner)
        self.change, self.coins = change, coins

    def propose(self, scene: Scene) -> Draft:
        return self.change(self.inner.propose(replace(scene, coins=self.coins(scene.coins))))


class _SiblingsSeen(Replay):
    """A target whose mask lets every node attend to all nodes before it, as if the tree were a chain."""

    def score(
        self, session: Any, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        all_before = torch.ones(ancestors.shape[1:], dtype=torch.bool).tril(ancestors.shape[2] - ancestors.shape[1])
        return super().score(session, tokens, all_before.expand_as(ancestors), depth, only=only)


@dataclass(frozen=True, slots=True)
class _OtherCoins(ModelDrafter):
    """A drafter that draws with changed coins."""

    coins: Callable[[Any], Coins] = lambda coins: coins

    def open(self, opening: Opening) -> Drafting:
        return _Changed(ModelDrafter.open(self, opening), coins=self.coins)


class _JudgedWith(Rule):
    """A rule that decides with changed coins."""

    def __init__(self, inner: Rule, coins: Callable[[Any], Coins]) -> None:
        self.inner, self.card, self.coins = inner, inner.card, coins

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        return self.inner.verdict(logits, draft, self.coins(coins), descent)


def _of_the_place(coins: SeededCoins) -> Coins:
    """Key the coins by the index in the batch instead of the row's seed."""
    return replace(coins, seed=torch.arange(len(coins.seed)))


def _of_no_step(coins: SeededCoins) -> Coins:
    """Use the same coins in every step."""
    return replace(coins, committed=torch.zeros_like(coins.committed))


class _Purposeless(SeededCoins):
    """Coins that ignore the purpose: one coin for all decisions at a node."""

    def flip(self, chance: Tensor, node: Tensor, purpose: int) -> Tensor:
        return SeededCoins.flip(self, chance, node, 0)

    def pick(self, weights: Tensor, node: Tensor, purpose: int) -> Tensor:
        return SeededCoins.pick(self, weights, node, 0)


def _of_no_purpose(coins: SeededCoins) -> Coins:
    return _Purposeless(coins.seed, coins.committed, coins.quiet)


def _coin_fault(setup: Setup, made: Rule, coins: Callable[[Any], Coins]) -> EngineSampler:
    """Return a sampler with changed coins for both drafter and rule."""
    drafter = setup.drafter(NOISY, made)
    assert isinstance(drafter, ModelDrafter)
    wrong = _OtherCoins(drafter.model, drafter.plan, coins)
    return EngineSampler(
        Engine(setup.model(), wrong, _JudgedWith(made, coins), setup.stops), setup.prompt, setup.policy
    )


def _siblings_seen(setup: Setup) -> list[Case]:
    """Return two comparisons that must detect a wrong mask."""
    race, requests = rule("race"), setup.requests(8, range(16))
    wrong = _SiblingsSeen(setup.rows, setup.vocabulary, [setup.prompt])
    plain = Engine(wrong, setup.drafter("none", race), race)

    def run(_: Level) -> Sequence[Finding]:
        return [rows_finding(wrong, setup.model().logits_after, [setup.prompt] * 3, "planted")]

    pair = Pair(
        "race", "with drafts and without", requests, lambda: texts_of(plain, requests),
        lambda: Engine(wrong, setup.drafter(NOISY, race), race), claim="planted",
    )  # fmt: skip
    name = "a mask that shows siblings"
    rows = Case(SECTION, name, run)
    return [in_section(pair.case(), SECTION, f"{name}, texts"), in_section(rows, SECTION, f"{name}, rows")]


def _law_case(claimed: Claimed) -> Case:
    """Functions are off by exactly the bias to detect and get the samples that it requires; faults in the loop need
    fewer."""
    case, quick = law_case(claimed), isinstance(claimed.sampler, FunctionSampler)

    def run(level: Level) -> Sequence[Finding]:
        return case.run(replace(level, samples=max(level.draws, level.needed)) if quick else level.at_most(20_000))

    return replace(case, run=run)


def _sampled_faults(setup: Setup, law: TextLaw, bias: float) -> Iterator[Claimed]:
    """Return the faults that sampling must detect."""
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


def _repeating(period: int) -> Iterator[Case]:
    """Return cases of coins and race noise that repeat after `period` tokens."""

    def coins(seed: Tensor, committed: Tensor, node: Tensor, purpose: int) -> Tensor:
        return uniform(seed, committed % period, node, purpose)

    wrong = (*coin_streams(coins), *noise_streams(lambda seed, position: race_noise(seed, position % period)))
    for stream in wrong:
        if stream.name in ("coins by committed tokens", "race noise by position"):
            case = stream_case(stream, "planted")
            yield in_section(case, SECTION, f"{stream.name} that repeat after {period:,} tokens")


def _shared_keys() -> Case:
    """Return the case of coins whose key words are added, so that different keys share a coin."""

    def coins(seed: Tensor, committed: Tensor, node: Tensor, purpose: int) -> Tensor:
        return uniform(seed, committed + node[:, 0], torch.zeros_like(node), purpose)

    return in_section(key_case(coins, claim="planted"), SECTION, "coins keyed by the sum of two words")


def _without_last_chunk(weights: Tensor, coin: Tensor) -> Tensor:
    """Draw without the last, incomplete chunk of a large vocabulary."""
    size = weights.shape[-1]
    return draw(weights[..., : size - size % 512] if size > 1024 else weights, coin)


def _shaped_faults(setup: Setup) -> Iterator[Case]:
    """Return cases of faults in the policy that compare the race's texts with plain loops."""
    made = setup.drafter(NOISY, rule("race"))
    faults: tuple[tuple[str, type[PolicyRows], Policy], ...] = (
        ("penalties see the committed text only", CommittedOnly, Policy(frequency_penalty=1.5)),
        ("presence penalty counts the prompt", PresenceOnPrompt, Policy(presence_penalty=2.0)),
    )
    for what, computed, policy in faults:
        wrong = replace(setup.under(policy), computed=computed)
        yield in_section(texts_case(wrong, what, made, "planted"), SECTION, f"{what}, in the loop")


def planted_cases(bias: float = 0.02) -> list[Case]:
    """Return the cases of all planted faults, and of the correct function, which must pass."""
    setup = toy_setup()
    law = setup.law()
    right = Claimed("a function that is right", FunctionSampler(right_function(law), setup.prompt, setup.stops), law)
    by_place = _JudgedWith(rule("optimal"), _of_the_place)
    return [
        *(Case(SECTION, fault.name, fault.run) for fault in exact_faults()),
        *(_law_case(claimed) for claimed in (*_sampled_faults(setup, law, bias), replace(right, section=SECTION))),
        *_siblings_seen(setup),
        in_section(batch_case(setup, NOISY, by_place, "planted"), SECTION, "coins of the place in the batch"),
        *(case for border in BORDERS for case in _repeating(border)),
        _shared_keys(),
        in_section(draw_case(_without_last_chunk, "planted"), SECTION, "draws that lose the last chunk"),
        *(in_section(case, SECTION, case.name) for case in policy_faults()),
        *_shaped_faults(setup),
        *witnessed_faults(SECTION),
    ]
