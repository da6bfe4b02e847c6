"""What an audit reports: findings, each with its status, and how often all of them together may be a false alarm.

Cases are collected before any of them is run, so that the number of statistical tests is known, and each of them gets
an equal share of the false-alarm rate (Bonferroni: whatever the tests share, the rates add up to no more).
"""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from spectr.audit.statistics import samples_needed, smallest_bias
from spectr.checks import whole
from spectr.errors import ArgumentError
from spectr.version import installed

__all__ = ["CELLS", "Case", "Claim", "Finding", "Level", "Report", "examine", "versions"]

CELLS = 16
"""Cells of every statistical test: more cells look closer and need more samples."""

Claim = Literal["lossless", "lossy", "planted"]
"""What is claimed of a case: the law is kept; it is not, and the rule says so; or a fault was planted, to be seen."""


@dataclass(frozen=True, slots=True)
class Level:
    """How sure an audit is, and how closely it looks."""

    alarms: float = 1e-6  # chance that a right sampler fails any test of the whole report
    tests: int = 1  # statistical tests that share it
    bias: float = 0.02  # total variation to be seen
    power: float = 0.99  # chance to see it
    samples: int | None = None  # of each sampler; None: as many as `bias` needs
    seed: int = 0  # the first; the others follow

    def __post_init__(self) -> None:
        for name in ("alarms", "bias", "power"):
            if not 0 < getattr(self, name) < 1:
                raise ArgumentError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.samples is not None:
            whole("samples", self.samples, 1)

    @property
    def each(self) -> float:
        """The false-alarm rate of one test."""
        return self.alarms / max(self.tests, 1)

    @property
    def draws(self) -> int:
        """Samples to draw."""
        return self.samples or self.needed

    @property
    def needed(self) -> int:
        """Samples that see the bias."""
        return samples_needed(self.bias, CELLS, self.each, self.power)

    def at_most(self, samples: int) -> "Level":
        """With no more samples than that."""
        return replace(self, samples=min(self.draws, samples))

    def visible(self, samples: int) -> float:
        """The bias that so many samples see."""
        return smallest_bias(samples, CELLS, self.each, self.power)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one case."""

    section: str
    case: str
    holds: bool  # no difference from the target's law was found
    measured: str  # for people
    details: dict[str, Any] = field(default_factory=dict)  # for programs
    claim: Claim = "lossless"
    by_name: bool = False  # a lossy rule that was asked for by name: the report fails if it is biased
    within_bound: bool = True  # a lossy rule keeps the bias that it states, as far as it was measured

    @property
    def as_claimed(self) -> bool:
        """A lossless case holds, a planted fault is seen, a lossy rule keeps the bias that it states."""
        match self.claim:
            case "lossless":
                return self.holds
            case "planted":
                return not self.holds
        return self.within_bound

    @property
    def passes(self) -> bool:
        """As claimed; and a lossy rule that was asked for by name shows no bias."""
        return self.as_claimed and (self.holds or not self.by_name)

    @property
    def status(self) -> str:
        """In a word or two."""
        if self.claim == "planted":
            return "NOT SEEN" if self.holds else "seen"
        if not self.as_claimed:
            return "FAILS"
        if self.claim == "lossy":
            return "lossy, no bias seen" if self.holds else "LOSSY"
        return "holds"

    def as_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "section": self.section, "case": self.case, "claim": self.claim, "holds": self.holds,
            "status": self.status, "measured": self.measured, **self.details,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """Something to look at, with the number of statistical tests that it makes."""

    section: str
    name: str
    run: Callable[[Level], Sequence[Finding]]
    tests: int = 0


def versions() -> dict[str, str | None]:
    """Of what was audited and what audited it."""
    return {"python": platform.python_version(), **{p: installed(p) for p in ("spectr", "torch", "transformers")}}


def _lossy_summary(lossy: Sequence[Finding]) -> str:
    """What was found of rules that claim no losslessness."""
    biased, broken = sum(not f.holds for f in lossy), sum(not f.within_bound for f in lossy)
    said = f"rules that state a bias differ from the target's law in {biased} of {len(lossy)} cases"
    if broken:
        return f"{said}, in {broken} by more than they state"
    return f"{said}, by no more than they state" if all("stated_bias" in f.details for f in lossy) else said


@dataclass(frozen=True, slots=True)
class Report:
    """Findings, and what they were made with."""

    findings: list[Finding]
    level: Level
    seconds: float

    @property
    def holds(self) -> bool:
        """Every claim holds, every planted fault is seen, and no lossy rule that was asked for by name is biased."""
        return all(finding.passes for finding in self.findings)

    @property
    def summary(self) -> str:
        """The outcome in a sentence or two."""
        claims, lossy, planted = (
            [f for f in self.findings if f.claim == claim] for claim in ("lossless", "lossy", "planted")
        )
        parts = [f"{sum(f.holds for f in claims)} of {len(claims)} lossless claims hold"] if claims else []
        parts += [f"{sum(not f.holds for f in planted)} of {len(planted)} planted faults are seen"] if planted else []
        parts += [_lossy_summary(lossy)] if lossy else []
        return ", ".join(parts) or "nothing was claimed"

    @property
    def certainty(self) -> str:
        """What the statistics are worth."""
        level = self.level
        if not level.tests:
            return "Nothing was sampled: laws were enumerated, and texts compared token by token."
        return (
            f"{level.tests} statistical tests share a false-alarm rate of {level.alarms:g}, {level.each:.2g} each, by "
            f"a bound that holds for any number of samples. To see a bias of {level.bias:g} total variation between "
            f"the {CELLS} cells of a test with probability {level.power:g} takes {level.needed:,} samples. p ≈ are the "
            "usual χ² tails, which decide nothing; for texts those of first token, text, ranks and neighbours."
        )

    def as_json(self, command: str = "") -> dict[str, Any]:
        """Everything, for a file."""
        level = self.level
        return {
            "what": "is the output law the target's?",
            "command": command,
            "versions": versions(),
            "holds": self.holds,
            "summary": self.summary,
            "seconds": round(self.seconds, 1),
            "statistics": {
                "false_alarm_rate": level.alarms, "tests": level.tests, "rate_of_each_test": level.each,
                "cells": CELLS, "bias_to_see": level.bias, "power": level.power,
                "samples_needed_for_that_bias": level.needed, "first_seed": level.seed,
            },
            "findings": [finding.as_json() for finding in self.findings],
        }  # fmt: skip


def examine(
    cases: Sequence[Case], level: Level | None = None, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Run every case; the false-alarm rate of `level` is shared among all their tests."""
    given, start = level or Level(), time.perf_counter()
    shared = replace(given, tests=sum(case.tests for case in cases))
    findings: list[Finding] = []
    for case in cases:
        progress(f"{case.section}: {case.name}")
        findings += case.run(shared)
    return Report(findings, shared, time.perf_counter() - start)
