"""The report of an audit: findings with their status, and the false-alarm rate of all of them together.

Cases are collected before any of them is run, so that the number of statistical tests is known and each gets an equal
share of the false-alarm rate (Bonferroni, which is valid for dependent tests too).
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
"""The number of cells of every statistical test. More cells resolve more and need more samples."""

Claim = Literal["lossless", "lossy", "planted"]
"""The claim of a case: the output has the target's law; it has a stated bias; or it has a planted fault to detect."""


@dataclass(frozen=True, slots=True)
class Level:
    """The error rates of an audit, and the bias that it detects."""

    alarms: float = 1e-6  # probability that a correct sampler fails any test of the whole report
    tests: int = 1  # statistical tests that share it
    bias: float = 0.02  # total variation to detect
    power: float = 0.99  # probability of detecting it
    samples: int | None = None  # samples of each sampler; None: as many as `bias` requires
    seed: int = 0  # the first seed; the next texts use the next seeds

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
        """The number of samples to draw."""
        return self.samples or self.needed

    @property
    def needed(self) -> int:
        """The number of samples that detect the bias."""
        return samples_needed(self.bias, CELLS, self.each, self.power)

    def at_most(self, samples: int) -> "Level":
        """Return a level with at most `samples` samples."""
        return replace(self, samples=min(self.draws, samples))

    def visible(self, samples: int) -> float:
        """Return the bias that this number of samples detects."""
        return smallest_bias(samples, CELLS, self.each, self.power)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one case."""

    section: str
    case: str
    holds: bool  # no difference from the target's law was found
    measured: str  # the result as a sentence
    details: dict[str, Any] = field(default_factory=dict)  # the result as data
    claim: Claim = "lossless"
    by_name: bool = False  # a lossy rule that was requested by name: the report fails if it is biased
    within_bound: bool = True  # the measured bias of a lossy rule is at most the stated one

    @property
    def as_claimed(self) -> bool:
        """Whether a lossless case holds, a planted fault is detected, or a lossy rule stays within its stated bias."""
        match self.claim:
            case "lossless":
                return self.holds
            case "planted":
                return not self.holds
        return self.within_bound

    @property
    def passes(self) -> bool:
        """Whether the finding is as claimed, and unbiased if it is of a lossy rule that was requested by name."""
        return self.as_claimed and (self.holds or not self.by_name)

    @property
    def status(self) -> str:
        """The status in a word or two."""
        if self.claim == "planted":
            return "NOT SEEN" if self.holds else "seen"
        if not self.as_claimed:
            return "FAILS"
        if self.claim == "lossy":
            return "lossy, no bias seen" if self.holds else "LOSSY"
        return "holds"

    def as_data(self) -> dict[str, Any]:
        """Return the finding as JSON data."""
        return {
            "section": self.section, "case": self.case, "claim": self.claim, "holds": self.holds,
            "status": self.status, "measured": self.measured, **self.details,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A check to run, with the number of statistical tests it makes."""

    section: str
    name: str
    run: Callable[[Level], Sequence[Finding]]
    tests: int = 0


def versions() -> dict[str, str | None]:
    """Return the versions of Python, spectr, torch and transformers."""
    return {"python": platform.python_version(), **{p: installed(p) for p in ("spectr", "torch", "transformers")}}


def _lossy_summary(lossy: Sequence[Finding]) -> str:
    """Return a sentence about the findings of lossy rules."""
    biased, broken = sum(not f.holds for f in lossy), sum(not f.within_bound for f in lossy)
    sentence = f"rules that state a bias differ from the target's law in {biased} of {len(lossy)} cases"
    if broken:
        return f"{sentence}, in {broken} by more than they state"
    return f"{sentence}, by no more than they state" if all("stated_bias" in f.details for f in lossy) else sentence


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of an audit, its error rates, and its duration."""

    findings: list[Finding]
    level: Level
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every claim holds, every planted fault is detected, and no rule requested by name is biased."""
        return all(finding.passes for finding in self.findings)

    @property
    def summary(self) -> str:
        """The outcome in one or two sentences."""
        claims, lossy, planted = (
            [f for f in self.findings if f.claim == claim] for claim in ("lossless", "lossy", "planted")
        )
        parts = [f"{sum(f.holds for f in claims)} of {len(claims)} lossless claims hold"] if claims else []
        parts += [f"{sum(not f.holds for f in planted)} of {len(planted)} planted faults are seen"] if planted else []
        parts += [_lossy_summary(lossy)] if lossy else []
        return ", ".join(parts) or "nothing was claimed"

    @property
    def certainty(self) -> str:
        """A description of the error rates of the statistics."""
        level = self.level
        if not level.tests:
            return "Nothing was sampled: distributions were enumerated, and texts compared token by token."
        return (
            f"{level.tests} statistical tests share a false-alarm rate of {level.alarms:g}, {level.each:.2g} each, by "
            f"a bound that holds for any number of samples. Detecting a bias of {level.bias:g} in total variation "
            f"between the {CELLS} cells of a test with probability {level.power:g} takes {level.needed:,} samples. The "
            "values p ≈ are χ² tails and decide nothing; for texts they are of first token, text, ranks and neighbours."
        )

    def as_data(self, command: str = "") -> dict[str, Any]:
        """Return the report as JSON data."""
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
            "findings": [finding.as_data() for finding in self.findings],
        }  # fmt: skip

    as_json = as_data
    """The former name of `as_data`."""


def examine(
    cases: Sequence[Case], level: Level | None = None, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Run every case; the false-alarm rate of `level` is shared among all their tests."""
    requested, start = level or Level(), time.perf_counter()
    shared = replace(requested, tests=sum(case.tests for case in cases))
    findings: list[Finding] = []
    for case in cases:
        progress(f"{case.section}: {case.name}")
        findings += case.run(shared)
    return Report(findings, shared, time.perf_counter() - start)
