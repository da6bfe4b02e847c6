"""Runs the real loop with a witness that checks every step: with every rule, and with planted faults.

Eight policies run in one batch. A correct engine has no violation; a fault that changes the emitted tokens is detected,
whether it is in the policy, the coins and the noise, the verdict, or the assignment of rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spectr.audit.policy_faults import CommittedOnly, OneTooFew, PresenceOnPrompt
from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.setup import NOISY, Setup, toy_setup
from spectr.audit.witness import Witness
from spectr.engine import Request
from spectr.policy import Policy, PolicyRows
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify import Rule, rule
from spectr.verify.rule import Descent

__all__ = ["EIGHT", "Watched", "witnessed_cases", "witnessed_faults"]

EIGHT = (
    Policy(),
    Policy(0.7),
    Policy(0),
    Policy(top_k=4),
    Policy(0.9, top_p=0.8, min_p=0.02),
    Policy(1.2, typical_p=0.9, repetition_penalty=1.3),
    Policy(0.8, presence_penalty=0.5, frequency_penalty=0.3, logit_bias={1: 0.7, 2: -1.0}, min_new_tokens=4),
    Policy(1.1, top_p=0.95, bad_words=[[3, 4], [7]], no_repeat_ngram_size=3, epsilon_cutoff=0.01, eta_cutoff=0.01,
           repetition_penalty=1.8),
)  # fmt: skip
"""The policies of one batch; they cover every setting that acts on tensors."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An engine all of whose steps are checked."""

    name: str
    rule: Rule
    setup: Setup
    drafter: Any = NOISY
    texts: int = 12  # texts of each policy
    claim: Claim = "lossless"
    section: str = "witness"

    def witness(self) -> Witness:
        """Generate all texts and return the witness after it has checked every step."""
        witness = Witness(share=1.0, room=1 << 20)
        engine = self.setup.engine(self.drafter, self.rule).with_parts(witness=witness)
        engine.generate([
            Request(self.setup.prompt, 77 + 1000 * text + row, 24, policy)
            for text in range(self.texts)
            for row, policy in enumerate(EIGHT)
        ])  # fmt: skip
        witness.drain()
        witness.close()
        return witness

    def case(self) -> Case:
        """Return the run as a case of an audit."""

        def run(_: Level) -> Sequence[Finding]:
            found = self.witness()
            measured = (
                f"{found.rows:,} rows of {found.checked:,} steps: {found.violations or 'no'} violations, "
                f"{found.near_ties or 'no'} near-ties"
            )
            holds = found.holds and not found.not_covered
            return [Finding(self.section, self.name, holds, measured, found.as_data(), self.claim)]

        return Case(self.section, self.name, run)


def witnessed_cases(rules: Sequence[Rule]) -> list[Case]:
    """Return cases of every rule with the noisy drafter, and of the race with others."""
    setup = toy_setup()
    found = [Watched(f"{made.card.name} × {NOISY}", made, setup) for made in rules]
    found += [Watched(f"race × {name}", rule("race"), setup, name) for name in ("none", "lookup", "ngram", "random")]
    return [watched.case() for watched in found]


# Faults


class _OnePercent(PolicyRows):
    """Temperatures that are off by 1 %."""

    def number(self, name: str) -> Tensor:
        found = super().number(name)
        return found * 1.01 if name == "temperature" else found


class _OfTheNeighbour(PolicyRows):
    """Applies the penalty of the neighbouring row."""

    def number(self, name: str) -> Tensor:
        found = super().number(name)
        return found.roll(1) if name == "repetition_penalty" else found


class _Changed(Rule):
    """A rule with changed coins or changed verdicts."""

    def __init__(
        self,
        inner: Rule,
        coins: Callable[[Any], Coins] = lambda coins: coins,
        verdict: Callable[[Verdict, Draft], Verdict] = lambda verdict, _: verdict,
    ) -> None:
        self.inner, self.card, self.coins, self.changed = inner, inner.card, coins, verdict

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        return self.changed(self.inner.verdict(logits, draft, self.coins(coins), descent), draft)


def _neighbours_seed(coins: Any) -> Coins:
    made: Coins = replace(coins, seed=coins.seed.roll(1))
    return made


def _seed_of_the_place(coins: Any) -> Coins:
    made: Coins = replace(coins, seed=torch.arange(len(coins.seed)))
    return made


def _of_the_position_before(coins: Any) -> Coins:
    made: Coins = replace(coins, committed=coins.committed - 1)
    return made


def _swapped(verdict: Verdict, draft: Draft) -> Verdict:
    """Replace the bonus token of the first row by the first accepted token."""
    bonus = verdict.bonus.clone()
    bonus[0] = draft.tokens[0].gather(0, verdict.path[0, :1].clamp_min(0))[0]
    return replace(verdict, bonus=bonus)


def _accepted_anyway(verdict: Verdict, draft: Draft) -> Verdict:
    """Accept the first draft where none was accepted."""
    if not draft.depth:
        return verdict
    path, none = verdict.path.clone(), (verdict.length == 0) & draft.alive[:, 1]
    path[:, 0] = torch.where(none, 1, path[:, 0])
    return replace(verdict, path=path, length=torch.where(none, 1, verdict.length))


def witnessed_faults(section: str) -> Iterator[Case]:
    """Return cases of faults in the loop, each with the race and with a coupling rule."""
    setup = toy_setup()
    policies: tuple[tuple[str, type[PolicyRows], int], ...] = (
        ("temperature off by 1 %", _OnePercent, 40),
        ("top_p keeps one token too few", OneTooFew, 3),
        ("a penalty of the neighbouring row", _OfTheNeighbour, 3),
        ("penalties see the committed text only", CommittedOnly, 3),
        ("presence penalty counts the prompt", PresenceOnPrompt, 6),
    )
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("seed of the neighbouring row", {"coins": _neighbours_seed}),
        ("seed taken from the place", {"coins": _seed_of_the_place}),
        ("coins of the position before", {"coins": _of_the_position_before}),
        ("a token swapped", {"verdict": _swapped}),
        ("a draft accepted that was rejected", {"verdict": _accepted_anyway}),
    )
    for name in ("race", "optimal"):
        for what, computed, texts in policies:
            wrong = replace(setup, computed=computed)
            yield _planted(Watched(f"{what}, {name}", rule(name), wrong, texts=texts), section)
        for what, change in changes:
            yield _planted(Watched(f"{what}, {name}", _Changed(rule(name), **change), setup, texts=1), section)


def _planted(watched: Watched, section: str) -> Case:
    return replace(watched, name=f"{watched.name}, by a witness", claim="planted", section=section).case()
